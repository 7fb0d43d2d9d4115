"""What recording adds to a run: to an event, the writer's thread included, to a training step, and to an array."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from common import HEAP_IS_KEPT, machine, table

from gradviz.events.values import stats_of
from gradviz.tracefile import open_trace

CHAIN = """
import sys, time
import gradviz.engine as torch

x = torch.ones(4, requires_grad=True)
c = torch.ones(4) * 1.0001
seed = torch.ones(4)

def step(n):
    h = x
    for _ in range(n):
        h = h * c
    x.grad = None
    h.backward(seed)

step(5000)
start = time.process_time()
for _ in range(40):
    step(5000)
print((time.process_time() - start) / 40)
"""

# Steps without a recording and with each kind of one take turns, 200 at a time: long enough for the writer's share.
STEP = """
import sys, time
from contextlib import nullcontext
from statistics import median
import numpy as np
import gradviz
import gradviz.engine as torch
from gradviz.engine import nn

NETWORK

def step():
    optimizer.zero_grad()
    loss_of(net(x), y).backward()
    optimizer.step()

seconds = {grade: [] for grade in ("", *sys.argv[1:])}
for _ in range(7):
    for grade, taken in seconds.items():
        with gradviz.record("run.gradviz", values=grade) if grade else nullcontext():
            for _ in range(3):
                step()
            start = time.perf_counter()
            for _ in range(200):
                step()
            taken.append((time.perf_counter() - start) / 200)
print(*(median(taken) for taken in seconds.values()))
"""

NETWORKS = {
    "MLP 784-256-10, batch 64, Adam": """
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
loss_of = nn.CrossEntropyLoss()
x, y = torch.randn(64, 784), torch.tensor(np.arange(64) % 10)
""",
    "six small modules, batch 64, SGD": """
net = nn.Sequential(
    nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 1)
)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
loss_of = nn.MSELoss()
x, y = torch.randn(64, 8), torch.randn(64, 1)
""",
}

GRADES = ("none", "stats", "full")


def printed(command: list[str], folder: Path) -> list[float]:
    """The numbers that a program prints."""
    env = {**os.environ, **HEAP_IS_KEPT, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def of_an_event(folder: Path) -> None:
    """CPU time and bytes that recording adds, an event."""
    (folder / "program.py").write_text(CHAIN)
    plain = [sys.executable, "program.py"]
    rows = []
    for values in GRADES:
        traced = [sys.executable, "-m", "gradviz", "trace", "--values", values, "program.py"]
        added = []
        for _ in range(5):
            (without,), (recorded,) = printed(plain, folder), printed(traced, folder)
            added.append(recorded - without)
        with open_trace(folder / "program.gradviz") as trace:
            events = trace.count / 41
            size = (folder / "program.gradviz").stat().st_size / trace.count
        rows.append((values, f"{median(added) / events * 1e6:.2f}", f"{size:.0f}"))
    table("recording, small tensors", rows, ("--values", "µs added an event", "bytes an event"))


def of_a_training_step(folder: Path) -> None:
    """A training step of a network of modules, as a multiple of the same without recording."""
    for name, network in NETWORKS.items():
        (folder / "program.py").write_text(STEP.replace("NETWORK", network))
        untraced, *recorded = printed([sys.executable, "program.py", *GRADES], folder)
        rows = [(grade, f"{taken / untraced:.2f}") for grade, taken in zip(GRADES, recorded, strict=True)]
        table(f"{name}: a step of {untraced * 1e3:.2f} ms", rows, ("--values", "ratio to untraced"))


def of_statistics() -> None:
    """The statistics of one array, beside a single pass over it."""
    rows = []
    for dtype in (np.float32, np.float64):
        array = np.random.default_rng(0).standard_normal(200_000).astype(dtype)
        taken = [microseconds(work, array) for work in (stats_of, np.max)]
        rows.append((array.dtype.name, *(f"{each:.0f}" for each in taken)))
    table("statistics of 200,000 elements", rows, ("dtype", "all seven: µs", "np.max alone: µs"))


def microseconds(work: Callable[[np.ndarray], object], array: np.ndarray) -> float:
    """The time of a call: that at a tenth of many."""
    taken = []
    for _ in range(500):
        start = time.perf_counter()
        work(array)
        taken.append(time.perf_counter() - start)
    return sorted(taken)[50] * 1e6


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        of_an_event(Path(name))
        of_a_training_step(Path(name))
    of_statistics()


if __name__ == "__main__":
    main()
