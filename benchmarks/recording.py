"""What recording adds to a run, an event, the writer's thread included."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, table

from gradviz.tracefile import open_trace

PROGRAM = """
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


def step_time(command: list[str], folder: Path) -> float:
    """The CPU time of one step of the program, of all its threads: the mean of 40."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "program.py").write_text(PROGRAM)
        plain = [sys.executable, "program.py"]
        rows = []
        for values in ("none", "stats", "full"):
            traced = [sys.executable, "-m", "gradviz", "trace", "--values", values, "program.py"]
            added = []
            for _ in range(5):
                without = step_time(plain, folder)
                added.append(step_time(traced, folder) - without)
            with open_trace(folder / "program.gradviz") as trace:
                events = trace.count / 41
                size = (folder / "program.gradviz").stat().st_size / trace.count
            middle = sorted(added)[len(added) // 2]
            rows.append((values, f"{middle / events * 1e6:.2f}", f"{size:.0f}"))
        table("recording, small tensors", rows, ("--values", "µs added an event", "bytes an event"))


if __name__ == "__main__":
    main()
