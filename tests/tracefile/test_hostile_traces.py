"""A trace from a stranger is refused in one line, before anything large is made of it; and what is no damage is not
called that. `test_fuzz.py` does the same by chance."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradviz.engine as torch
from gradviz.cli.main import main
from gradviz.events.event_layout import ROW
from gradviz.events.kinds import Kind
from gradviz.explain.origin import NoAnswer, why
from gradviz.query.passes import recording as command_that_records
from gradviz.query.sorted_tables import Nesting
from gradviz.sources.record import record
from gradviz.tracefile import Recorder, Trace, TraceError, open_trace
from gradviz.tracefile.database import STATE, Database
from gradviz.tracefile.expected import as_is
from gradviz.words.escape import clean, json_text
from tests.damage.packed import packed
from tests.invoked import invoked
from tests.warm import python


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A recorded trace in a directory of its own."""
    folder = tmp_path / "received"
    folder.mkdir()
    path = folder / "run.gradviz"
    with record(path, values="full", with_torch=False):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = x.view(2) ** 2
        y.sum().backward()
    return path


def change(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement, values)


def read_all(path: Path) -> None:
    with open_trace(path) as trace:
        events = list(trace)
        for kind in Kind:
            for field in trace.table(kind).layout.lists:
                trace.table(kind).lists(field.name)
        assert len(trace.states.stats) == len(trace.states.checksums)
        assert len(trace.passes) + len(trace.errors) + len(trace.sites) <= len(events) + 100
        for tensor in np.unique(trace.states.tensors).tolist():
            trace.snapshot(tensor)


