"""Traces whose events are packed as they should be and mean what cannot be: refused at the door, or read in little time
and memory."""

from __future__ import annotations

import os
import sqlite3
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import gradviz
import gradviz.engine as torch
from gradviz.events.kinds import Kind
from gradviz.explain.origin import why
from gradviz.sources.record import record
from gradviz.tracefile import TraceError, open_trace
from tests.damage import subjects
from tests.damage.decoded import BASE, TENSOR, Happening, Run
from tests.damage.of_meaning import shift
from tests.invoked import invoked

_MEMORY = 64 << 20  # bytes


@pytest.fixture
def training(tmp_path: Path) -> Path:
    path = tmp_path / "training.gradviz"
    subjects.make("training", path)
    return path


@pytest.fixture
def lesson(tmp_path: Path) -> Path:
    path = tmp_path / "lesson.gradviz"
    subjects.make("lesson", path)
    return path


def refused(path: Path, why_it_is: str) -> None:
    with pytest.raises(TraceError, match=why_it_is), open_trace(path) as trace:
        assert len(trace.events)


# --- links


def test_a_tensor_that_was_made_from_itself_is_refused(training: Path) -> None:
    with Run(training) as run:
        made = run.of(Kind.TENSOR)[0]
        made.columns[2] = made.columns[0]
    refused(training, "made from one that is not earlier")


def test_tensors_that_were_made_from_each_other_are_refused(training: Path) -> None:
    with Run(training) as run:
        one, other = run.of(Kind.TENSOR)[:2]
        one.columns[2], other.columns[2] = other.columns[0], one.columns[0]
    refused(training, "made from one that is not earlier")


def test_a_long_row_of_copies_does_not_keep_check_busy(training: Path) -> None:
    with Run(training) as run:
        made = run.of(Kind.TENSOR)[0]
        new = [made.again() for _ in range(3000)]
        for number, copy in enumerate(new, 10_000):
            copy.columns[0], copy.columns[2] = number, number - 1
            for numbers, _ in copy.states:
                numbers[TENSOR], numbers[BASE] = number, 0
        run.events[1:1] = new
    with open_trace(training) as trace:
        told = 0
        made_of = type(trace).table

        def counted(self: object, kind: Kind) -> object:
            nonlocal told
            told += 1
            return made_of(self, kind)  # type: ignore[arg-type]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(trace), "table", counted)
            gradviz.check(training)
    assert told < 400 * 3000  # without a bound it is half the square of 3,000


# --- numbers


@pytest.mark.slow
@pytest.mark.parametrize(
    ("means", "by"),
    [
        ("tensor", 1 << 28),
        ("tensor", 1 << 31),
        ("node", 1 << 28),
        ("node", 1 << 31),
        ("scope", 1 << 31),
        ("pass", 1 << 31),
    ],
)
def test_high_numbers_take_no_more_memory(training: Path, means: str, by: int) -> None:
    before = [finding.rule for finding in gradviz.check(training)]
    shift(training, means, by)
    tracemalloc.start()
    try:
        after = [finding.rule for finding in gradviz.check(training)]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after == before
    assert peak < _MEMORY


def test_texts_with_high_numbers_take_no_more_memory(training: Path) -> None:
    with closing(sqlite3.connect(training, isolation_level=None)) as connection:
        connection.execute("INSERT INTO strings VALUES (?, 'far away')", ((1 << 32) - 1,))
    tracemalloc.start()
    try:
        done = invoked(["step", str(training), "--commands", "until op == 'linear'"])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert done.exit_code == 0
    assert peak < _MEMORY


# --- lists and elements


def test_a_node_that_received_nothing_is_refused(training: Path) -> None:
    with Run(training) as run:
        run.of(Kind.RECEIVED)[0].lists[0].clear()
    refused(training, "too few")


def test_gradients_of_whole_numbers_are_read(lesson: Path) -> None:
    assert why(lesson, "w").number
    with closing(sqlite3.connect(lesson, isolation_level=None)) as connection:
        connection.execute("UPDATE forms SET dtype = 'int32' WHERE dtype = 'float32'")
    assert why(lesson, "w").number


def test_an_op_without_results_is_read(training: Path) -> None:
    with Run(training) as run:
        for op in run.of(Kind.OP):
            op.lists[1].clear()
    assert invoked(["check", str(training)], env={"GRADVIZ_DEBUG": "1"}).exit_code in (0, 1)


