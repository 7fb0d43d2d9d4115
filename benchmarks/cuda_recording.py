"""What recording costs a training step on a GPU: five models in each grade, and in a pass that `--passes` leaves
out, as ratios to the step without a recorder.

python benchmarks/cuda_recording.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch_calls import AUTO, FirstTwo, deep, gpt
from torch_recording import GRADES, Maker, cnn, mlp, transformer

import gradviz

STEPS = 50
SETTINGS: dict[str, dict[str, Any]] = {**{grade: {"values": grade} for grade in GRADES}, AUTO: {"passes": FirstTwo()}}


def step_of(make: Maker) -> Callable[[], None]:
    """A training step of a model on the GPU."""
    torch.manual_seed(0)
    net, data, target = make()
    net, data, target = net.cuda(), data.cuda(), target.cuda()
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(data), target).backward()
        optimizer.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    """The time of a step, until the GPU has done it."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / STEPS


def main(rounds: int) -> None:
    """Measure each model, plain and recorded in turns."""
    if not torch.cuda.is_available():
        raise SystemExit("cuda_recording: there is no CUDA device here")
    print(torch.cuda.get_device_name(), f"PyTorch {torch.__version__}", sep=", ")
    for make in (mlp, cnn, transformer, deep, gpt):
        step = step_of(make)
        seconds(step)
        ratios: dict[str, list[float]] = {name: [] for name in SETTINGS}
        plain = []
        for _ in range(rounds):
            plain.append(seconds(step))
            for name, settings in SETTINGS.items():
                ratios[name].append(recorded(step, settings) / plain[-1])
        medians = ", ".join(f"{name}: {statistics.median(found):.2f}" for name, found in ratios.items())
        print(f"{make.__name__}: {1000 * statistics.median(plain):.2f} ms · {medians}", flush=True)


def recorded(step: Callable[[], None], settings: dict[str, Any]) -> float:
    """The time of a step that is recorded, behind the first four."""
    with tempfile.TemporaryDirectory() as folder, gradviz.record(Path(folder) / "run.gradviz", **settings):
        for _ in range(4):
            step()
        return seconds(step)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
