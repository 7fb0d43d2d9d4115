"""The stepper by lines of the program, with the variables that hold tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradviz
from gradviz.query import Query
from gradviz.sources.script import Target, run
from gradviz.step.leaves import line_ends, named_tensors
from gradviz.step.plain import script
from gradviz.step.screen import Screen
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import Trace, open_trace
from tests.invoked import invoked

PROGRAM = """\
import torch
w = torch.tensor([3.0, 4.0], requires_grad=True)
loss = (w * 2).sum()
loss.backward()
w.grad.zero_()
for _ in range(2):
    y = w + 1
    z = y * y
"""


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    source, path = tmp_path / "p.py", tmp_path / "p.gradviz"
    source.write_text(PROGRAM)
    assert run(Target(str(source), False, []), path, engine="numpy").status == 0
    return open_trace(path)


def lines_gone_through(session: Session, command: str) -> list[int]:
    found = []
    while True:
        before = session.position
        obey(session, command)
        if session.position == before:
            return found
        site, _ = session.stop.place
        assert site is not None
        found.append(site.place.line)


def test_a_key_goes_from_line_to_line_and_a_loop_is_gone_through(trace: Trace) -> None:
    session = Session(trace)
    assert lines_gone_through(session, "line") == [3, 4, 5, 7, 8, 7, 8]
    assert session.message == "no later line"
    assert lines_gone_through(session, "line-back") == [7, 8, 7, 5, 4, 3, 2]


def test_a_pass_belongs_to_the_line_that_began_it(trace: Trace) -> None:
    (backward,) = trace.passes
    assert backward.last in line_ends(Query(trace)).tolist()


def test_from_the_middle_of_a_line_its_end_is_next(trace: Trace) -> None:
    session = Session(trace)
    obey(session, "until op == 'mul'")
    obey(session, "line")
    site, _ = session.stop.place
    assert site is not None
    assert site.place.line == 3


def test_the_variables_stand_below_and_what_the_line_changed_is_marked(trace: Trace) -> None:
    text = "\n".join(script(Session(trace), ["line 2"]))
    table = text[text.index("  variables\n") :].splitlines()[1:]
    assert table[0].split() == ["value", "requires_grad", "is_leaf", "grad_fn", "grad"]
    assert table[1].split() == ["●", "w", "[3,", "4]", "True", "True", "None", "[2,", "2]"]
    assert table[2].split() == ["loss", "14", "True", "False", "SumBackward0", "None"]


def test_of_a_name_the_newest_tensor_is_meant(trace: Trace) -> None:
    query = Query(trace)
    names = [query.labels.of(tensor) for tensor in named_tensors(query, trace.count - 1)]
    assert names == ["w", "loss", "y", "z"]


def test_variables_shows_them_or_the_leaves(trace: Trace) -> None:
    session = Session(trace)
    obey(session, "last")
    seen = []
    for _ in range(2):
        obey(session, "variables")
        seen.append("\n".join(line.plain for line in Screen(session).lines(80, 24)))
    assert "── variables ─" in seen[0]
    assert "── leaves ─" in seen[1]


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (120, 40), (200, 60)], ids=str)
def test_the_table_fits_the_screen(tmp_path: Path, size: tuple[int, int]) -> None:
    import gradviz.engine as torch

    with gradviz.record(tmp_path / "many.gradviz"):
        a_variable_with_a_long_name = torch.randn(5, requires_grad=True) * 1e-5
        b = a_variable_with_a_long_name.exp()
        c, d, e = b * 1, b * 2, b * 3
        (c + d + e).sum().backward()
    with open_trace(tmp_path / "many.gradviz") as opened:
        session = Session(opened)
        obey(session, "line 9")
        width, height = size
        lines = Screen(session).lines(width, height)
        assert len(lines) == height
        assert all(line.cell_len == width for line in lines)


def test_a_trace_is_stepped_in_another_language(trace: Trace) -> None:
    done = invoked(["step", str(trace.path), "--lang", "ko", "--commands", "last; goto 99"])
    assert "> last\n이벤트 " in done.stdout
    assert "event" not in done.stdout
    assert done.exit_code == 2
    assert "이벤트 99" in done.stderr


def test_an_unknown_command_is_told_in_the_language_that_is_asked_for(trace: Trace) -> None:
    done = invoked(["step", str(trace.path), "--lang", "ko", "--commands", "last; frobnicate"])
    assert done.exit_code == 2
    assert "모르는 명령 'frobnicate'" in done.stderr


def test_who_says_whether_the_value_or_the_gradient_changed(trace: Trace) -> None:
    session = Session(trace)
    told = []
    for command in ("last", "who w", "who w", "who w"):
        obey(session, command)
        told.append(session.message)
        session.message = ""
    assert told[1:] == [
        "w.grad changed here, 1 earlier change",
        "w.grad changed here, its first change",
        "w changed here, its first change",
    ]
