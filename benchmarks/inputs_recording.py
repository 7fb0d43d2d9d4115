"""What `--values inputs` costs: the processor time of a training step, all threads together, beside `none`, in turns in
one process; and the bytes that a pass takes in the file.

    python benchmarks/inputs_recording.py [ROUNDS]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from common import machine, table
from torch_recording import MODELS, Maker
from torch_recording import step_of as training_step

import gradviz

GRADES = ("none", "inputs")
STEPS = 30  # of a turn: its recording is closed, so that all that was recorded is written


def turn(step: Callable[[], None], grade: str, folder: Path) -> tuple[float, float]:
    """The processor time of a step in seconds, and the bytes that it takes in the file."""
    path = folder / f"{grade}.gradviz"
    start = time.process_time()
    with gradviz.record(path, values=grade):
        for _ in range(STEPS):
            step()
    return (time.process_time() - start) / STEPS, path.stat().st_size / STEPS


def measured(make: Maker, rounds: int) -> tuple[str, ...]:
    """The medians of both grades, in turns, and their ratio."""
    step = training_step(make)
    step()
    times: dict[str, list[float]] = {grade: [] for grade in GRADES}
    sizes = dict.fromkeys(GRADES, 0.0)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for grade in GRADES:
                taken, sizes[grade] = turn(step, grade, Path(folder))
                times[grade].append(taken)
    none, inputs = (statistics.median(times[grade]) for grade in GRADES)
    parameters = sum(p.numel() for p in make()[0].parameters())
    return (
        make.__name__, f"{parameters:,}", f"{1000 * none:.2f} ms", f"{1000 * inputs:.2f} ms",
        f"{inputs / none:.2f}", f"{sizes['inputs'] / 1000:,.0f} kB",
    )  # fmt: skip


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 9
    print(f"PyTorch {torch.__version__} on one thread; {machine()}")
    rows = [measured(make, rounds) for make in MODELS.values()]
    header = ("model", "parameters", "none", "inputs", "ratio", "a pass in the file")
    table("Processor time of a step with AdamW", rows, header)


if __name__ == "__main__":
    main()
