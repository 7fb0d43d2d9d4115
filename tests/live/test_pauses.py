"""A running script is stopped at the events that a breakpoint means in the trace of the whole run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.events.kinds import Kind
from gradviz.live.debugger import Debugger
from gradviz.query.predicate_columns import TraceFields
from gradviz.sources.script import Target, run
from gradviz.step.breakpoints import breakpoint_of, events_of
from gradviz.step.state import Resume, Session, Settings
from gradviz.step.verbs import obey
from gradviz.tracefile import Recorder, open_trace
from gradviz.words import Words
from tests.conftest import EXAMPLES, PROGRAMS

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

    def __init__(self, look: Callable[[Session], None] | None) -> None:
        self.stops: dict[int, set[int]] = {}
        self.look = look

    def read(self, session: Session) -> None:
        self._note(session)
        if session.position < session.last:  # two events were told together
            obey(session, "continue")
            self._note(session)
        if self.look is not None:
            self.look(session)
        session.go_on(Resume())

    def _note(self, session: Session) -> None:
        for numbers in re.findall(r"breakpoint ([0-9, ]+):", session.message):
            for number in numbers.split(","):
                self.stops.setdefault(int(number), set()).add(session.position)


def stops(
    program: Path, folder: Path, whats: tuple[str, ...], look: Callable[[Session], None] | None = None
) -> tuple[Settings, dict[int, set[int]]]:
    """Runs a program with breakpoints; which events each stopped at. `look` is called at each stop."""
    settings, notes = Settings(), Notes(look)
    for what in whats:
        settings.breakpoints.add(breakpoint_of(what, live=True))
    debugger = Debugger(folder / "run.gradviz", notes, settings, at_start=False, bad=())
    outcome = run(Target(str(program), False, ()), folder / "run.gradviz", companion=debugger)
    assert outcome.status == program.with_suffix(".exc").exists()
    assert not debugger.trouble
    return settings, notes.stops


TRAINING = """\
import gradviz.engine as torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for epoch in range(3):
    optimizer.zero_grad()
    out = model(torch.ones(5, 3))
    loss = torch.nn.functional.mse_loss(out, torch.zeros(5, 1))
    loss.register_hook(lambda g: g * 2)
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model[0].weight.data.mul_(0.9)
"""
SHORT = [
    path for path in (*PROGRAMS, *EXAMPLES) if "for epoch" not in (text := path.read_text()) and "range(" not in text
]


@pytest.fixture
def training(tmp_path: Path) -> Path:
    (tmp_path / "training.py").write_text(TRAINING)
    return tmp_path / "training.py"


def test_it_stops_in_training_where_the_whole_trace_says(training: Path, tmp_path: Path) -> None:
    same_stops(training, tmp_path, (*WHATS, "scope model.2", "module model"))


@pytest.mark.slow
def test_a_name_counts_from_where_it_was_given(training: Path, tmp_path: Path) -> None:
    settings, found = stops(training, tmp_path, ("parameter model.0.weight", "tensor out"))
    with open_trace(tmp_path / "run.gradviz") as trace:
        words = Words(trace)
        columns = TraceFields(words.query)
        parameter, out = (events_of(known, words, columns) for known in settings.breakpoints.by_number.values())
        named = int(trace.indices(Kind.NAMED)[0])
        assert sorted(found[1]) == parameter[parameter >= named].tolist()
        assert set(out.tolist()) <= found[2]


@pytest.mark.parametrize("what", ["model.0.weight", "model.0.weight.grad", "model.0.weight.value", "loss", "out.grad"])
def test_a_watch_stops_where_the_tensor_changes(training: Path, tmp_path: Path, what: str) -> None:
    def watch(session: Session) -> None:
        if 2 not in session.breakpoints.by_number:
            obey(session, f"watch {what}")

    text = TRAINING.replace("loss.reg", "out.retain_grad(); out.grad; loss.reg")
    training.write_text(text)
    settings, found = stops(training, tmp_path, ("op mse_loss",), watch)
    with open_trace(tmp_path / "run.gradviz") as trace:
        words = Words(trace)
        expected = events_of(settings.breakpoints.by_number[2], words, TraceFields(words.query))
        assert sorted(found.get(2, ())) == expected[expected > min(found[1])].tolist()
        assert len(expected)


@pytest.mark.slow
@pytest.mark.parametrize("program", SHORT, ids=lambda path: path.stem)
def test_it_stops_where_the_whole_trace_says(program: Path, tmp_path: Path) -> None:
    same_stops(program, tmp_path, WHATS)


def same_stops(program: Path, folder: Path, whats: tuple[str, ...]) -> None:
    settings, found = stops(program, folder, whats)
    with open_trace(folder / "run.gradviz") as trace:
        words = Words(trace)
        columns = TraceFields(words.query)
        for number, known in settings.breakpoints.by_number.items():
            assert sorted(found.get(number, ())) == events_of(known, words, columns).tolist(), known.text


def test_a_script_whose_trace_cannot_be_written_goes_on(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(recorder: Recorder) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Recorder, "flush", full)
    training.write_text(TRAINING + "print('done')")
    notes = Notes(None)
    debugger = Debugger(tmp_path / "run.gradviz", notes, Settings())
    assert run(Target(str(training), False, ()), tmp_path / "run.gradviz", companion=debugger).status == 0
    assert capsys.readouterr().out == "done\n"
    assert "no space left" in debugger.trouble
    assert not notes.stops
