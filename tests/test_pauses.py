"""A running script is stopped at the events that a breakpoint means in the trace of the whole run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import EXAMPLES, PROGRAMS

from gradviz.debug.debugger import Debugger
from gradviz.sources.script import Target, run
from gradviz.step.breakpoints import breakpoint_of, events_of
from gradviz.step.columns import TraceColumns
from gradviz.step.facts import Facts
from gradviz.step.state import Resume, Session, Settings
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace

WHATS = (
    "op mul", "op log", "grad_fn MulBackward0", "AddBackward0", "nan", "inf", "mutation", "error", "backward",
    "not forward", "line 12", "line 20", "line == 9", 'file ~ "py" and version > 0', "depth > 1", "pass == 2",
    'kind == "accumulated" and grad.absmax > 1', "grad.rms > 0.5", "grad.min < 0", "in.max > 2", "out.mean > 1",
    "out.size > 1 and op == 'pow'", "in.zeros > 0", "tangent.rms > 0", 'how == "add_"', 'shape ~ "x"',
    'scope != "" and kind == "op"', 'hook ~ "h"', "event == 7 or event == 9", 'not (op == "mul" or forward)',
    'kind == "produced" and grad_fn ~ "Mul"', 'line == 10 and kind == "received"',
)  # fmt: skip


class Notes:
    """Notes every stop, and goes on to the next."""

    wants_the_end = False

    def __init__(self) -> None:
        self.stops: dict[int, set[int]] = {}

    def read(self, session: Session) -> None:
        self._note(session)
        if session.position < session.last:  # two events were told together
            obey(session, "continue")
            self._note(session)
        session.go_on(Resume())

    def _note(self, session: Session) -> None:
        for numbers in re.findall(r"breakpoint ([0-9, ]+):", session.message):
            for number in numbers.split(","):
                self.stops.setdefault(int(number), set()).add(session.position)


def stops(program: Path, folder: Path, whats: tuple[str, ...]) -> tuple[Settings, dict[int, set[int]]]:
    settings, notes = Settings(), Notes()
    for what in whats:
        settings.breakpoints.add(breakpoint_of(what, live=True))
    debugger = Debugger(folder / "run.gradviz", notes, settings, at_start=False, bad=())
    outcome = run(Target(str(program), False, ()), folder / "run.gradviz", companion=debugger)
    assert outcome.status == program.with_suffix(".exc").exists()
    assert not debugger.trouble
    return settings, notes.stops


@pytest.mark.parametrize("program", [*PROGRAMS, *EXAMPLES], ids=lambda path: path.stem)
def test_it_stops_where_the_whole_trace_says(program: Path, tmp_path: Path) -> None:
    settings, found = stops(program, tmp_path, WHATS)
    with open_trace(tmp_path / "run.gradviz") as trace:
        facts = Facts(trace)
        columns = TraceColumns(facts)
        for number, known in settings.breakpoints.by_number.items():
            assert sorted(found.get(number, ())) == events_of(known, facts, columns).tolist(), known.text
