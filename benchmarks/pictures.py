"""Time to SVG: gradviz from a trace, torchviz and `dot` from a live graph, of the same networks. Time to the page of a
training loop, and its size.

    python benchmarks/pictures.py [SECONDS [GB]]      what torchviz and `dot` may take: 120 seconds, 4 GB

Each picture is made in a process of its own; what is timed is from the opened program to the SVG text, without
imports and without the training step itself. torchviz recurses: it is given as much stack as it wants. It is left
out where it is not installed (`pip install torch torchviz`)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, table
from workloads.nets import WORKLOADS

ROUNDS = 3
PASSES = (12, 120, 600)  # of the training loop on a page

RECORD = """
import sys
import gradviz
import gradviz.engine as torch
from workloads.nets import WORKLOADS
torch.manual_seed(0)
with gradviz.record(sys.argv[2]):
    WORKLOADS[sys.argv[1]](torch).backward()
"""

OURS = """
import resource, sys, time
from gradviz.tracefile import open_trace
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.model import no_collection
from gradviz.pictures.render import svg
start = time.perf_counter()
with no_collection(), open_trace(sys.argv[2]) as trace:
    svg(folded(build(trace)))
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""

TRAIN = """
import sys
import gradviz
import gradviz.engine as torch
torch.manual_seed(0)
nn = torch.nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(32, 8), torch.randn(32, 1)
with gradviz.record(sys.argv[2]):
    for _ in range(int(sys.argv[1])):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
"""

PAGE = """
import os, subprocess, sys, time
command = [sys.executable, "-m", "gradviz", "graph", sys.argv[1], "-o", sys.argv[2]]
before = os.times()
subprocess.run(command, check=True, capture_output=True)
after = os.times()
cpu = after.children_user + after.children_system - before.children_user - before.children_system
print(cpu, os.path.getsize(sys.argv[2]))
"""

THEIRS = """
import resource, subprocess, sys, threading, time
import torch, torchviz
from workloads.nets import WORKLOADS
torch.manual_seed(0)
torch.set_num_threads(1)
room = int(sys.argv[2]) << 30
loss = WORKLOADS[sys.argv[1]](torch)
loss.backward(retain_graph=True)
def draw():
    start = time.perf_counter()
    source = torchviz.make_dot(loss).source
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (room, room))
    dot = subprocess.run(["dot", "-Tsvg"], input=source.encode(), capture_output=True, preexec_fn=limit)
    if b"</svg>" not in dot.stdout:
        print("dot ended with status %d, given %s GB" % (dot.returncode, sys.argv[2]), file=sys.stderr)
        return
    used = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(time.perf_counter() - start, max(used), flush=True)
sys.setrecursionlimit(10**6)
threading.stack_size(2**29)
thread = threading.Thread(target=draw)
thread.start()
thread.join()
"""


def run(program: str, *arguments: object, patience: float = 600) -> list[float] | str:
    """The numbers that a program prints, or in a few words why there are none."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, said = process.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its `dot` too; the session is its own
        process.communicate()
        return f"> {patience:g} s"
    if process.returncode or not printed.strip():
        last = said.strip().splitlines()[-1:] or [f"exit status {process.returncode}"]
        return last[0][:60]
    return [float(number) for number in printed.split()]


def best(program: str, *arguments: object, rounds: int = ROUNDS, patience: float = 600) -> list[float] | str:
    """The quickest of a few runs; what else the machine does only ever adds to a time."""
    found: list[float] | str = ""
    for _ in range(rounds):
        numbers = run(program, *arguments, patience=patience)
        if isinstance(numbers, str):
            return numbers
        found = min(found, numbers) if isinstance(found, list) else numbers
    return found


def main() -> None:
    patience = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    room = int(sys.argv[2]) if len(sys.argv) > 2 else 4
    print(machine())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in WORKLOADS:
            trace = Path(folder, "run.gradviz")
            done = run(RECORD, name, trace)
            ours = best(OURS, name, trace)
            theirs = best(THEIRS, name, room, patience=patience)
            assert isinstance(ours, list), (done, ours)
            finished = isinstance(theirs, list)
            rows.append(
                (
                    name,
                    f"{ours[0]:.2f} s, {ours[1] / 1024:.0f} MB",
                    f"{theirs[0]:.2f} s, {theirs[1] / 1024:.0f} MB" if finished else str(theirs),
                    f"{ours[0] / theirs[0]:.2f}" if finished else f"< {ours[0] / patience:.3f}",
                )
            )
            print(rows[-1], file=sys.stderr)
            trace.unlink()
    table("Time to SVG", rows, ("graph", "gradviz", "torchviz and dot", "ratio"))
    table("The page of a training loop", [*map(page, PASSES)], ("passes", "CPU time of the command", "size"))


def page(passes: int) -> tuple[str, ...]:
    """The row of a page with so many passes of a network of three layers."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "run.gradviz")
        done = run(TRAIN, passes, trace)
        assert trace.exists(), done
        found = best(PAGE, trace, Path(folder, "run.html"))
        assert isinstance(found, list), found
        return f"{passes}", f"{found[0]:.1f} s", f"{found[1] / 1e6:.1f} MB"


if __name__ == "__main__":
    main()
