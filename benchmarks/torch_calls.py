"""What recording costs a PyTorch program, operation by operation: the Python calls, the calls of C and the instructions
of Python's that it adds to each, which are the same on every machine, beside the time in turns of one process.

    python benchmarks/torch_calls.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from common import machine, table
from torch import nn
from torch_recording import MODELS, Layer, timed
from torch_recording import step_of as training_step

import gradviz
from gradviz.tracefile import AutoPasses

OPS = 200  # of the chain
LAYERS = 100
GRADES = ("none", "stats")
AUTO = "auto, left out"  # passes chosen while it runs: a pass of which a few numbers alone are kept
_FIRST = 4  # so many passes have begun when only such passes follow
Step = Callable[[], None]


class FirstTwo(AutoPasses):
    """Of the passes that are chosen while a program runs, the first two alone."""

    def __contains__(self, number: object) -> bool:
        return number in (1, 2)


def chain() -> Step:
    """Small operations, with their backward: a product with a leaf, a function, a number, a leaf."""
    w = torch.full((4,), 0.9, requires_grad=True)
    b = torch.full((4,), 0.1, requires_grad=True)

    def step() -> None:
        h = w
        for _ in range(OPS // 4):
            h = h * w
            h = h.tanh()
            h = h * 0.5
            h = h + b
        h.sum().backward()

    return step


def deep() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """100 × (Linear, LayerNorm, ReLU), of width 128."""
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(128, 10)), torch.randn(32, 128), torch.randint(10, (32,))


def gpt() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """48 layers of width 128, 2 sequences of 32."""
    layers = [Layer(128, 4) for _ in range(48)]
    net = nn.Sequential(nn.Embedding(100, 128), *layers, nn.LayerNorm(128), nn.Linear(128, 100), nn.Flatten(0, 1))
    tokens = torch.randint(100, (2, 32))
    return net, tokens, tokens.flatten()


def nothing() -> AbstractContextManager[Any]:
    """A mode that does nothing: what PyTorch itself takes to hand a call to somebody."""

    class Bare(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    return Bare()


def ways(folder: str) -> dict[str, Callable[[], AbstractContextManager[Any]]]:
    """How a step can be run, by name."""
    recorded = {grade: partial(gradviz.record, Path(folder) / "run.gradviz", values=grade) for grade in GRADES}
    recorded[AUTO] = lambda: gradviz.record(Path(folder) / "run.gradviz", passes=FirstTwo())
    return {"plain": nullcontext, "a bare mode": nothing, **recorded}


def warmed_up(step: Step, name: str, least: int) -> None:
    """Run what makes that which is kept, so that the next steps are like those of a long run."""
    for _ in range(_FIRST if name == AUTO else least):
        step()


def calls_of(step: Step) -> tuple[int, int]:
    """The calls of Python's functions, and of C's, in a step."""
    seen: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        seen[event] += 1

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return seen["call"], seen["c_call"]


def instructions_of(step: Step) -> int:
    """The instructions of Python's in a step."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        elif event == "opcode":
            count += 1
        return note

    sys.settrace(note)
    try:
        step()
    finally:
        sys.settrace(None)
    return count


def counted(step: Step, name: str, way: Callable[[], AbstractContextManager[Any]]) -> tuple[int, int, int]:
    """Calls of Python, calls of C and instructions in a step, after two that have made what is kept."""
    with way():
        warmed_up(step, name, 2)
        time.sleep(0.2)  # the writer is not behind, so that the step does not wait for it
        calls = calls_of(step)
        time.sleep(0.2)
        return *calls, instructions_of(step)


def times_of(step: Step, each: dict[str, Callable[[], AbstractContextManager[Any]]], rounds: int) -> dict[str, float]:
    """The median seconds of a step, in turns."""
    taken: dict[str, list[float]] = {name: [] for name in each}
    for _ in range(rounds):
        for name, way in each.items():
            with way():
                warmed_up(step, name, 1)
                taken[name].append(timed(step))
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"PyTorch {torch.__version__} on one thread; {machine()}")
    with tempfile.TemporaryDirectory() as folder:
        each = ways(folder)
        step = chain()
        counts = {name: counted(step, name, way) for name, way in each.items()}
        times = times_of(step, each, rounds)
        rows = []
        for name in each:
            added = [(n - plain) / OPS for n, plain in zip(counts[name], counts["plain"], strict=True)]
            more = 1e6 * (times[name] - times["plain"]) / OPS
            rows.append((name, *(f"{n:.1f}" for n in added), f"{more:.1f} µs"))
        print(f"\nA small operation with its backward takes {1e6 * times['plain'] / OPS:.1f} µs.")
        table("What is added to it", rows, ("", "calls of Python", "calls of C", "instructions", "time"))
        rows = []
        for make in (deep, gpt, *MODELS.values()):
            step = training_step(make)
            step()
            times = times_of(step, each, rounds)
            ratios = [f"{times[name] / times['plain']:.2f}" for name in each if name != "plain"]
            rows.append((make.__name__, f"{1e3 * times['plain']:.1f} ms", *ratios))
        table("A training step, as a multiple of the plain one", rows, ("model", *each))


if __name__ == "__main__":
    main()
