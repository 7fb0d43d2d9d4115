"""A long recording: does it grow or slow down?

    python benchmarks/soak.py [MINUTES] [--engine numpy|torch] [--values stats] [--passes every:50] [--last N]

A small network is trained for that long (10 minutes unless told) under `gradviz trace`. Each twelfth of the time is a
row: passes, their time, the bytes that each adds to the file, and the memory of the process. It fails (status 1) when
the last quarter of the rows is worse than the second by more than the bounds below; the first quarter warms up.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common import machine, table

SCRIPT = """
import re, sys, time
import torch
from torch import nn

seconds = float(sys.argv[1])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x = torch.randn(16, 8)
y = x.sum(1, keepdim=True)
begin = said = time.perf_counter()
passes = 0
while said - begin < seconds:
    for _ in range(50):
        loss = ((net(x) - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        passes += 1
    now = time.perf_counter()
    if now - said > seconds / 12:
        said = now
        memory = re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]
        print(passes, now - begin, time.process_time(), memory, flush=True)
"""
ROWS = 12
MORE_MEMORY = 8  # MB
MORE_BYTES, MORE_TIME = 1.10, 1.15  # a ratio


@dataclass(frozen=True)
class Row:
    """What was added since the row before: passes, CPU seconds and bytes; and the memory in MB."""

    passes: int
    seconds: float
    size: int
    memory: float


def recorded(minutes: float, settings: list[str]) -> list[Row]:
    """Train under `gradviz trace` with these options; one row for each twelfth of the time."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        command = [sys.executable, "-m", "gradviz", "trace", *settings, "train.py", str(60 * minutes)]
        rows, before = [], (0, 0.0, 0)
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                passes, _, seconds, memory = line.split()
                time.sleep(0.2)  # for the last commit
                now = int(passes), float(seconds), os.path.getsize(Path(folder, "train.gradviz"))
                added = [new - old for new, old in zip(now, before, strict=True)]
                rows.append(Row(int(added[0]), added[1], int(added[2]), int(memory) / 1024))
                before = now
        if running.returncode:
            raise SystemExit(f"the recording failed with status {running.returncode}")
        return rows


def grown(rows: list[Row]) -> list[str]:
    """What has become worse from the second quarter of the rows to the last."""
    quarter = len(rows) // 4
    early, late = rows[quarter : 2 * quarter], rows[-quarter:]
    found = []
    if max(row.memory for row in late) > max(row.memory for row in early) + MORE_MEMORY:
        found.append("memory")
    for name, key, bound in (("bytes a pass", "size", MORE_BYTES), ("time a pass", "seconds", MORE_TIME)):
        first, last = (sum(getattr(r, key) for r in part) / sum(r.passes for r in part) for part in (early, late))
        if last > bound * first:
            found.append(name)
    return found


def main() -> None:
    """Print the rows; exit with 1 if something grows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("minutes", type=float, nargs="?", default=10)
    parser.add_argument("--engine", default="numpy")
    parser.add_argument("--values", default="stats")
    parser.add_argument("--passes")
    parser.add_argument("--last")
    options = parser.parse_args()
    print(machine())
    chosen = {name: getattr(options, name) for name in ("engine", "values", "passes", "last")}
    settings = [word for name, value in chosen.items() if value for word in (f"--{name}", value)]
    rows = recorded(options.minutes, settings)
    shown = [
        (
            f"{row.passes:,}",
            f"{row.seconds / row.passes * 1e6:.0f}",
            f"{row.size / row.passes:.0f}",
            f"{row.memory:.0f}",
        )
        for row in rows
    ]
    title = f"{options.minutes:g} minutes: {' '.join(settings)}"
    table(title, shown, ("passes", "CPU µs a pass", "bytes a pass", "memory, MB"))
    worse = grown(rows)
    print(f"\ngrown: {', '.join(worse) or 'nothing'}")
    raise SystemExit(1 if worse else 0)


if __name__ == "__main__":
    main()
