"""What `gradviz debug` costs beside `gradviz trace`: while nothing stops it, and at a stop after many events."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from common import machine, table
from recording import CHAIN, printed

from gradviz.live.debugger import Debugger
from gradviz.sources.script import Target, run
from gradviz.step.breakpoints import breakpoint_of
from gradviz.step.state import Resume, Session, Settings

BREAKPOINTS = {
    "none": [],
    "no NaN either": ["--no-nan"],
    "op log": ["--break", "op log"],
    "w (a name)": ["--break", "tensor w"],
    "line 3": ["--break", "line 3"],
    "nan": ["--break", "nan"],
    "out.max > 1e9": ["--break", "out.max > 1e9"],
    "grad.rms > 1e9": ["--break", "grad.rms > 1e9"],
}
ROUNDS = 3
MANY = """
import gradviz.engine as torch
x = torch.ones(4, requires_grad=True)
c = torch.ones(4) * 1.0001
for i in range({passes}):
    h = x
    for _ in range(330):
        h = h * c
    x.grad = None
    h.backward(torch.ones(4))
{end}
"""


def running(folder: Path) -> None:
    """The time of a program under the debugger, as a ratio of its time under `gradviz trace`."""
    (folder / "program.py").write_text(CHAIN)
    command = [sys.executable, "-m", "gradviz"]
    times: dict[str, list[float]] = {name: [] for name in ("trace", *BREAKPOINTS)}
    for _ in range(ROUNDS):
        times["trace"] += printed([*command, "trace", "program.py"], folder)
        for name, options in BREAKPOINTS.items():
            debug = [*command, "debug", "--run", *options, "--commands", "continue", "program.py"]
            times[name] += printed(debug, folder)
    middle = {name: sorted(taken)[ROUNDS // 2] for name, taken in times.items()}
    rows = [(name, f"{middle[name] / middle['trace']:.2f}") for name in BREAKPOINTS]
    table("a program under gradviz debug, nothing stops it", rows, ("breakpoint", "time, gradviz trace = 1"))


class Stopwatch:
    """Reads stops, and notes how long each took to come up once the script had got there."""

    wants_the_end = False

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self.began = 0.0

    def read(self, session: Session) -> None:
        """Show the stop, step on by one event a few times, and go on."""
        if self.began:
            from rich.console import Console

            from gradviz.step.screen import Screen

            with open("/dev/null", "w") as nowhere:
                Console(file=nowhere, width=80, height=24).print(Screen(session))
            shown = time.perf_counter() - self.began
            self.rows.append((f"{session.trace.count:,}", f"{shown:.2f}"))
        self.began = time.perf_counter()
        session.go_on(Resume(events=1) if len(self.rows) < 4 else Resume())


def stopping(folder: Path) -> None:
    """How long a stop takes after a million events."""
    rows = []
    for passes in (100, 1000):
        (folder / "many.py").write_text(MANY.format(passes=passes, end="y = x.log()\n" + "y = y * 2\n" * 8))
        settings, watch = Settings(), Stopwatch()
        settings.breakpoints.add(breakpoint_of("op log", live=True))
        debugger = Debugger(folder / "many.gradviz", watch, settings, at_start=False)
        run(Target(str(folder / "many.py"), False, ()), folder / "many.gradviz", companion=debugger)
        rows += watch.rows[:3]
    table("one step more at a stop: flush, open, screen", rows, ("events so far", "s"))


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        running(Path(name))
        stopping(Path(name))


if __name__ == "__main__":
    main()
