"""One library in a process of its own: `python -m workloads.serve LIBRARY`, then a workload's name a line.

Each line runs steps for some twenty milliseconds, as a training loop does, and answers with the seconds of one;
`NAME FILE` writes the gradients into a file instead."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable

import numpy as np

TURN = 0.02  # seconds


def steps_of(library: str) -> dict[str, Callable[[], list[np.ndarray]]]:
    """The workloads of a library. Raises ImportError where it is not installed."""
    if library in ("torch", "gradviz"):
        name = "gradviz.engine" if library == "gradviz" else library
        torch = importlib.import_module(name)
        if library == "torch":
            torch.set_num_threads(1)
        like = importlib.import_module("workloads.torch_like")
        return like.steps(torch, importlib.import_module(f"{name}.nn.functional"))
    return importlib.import_module({"NumPy": "workloads.by_hand"}.get(library, f"workloads.with_{library}")).STEPS


def seconds(step: Callable[[], object]) -> float:
    """What one step takes, the mean of a turn."""
    start = time.perf_counter()
    n = 0
    while time.perf_counter() - start < TURN:
        step()
        n += 1
    return (time.perf_counter() - start) / n


def main() -> None:
    steps = steps_of(sys.argv[1])
    print("ready", *steps, flush=True)
    for line in sys.stdin:
        name, *file = line.split()
        if file:
            np.savez(file[0], *steps[name]())
            print("written", flush=True)
        else:
            print(seconds(steps[name]), flush=True)


if __name__ == "__main__":
    main()
