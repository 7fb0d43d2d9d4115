"""Opening a long trace: one event of a million, and what commands take of a training loop (by default of a million
events; `python benchmarks/trace_open.py 13000000` for a day's run)."""

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
    text = describe(Session(trace, 700_000).shown)
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


TAKEN = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "gradviz", *sys.argv[1:]], capture_output=True, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def train(path: Path, events: int) -> int:
    """Record a small network for about so many events; how many passes that is."""
    gv.manual_seed(0)
    net = gv.nn.Sequential(gv.nn.Linear(8, 16), gv.nn.Tanh(), gv.nn.Linear(16, 1))
    optimizer = gv.optim.SGD(net.parameters(), lr=0.01)
    x, passes = gv.randn(16, 8), events // 57
    with record(path):
        for _ in range(passes):
            optimizer.zero_grad()
            net(x).pow(2).mean().backward()
            optimizer.step()
    return passes


def taken(*arguments: object) -> tuple[str, str]:
    """The CPU time and the most memory that a command takes, with the start of Python."""
    command = [sys.executable, "-c", TAKEN, *map(str, arguments)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() for _ in range(3)]
    seconds, kilobytes = sorted((float(cpu), int(most)) for cpu, most in runs)[1]
    return f"{seconds:.2f} s", f"{kilobytes / 1000:.0f} MB"


def commands(folder: Path, events: int) -> list[tuple[str, ...]]:
    """What each command takes of a long trace."""
    path = folder / "loop.gradviz"
    middle = train(path, events) // 2
    return [
        ("`info`", *taken("info", path)),
        ("`graph --pass` in the middle", *taken("graph", path, "--pass", middle, "-o", folder / "o.svg")),
        ("`graph`", *taken("graph", path, "-o", folder / "o.svg")),
        ("`check`", *taken("check", path, "--fail-on", "error")),
        ("`report`", *taken("report", path, "-o", folder / "o.html")),
        (
            "`step --at` in the middle, `--commands next`",
            *taken("step", path, "--at", events // 2, "--commands", "next"),
        ),
    ]


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "million.gradviz"
        make(path, 1_010_000)
        seconds = []
        for _ in range(5):
            done = subprocess.run([sys.executable, "-c", READER, str(path)], capture_output=True, text=True, check=True)
            seconds.append(float(done.stdout))
        rows = [
            ("size at --values stats", f"{path.stat().st_size / 1e6:.0f} MB"),
            ("open and show event 700,000, imports aside", f"{sorted(seconds)[2]:.3f} s"),
        ]
        table("a trace of 1,000,000 events", rows, ("what", "figure"))
        events = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
        header = ("command", "CPU time", "memory")
        table(f"a training loop of {events:,} events", commands(Path(name), events), header)


if __name__ == "__main__":
    main()