def refused(path: Path, why: str) -> None:
    with pytest.raises(TraceError, match=why) as caught:
        read_all(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 200


# --- the schema

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT 'k' || i AS key, 'v' AS value FROM n"


@pytest.mark.parametrize(
    "statements",
    [
        ["ALTER TABLE meta RENAME TO old", f"CREATE VIEW meta AS {ENDLESS}"],
        [
            "ALTER TABLE events RENAME TO old",
            "CREATE VIEW events AS SELECT chunk, zeroblob(900000000) AS data FROM old",
        ],
        ["CREATE VIEW more AS SELECT 1"],
        ["CREATE TRIGGER t AFTER INSERT ON meta BEGIN DELETE FROM meta; END"],
        ["CREATE INDEX i ON strings (abs(id))"],
        ["CREATE TABLE more (x)"],
        ["DROP TABLE rules"],
        ["ALTER TABLE strings ADD COLUMN more DEFAULT 7"],
    ],
)
def test_only_the_tables_of_a_trace_are_read(trace: Path, statements: list[str]) -> None:
    change(trace, *statements)
    refused(trace, "its tables are not those of a trace")


def test_a_schema_that_says_it_is_huge_is_refused(tmp_path: Path) -> None:
    """SQLite 3.40 says of some that memory is short, 3.53 of none."""
    path, huge = tmp_path / "run.gradviz", 0
    with record(path, with_torch=False):
        torch.ones(2)
    sound = path.read_bytes()
    for entry in re.finditer(rb"table(\w+?)\1.CREATE TABLE", sound):
        path.write_bytes(sound[: entry.start() - 9] + b"\xff" * 9 + sound[entry.start() :])
        with closing(sqlite3.connect(path)) as connection:
            try:
                connection.execute("SELECT sql FROM sqlite_schema").fetchall()
            except (sqlite3.Error, ValueError):
                refused(path, "damaged")
            except MemoryError:
                huge += 1
                refused(path, "its tables are not those of a trace")
    assert huge or sqlite3.sqlite_version_info > (3, 41)


def test_a_query_takes_no_more_work_than_the_size_of_the_file_allows(trace: Path) -> None:
    with open_trace(trace) as opened:
        connection = opened._connection
        assert isinstance(connection, Database)
        with pytest.raises(sqlite3.OperationalError, match="interrupted"):
            connection.execute(f"SELECT count(*) FROM ({ENDLESS})").fetchone()
        with pytest.raises(sqlite3.DataError, match="too big"):
            connection.execute("SELECT zeroblob(900000000)").fetchone()
        assert opened.meta["ended"] == "ok"


@pytest.mark.slow
def test_an_array_that_stands_for_more_than_its_size_allows_is_refused(trace: Path) -> None:
    length = (1 << 24) // 28 * 28
    packed = struct.pack("<5I", 1, 7, length, 0, 0) + zlib.compress(b"")
    with closing(sqlite3.connect(trace, isolation_level=None)) as connection:
        last, first = connection.execute("SELECT max(id), max(first + count) FROM chunks").fetchone()
        for number in range(last + 1, last + 100):
            row = (number, first, length // 28, 0.0, number)
            connection.execute("INSERT INTO chunks (id, first, count, time, since) VALUES (?, ?, ?, ?, ?)", row)
            for table in ("events", "links", "states", "payloads"):
                connection.execute(f"INSERT INTO {table} (chunk, data) VALUES (?, ?)", (number, packed))
            first += length // 28
    refused(trace, "more than its size allows")


# --- cells


@pytest.mark.parametrize(
    ("statement", "value", "why"),
    [
        ("UPDATE forms SET shape = ?", "[NaN]", "no number of JSON"),
        ("UPDATE forms SET shape = ?", "[Infinity]", "no number of JSON"),
        ("UPDATE forms SET shape = ?", "[1.5]", "no list of sizes"),
        ("UPDATE forms SET shape = ?", "[4611686018427387904, 4]", "beyond all bounds"),
        ("UPDATE forms SET shape = ?", "[" * 100_000, "nested too deep"),
        ("UPDATE forms SET dtype = ?", "\x9b31m", "no word"),
        ("UPDATE sites SET names = ?", '[{"a": 1}]', "no texts"),
        ("UPDATE sites SET line = ?", 1 << 62, "beyond all bounds"),
        ("UPDATE sites SET id = id + ?", 1 << 31, "beyond all bounds"),
        ("UPDATE rules SET inputs = ?", "[" * 50 + "]" * 50, "nested too deep"),
        ("UPDATE chunks SET count = ?", 1 << 40, "beyond all bounds"),
        ("UPDATE passes SET first = ?", 0, "PASS_BEGAN at an event that is none"),
        ("UPDATE passes SET last = ?", 1, "PASS_ENDED at an event that is none"),
        ("UPDATE passes SET number = ?", 7, "names a pass that is not in the trace"),
        ("DELETE FROM strings WHERE id > ?", 1, "names something that is not in the trace"),
        ("DELETE FROM sites WHERE id > ?", 1, "that is not in the trace"),
        ("UPDATE strings SET text = CAST(? AS TEXT)", b"\xed\xa0\x80", "decode"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(trace: Path, statement: str, value: Any, why: str) -> None:
    change(trace, statement, values=(value,))
    refused(trace, why)


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("number", 0, "a run of passes that cannot be"),
        ("passes", -1, "a run of passes that cannot be"),
        ("stride", 0, "a run of passes that cannot be"),
        ("last", 0, "a run of passes that cannot be"),
        ("passes", (1 << 32) - 1, "runs of passes beyond all bounds"),
        ("stride", (1 << 32) - 1, "runs of passes beyond all bounds"),
        ("number", (1 << 32) - 1, "runs of passes beyond all bounds"),
        ("passes", 1 << 40, "beyond all bounds"),
        ("number", 1, "an event names something that is not in the trace"),
        ("stride", 1, "PASS_BEGAN at an event that is none"),
        ("site", 99, "at a place that is not in the trace"),
    ],
)  # fmt: skip
def test_a_run_of_passes_that_cannot_be_is_refused(tmp_path: Path, column: str, value: int, why: str) -> None:
    path = tmp_path / "run.gradviz"
    with record(path, passes={1}, with_torch=False):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(9):
            (w * w).sum().backward()
    read_all(path)
    change(path, f"UPDATE skipped SET {column} = ? WHERE passes > 1", values=(value,))
    refused(path, why)


# --- events and states


def changed(path: Path, table: str, does: Callable[[np.ndarray], None]) -> None:
    """Change the packed array of the first chunk."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        (chunk,) = connection.execute("SELECT min(id) FROM chunks").fetchone()
        array = np.frombuffer(packed(connection, table, chunk), {"events": ROW, "states": STATE}[table]).copy()
        does(array)
        connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (as_is(array.tobytes()), chunk))


def of_kind(rows: np.ndarray, kind: Kind) -> np.ndarray:
    return np.flatnonzero((rows["head"] & 0xFF) == kind)


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("head", Kind.OP, 99),
        ("head", Kind.OP, 0),
        ("site", Kind.OP, 2**32 - 1),
        ("a", Kind.OP, 2**32 - 1),  # the text of its name
        ("c", Kind.OP, 5000),  # its rule
        ("c", Kind.NODE, 2**31),  # its op, before the first event
        ("c", Kind.RECEIVED, 8),  # its pass
        ("links", Kind.OP, 0),
        ("links", Kind.PASS_ENDED, 1),
        ("links", Kind.PRODUCED, 3),
    ],
)
def test_an_event_that_names_what_there_is_not_is_refused(trace: Path, column: str, kind: Kind, value: int) -> None:
    def does(rows: np.ndarray) -> None:
        rows[column][of_kind(rows, kind)[0]] = value

    changed(trace, "events", does)
    refused(trace, "names|links|place|kind")


@pytest.mark.parametrize(
    ("column", "value", "why"),
    [
        ("form", 4_000_000_000, "form"),
        ("what", 4 << 8, "form, or a value"),
        ("length", 2**32 - 1, "does not fit|missing"),
        ("event", 2**32 - 1, "no event of its chunk|order"),
        ("base", 1, "view of itself"),
    ],
)
def test_a_state_that_cannot_be_is_refused(trace: Path, column: str, value: int, why: str) -> None:
    def does(states: np.ndarray) -> None:
        states["tensor"][0] = 1
        states[column][0] = value

    changed(trace, "states", does)
    refused(trace, why)


# --- what is no damage


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no named pipes among its files")
def test_a_trace_whose_script_is_a_pipe_is_checked_and_not_waited_for(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import gradviz.engine as torch\n"
        "w = torch.ones(2, requires_grad=True)\n"
        "for _ in range(3):\n"
        "    loss = w.sum()\n"
        "    loss.backward()\n"
        "    w.data -= w.grad\n"
    )
    with contextlib.chdir(tmp_path):
        assert invoked(["trace", "script.py"]).exit_code == 0
        script.unlink()
        os.mkfifo(script)
        for command in (["check"], ["check", "--format", "json"], ["fix"]):
            done = subprocess.run(
                [python(), "-m", "gradviz", *command, "script.gradviz"], capture_output=True, text=True, timeout=60
            )
            assert "stale-gradient" in done.stdout + done.stderr


def test_a_locked_trace_is_called_locked(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **{**named, "timeout": 0.1}))
    writer = connect(trace, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TraceError, match="is locked by another program"):
        open_trace(trace)
    writer.execute("ROLLBACK")
    writer.close()


def test_a_reader_never_holds_the_file(trace: Path) -> None:
    with open_trace(trace) as read, closing(sqlite3.connect(trace, timeout=0, isolation_level=None)) as writer:
        for part in ("meta", "events", "states", "passes", "strings", "rules", "forms", "sites", "errors"):
            getattr(read, part)
            writer.execute("BEGIN EXCLUSIVE")
            writer.execute("ROLLBACK")
        for tensor in np.unique(read.states.tensors).tolist():
            read.snapshot(tensor)
            writer.execute("BEGIN EXCLUSIVE")
            writer.execute("ROLLBACK")


def test_to_open_a_trace_takes_no_locks_from_a_commit_of_this_process(tmp_path: Path) -> None:
    """POSIX takes all locks of a process from a file when the process closes it, through whichever descriptor."""
    path = tmp_path / "run.gradviz"
    write = "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    with recording(path) as (recorder, step):
        step(2)
        recorder.flush()
        recorder.writer.connection.execute("BEGIN IMMEDIATE")
        open_trace(path).close()
        other = subprocess.run([sys.executable, "-c", write, path], capture_output=True, text=True)
        recorder.writer.connection.execute("ROLLBACK")
    assert "database is locked" in other.stderr


def test_a_trace_that_is_recorded_is_read_as_it_was_when_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with recording(path) as (recorder, step):
        step(3)
        recorder.writer.flush()
        with open_trace(path) as read:
            step(5)
            recorder.writer.flush()
            assert [run.number for run in read.passes] == [1, 2, 3]
            assert all(run.last is not None and run.last < read.count for run in read.passes)
            assert len(list(read)) == read.count
        unended = open_trace(path)
        count = unended.count
    with unended:
        assert len(list(unended)) == len(unended.events) == count
        assert all(run.first < count and run.last is not None for run in unended.passes)


def test_a_ring_is_read_as_it_was_though_events_are_taken_from_it(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with recording(path, last=3) as (recorder, step):
        step(4)
        recorder.writer.flush()
        with open_trace(path) as read:
            step(40)
            recorder.writer.flush()
            assert len(list(read)) == read.count
            assert read.passes[-1].number == 4


class recording:
    """Record; the block gets the recorder, and a function that runs so many passes."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.recorders: list[Recorder] = []
        self.recording = record(path, through=self._through, with_torch=False, **settings)

    def _through(self, recorder: Recorder) -> Recorder:
        self.recorders.append(recorder)
        return recorder

    def __enter__(self) -> tuple[Recorder, Callable[[int], None]]:
        self.recording.__enter__()
        return self.recorders[0], self._step

    def __exit__(self, *error: Any) -> None:
        self.recording.__exit__(*error)

    def _step(self, passes: int) -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(passes):
            (x**2).sum().backward()


def test_a_trace_that_cannot_be_recovered_says_what_it_needs(
    trace: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tests.damage.subjects import _mid_commit

    _mid_commit(trace)
    open_trace(trace).close()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(TraceError, match="cannot be read: "):
        open_trace(trace)


# --- the commands' door


class TestTheDoor:
    """An error that nobody foresaw is one line and exit status 2; the traceback is let through where it is wanted."""

    @pytest.fixture
    def info(self, trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
        def info(error: BaseException) -> tuple[object, str]:
            def fails(query: object) -> None:
                raise error

            monkeypatch.setattr("gradviz.cli.info.overview", fails)
            with pytest.raises(SystemExit) as ended:
                main(["info", str(trace)], prog_name="gradviz")
            return ended.value.code, capsys.readouterr().err

        return info

    @pytest.mark.parametrize(
        ("error", "said"),
        [
            (ValueError("two\nlines \x9b"), r"info failed (ValueError: two lines \x9b)"),
            (KeyError("x" * 100_000), "info failed (KeyError: 'xxx"),
            (RecursionError("too deep"), "info failed (RecursionError"),
            (MemoryError(), "info needs more memory than there is"),
            (OSError(28, "No space left on device"), "info failed: [Errno 28] No space left on device"),
        ],
    )
    def test_what_nobody_foresaw_is_one_line(
        self, info: Any, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("GRADVIZ_DEBUG")
        status, errors = info(error)
        assert status == 2
        assert errors.startswith(f"gradviz: {said}")
        assert errors.count("\n") == 1
        assert len(errors) < 500

    def test_tracebacks_are_let_through_where_they_are_wanted(self, info: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            info(ZeroDivisionError())


def test_json_holds_no_character_that_a_terminal_obeys() -> None:
    data = {"na\x9bme": ["\u202e", "\u2028", "\U000e0001", "é", "\x1b[31m", "\ud800"]}
    told = json_text(data)
    assert all(character.isprintable() or character == "\n" for character in told)
    assert json.loads(told) == data
    assert "é" in told
    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"x": float("nan")})


@given(st.text())
def test_text_for_a_terminal_is_escaped_character_by_character(text: str) -> None:
    escaped = [c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text]
    assert clean(text) == "".join(escaped)


def test_very_long_texts_of_a_trace_are_shown_by_their_beginning(trace: Path) -> None:
    with sqlite3.connect(trace) as connection:
        connection.execute("UPDATE strings SET text = ?", ("\n" * 100_000,))
    connection.close()
    for command in (["step", str(trace), "--commands", "next 3; info; next-backward; why"], ["check", str(trace)]):
        done = invoked(command)
        assert done.exit_code in (0, 1)
        assert len(done.output) < 500_000


def test_a_trace_without_events_is_read(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz", with_torch=False):
        pass
    read_all(tmp_path / "run.gradviz")


@pytest.mark.slow
def test_a_sound_trace_of_each_sort_is_read(tmp_path: Path) -> None:
    from tests.damage.subjects import make_all

    for path in make_all(tmp_path).values():
        with open_trace(path) as read:
            assert isinstance(read, Trace)
        read_all(path)


def test_scopes_that_are_left_but_never_entered_are_no_spans(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with record(path, with_torch=False):
        net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 1)))
        for _ in range(2):
            net(torch.ones(1, 2)).sum().backward()

    def lose(rows: np.ndarray) -> None:
        """Where the first module was entered, one is left."""
        rows["head"][of_kind(rows, Kind.SCOPE_ENTERED)[0]] += Kind.SCOPE_LEFT - Kind.SCOPE_ENTERED

    with open_trace(path) as trace:
        whole = Nesting(trace, Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT).spans()
    changed(path, "events", lose)
    with open_trace(path) as trace:
        assert set(Nesting(trace, Kind.SCOPE_ENTERED, Kind.SCOPE_LEFT).spans()) < set(whole)


def test_why_does_without_gradients_of_no_pass(trace: Path) -> None:
    def lose(rows: np.ndarray) -> None:
        rows["c"][of_kind(rows, Kind.RECEIVED)] = 0

    assert why(trace, "x").number == 1
    changed(trace, "events", lose)
    with pytest.raises(NoAnswer, match="no pass gave x a gradient"):
        why(trace, "x")


def test_why_does_without_the_root_of_a_pass(trace: Path) -> None:
    with closing(sqlite3.connect(trace, isolation_level=None)) as connection:
        (chunk,) = connection.execute("SELECT min(id) FROM chunks").fetchone()
        rows = np.frombuffer(packed(connection, "events", chunk), ROW)
        links = np.frombuffer(packed(connection, "links", chunk), "<u4").copy()
    began = of_kind(rows, Kind.PASS_BEGAN)[0]
    own = slice(int(rows["links"][:began].sum()), int(rows["links"][: began + 1].sum()))
    with open_trace(trace) as opened:
        (root,) = opened.event(int(began)).roots
    at = own.start + links[own].tolist().index(root.node)
    assert links[at - 1] == 1  # root
    links[at - 1] = 0
    change(trace, "UPDATE links SET data = ? WHERE chunk = ?", values=(as_is(links.tobytes()), chunk))
    assert why(trace, "x").roots == ""


@pytest.mark.parametrize("program", ["train.py; echo", "$(echo x).py", 'a".py', "train.py\nmore", "-m pack OTHERS", ""])
def test_a_command_that_is_to_be_typed_holds_no_text_of_a_stranger(program: str) -> None:
    known = SimpleNamespace(meta={"program": program})
    assert command_that_records(known, "--passes 4") == "gradviz trace --passes 4 SCRIPT"
    for plain in ("train.py", "-m pack.age", '"my train.py" ARGUMENTS'):
        known = SimpleNamespace(meta={"program": plain})
        assert command_that_records(known, "--passes 4") == f"gradviz trace --passes 4 {plain}"