def test_statistics_that_no_value_has_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with record(path, values="stats", with_torch=False):
        w = torch.ones(100, requires_grad=True)
        (w * torch.tensor([w.sum().item()])).sum().backward()
    with Run(path) as run:
        for event in run.events:
            event.states = [
                (numbers, b"\xff" * 55 + b"\x40" if len(value) == 56 else value) for numbers, value in event.states
            ]
    with open_trace(path) as trace:
        row = int(np.flatnonzero(trace.states.forms)[-1])
        with pytest.raises(TraceError, match="statistics"):
            trace.snapshot_of(row, row)


# --- nesting


def _nested(path: Path, depth: int) -> None:
    with Run(path) as run:
        entered, left = run.of(Kind.SCOPE_ENTERED)[0], run.of(Kind.SCOPE_LEFT)[0]
        at = run.events.index(run.of(Kind.OP)[2])
        run.events[at + 1 : at + 1] = _visits(left, depth)
        run.events[at:at] = _visits(entered, depth)


def _visits(event: Happening, count: int) -> list[Happening]:
    found = [event.again() for _ in range(count)]
    for number, visit in enumerate(found, 10_000):
        visit.columns[0] = number
    return found


def test_scopes_in_more_scopes_than_python_allows_are_refused(training: Path) -> None:
    _nested(training, 1001)
    refused(training, "scopes and passes are open at once")


def test_a_part_of_such_a_trace_is_refused_too(training: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _nested(training, 1001)
    monkeypatch.setattr("gradviz.tracefile.part.LONG", 0)
    done = invoked(["graph", str(training), "--pass", "1", "-o", str(training.with_suffix(".svg"))])
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "scopes and passes are open at once" in done.stderr


def test_scopes_nested_as_deep_as_allowed_are_drawn(training: Path) -> None:
    _nested(training, 990)
    picture = training.with_suffix(".json")
    assert invoked(["graph", str(training), "--all", "-o", str(picture)]).exit_code == 0
    assert picture.stat().st_size < 10 << 20


@pytest.mark.slow
def test_a_place_with_more_callers_than_are_recorded_is_refused(training: Path) -> None:
    with closing(sqlite3.connect(training, isolation_level=None)) as connection:
        like = connection.execute("SELECT * FROM sites LIMIT 1").fetchone()[2:]
        rows = [(number, number - 1, *like) for number in range(1000, 1200)]
        connection.executemany(f"INSERT INTO sites VALUES (?, ?{', ?' * len(like)})", rows)
    refused(training, "more callers")


# --- files


def test_a_file_that_may_not_be_read_is_said_so_in_one_line(training: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path, count: int) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("gradviz.tracefile.opening.first_bytes", denied)
    monkeypatch.setattr(os, "access", lambda *_, **__: False)  # which is what Click asks
    for command in ("info", "check", "graph", "report", "diff"):
        done = invoked([command, str(training), *([str(training)] if command == "diff" else [])])
        assert done.exit_code == 2
        assert done.stderr == f"gradviz: {training} may not be read: permission denied\n"


def test_complex_gradients_give_no_warning(
    lesson: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(lesson.parent)
    with closing(sqlite3.connect(lesson, isolation_level=None)) as connection:
        forms = connection.execute("SELECT id, shape FROM forms WHERE dtype = 'float32'").fetchall()
        connection.execute("UPDATE forms SET dtype = 'complex64' WHERE dtype = 'float32'")
    with Run(lesson) as run:
        for event in run.events:
            event.states = [_twice(state, {number for number, _ in forms}) for state in event.states]
    for command in (["why", str(lesson), "w", "--format", "json"], ["check", str(lesson)]):
        assert invoked(command).exit_code in (0, 1)
    assert invoked(["step", str(lesson), "--commands", "next-backward; next 5; why"]).exit_code == 0
    assert not [str(warning.message) for warning in recwarn if "omplex" in str(warning.message)]


def _twice(state: tuple[list[int], bytes], forms: set[int]) -> tuple[list[int], bytes]:
    numbers, value = state
    return numbers, value * 2 if numbers[3] in forms and numbers[4] >> 8 == 1 else value
