"""The stepper on a trace of a million events: CPU time of each verb's answer, drawn at 200×60, and all its memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, table

import gradviz.engine as gv
from gradviz.sources.record import record

STEPS = (
    "next",
    "back",
    "over",
    "over-back",
    "next-backward",
    "back-backward",
    "next-forward",
    "undo",
    "out",
    "out-back",
)
JUMPS = ("goto 200001", "goto 777777", "last", "first", "goto 500000")
TELLS = ("why", "info", "info h", "why x.grad", "again", "again-back", "into", "mark", "marks", "help")
SCANS = (
    "until grad.rms < 1e-30", 'back-until op == "log" and out.min <= 0', "until nan or inf", 'until name == "nobody"',
    "until in.max > 1e30", 'until grad_fn == "LogBackward0"', "until line == 1", "who x.grad", "who x.grad", "who h",
    "break mutation", "watch x.grad", "continue", "reverse-continue", "nan", "search nothing", "path x h",
)  # fmt: skip
READER = """
import json, resource, sys, time
from gradviz.step.screen import Screen
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace
start = time.process_time()
told = []
with open_trace(sys.argv[1]) as trace:
    session = Session(trace, trace.count // 2)
    Screen(session).lines(200, 60)
    told.append(("open", time.process_time() - start, 0))
    start = time.process_time()
    session.prepare()
    told.append(("prepare", time.process_time() - start, 0))
    for command in json.loads(sys.argv[2]):
        start = time.process_time()
        obey(session, command)
        Screen(session).lines(200, 60)
        told.append((command, time.process_time() - start, session.position + 1))
print(json.dumps([told, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def chain(path: Path, events: int) -> None:
    """Passes over a chain of five thousand ops."""
    with record(path):
        x = gv.ones(4, requires_grad=True)
        c, seed = gv.ones(4) * 1.0001, gv.ones(4)
        for _ in range(events // 15_000):
            h = x
            for _ in range(5000):
                h = h * c
            h.backward(seed)


def leaves(path: Path, events: int) -> None:
    """Many short passes, each with leaves of its own."""
    with record(path):
        x = gv.ones(4, requires_grad=True)
        for _ in range(events // 14):
            w = gv.ones(4, requires_grad=True)
            h = (x * w).sum()
            h.backward()


def training(path: Path, events: int) -> None:
    """A small network, trained."""
    with record(path):
        model = gv.nn.Sequential(gv.nn.Linear(4, 4), gv.nn.ReLU(), gv.nn.Linear(4, 1))
        optimizer, x = gv.optim.SGD(model.parameters(), lr=0.01), gv.ones(4, 4)
        for _ in range(events // 45):
            h = model(x)
            optimizer.zero_grad()
            (h * h).mean().backward()
            optimizer.step()


def answers(path: Path, commands: tuple[str, ...]) -> tuple[dict[str, float], float]:
    """The seconds of CPU time that each command took in a process of its own, and the most memory, in MB."""

    run = [sys.executable, "-c", READER, str(path), json.dumps(commands)]
    told, memory = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    found: dict[str, float] = {}
    for command, seconds, _ in told:
        found[command] = max(seconds, found.get(command, 0.0))
    return found, memory


def main() -> None:
    print(machine())
    size = int(next(iter(a for a in sys.argv[1:] if a.isdigit()), 1_010_000))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for make in (chain, leaves, training):
            path = Path(name) / f"{make.__name__}.gradviz"
            make(path, size)
            for title, commands in (("steps", STEPS), ("jumps", JUMPS), ("tells", TELLS), ("scans", SCANS)):
                skipped = ("info h", "who h") if make is leaves else ()
                asked = tuple(c for c in commands if c not in skipped)
                found, memory = answers(path, asked)
                opened, prepared = found.pop("open"), found.pop("prepare")
                slow = max(found, key=found.__getitem__)
                median = sorted(found.values())[len(found) // 2]
                rows.append(
                    (
                        make.__name__,
                        title,
                        f"{opened * 1e3:.0f} + {prepared * 1e3:.0f}",
                        f"{median * 1e3:.0f}",
                        f"{found[slow] * 1e3:.0f} ({slow})",
                        f"{memory:.0f}",
                    )
                )
                if "-v" in sys.argv:
                    print(*(f"{make.__name__:>10} {c:<40} {s * 1e3:8.1f} ms" for c, s in found.items()), sep="\n")
    header = ("trace", "verbs", "open + look over, ms", "median, ms", "slowest, ms", "memory, MB")
    table(f"verbs on traces of {size:,} events, each with the screen that it draws", rows, header)


if __name__ == "__main__":
    main()
