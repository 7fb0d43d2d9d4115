"""Opening a trace of a million events and showing one of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import machine, table

import gradviz.engine as gv
from gradviz.sources.record import record

READER = """
import sys, time
from gradviz.tracefile import open_trace
from gradviz.step.plain import describe
from gradviz.step.state import Session
start = time.perf_counter()
with open_trace(sys.argv[1]) as trace:
    text = describe(Session(trace, 700_000).stop)
print(time.perf_counter() - start)
"""


def make(path: Path, events: int) -> float:
    """Record a chain of about so many events; the seconds it took."""
    x, c, seed = gv.ones(4, requires_grad=True), gv.ones(4) * 1.0001, gv.ones(4)
    start = time.perf_counter()
    with record(path):
        for _ in range(events // 15_000):
            h = x
            for _ in range(5000):
                h = h * c
            h.backward(seed)
    return time.perf_counter() - start


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "million.gradviz"
        make(path, 1_010_000)
        seconds = []
        for _ in range(5):
            done = subprocess.run(
                [sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True
            )
            seconds.append(float(done.stdout))
        rows = [
            ("size at --values stats", f"{path.stat().st_size / 1e6:.0f} MB"),
            ("open and show event 700,000, imports aside", f"{sorted(seconds)[2]:.3f} s"),
        ]
        table("a trace of 1,000,000 events", rows, ("what", "figure"))


if __name__ == "__main__":
    main()
