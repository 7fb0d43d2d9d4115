"""A capsule: one file with a single pass of a trace, and the other events that it needs."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.tracefile.expected import as_is
from gradviz.tracefile.file import journal_of
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.ring import drop_unused, segment_of, standing, thin

CAPSULE = "capsule"  # in the notes of a run: the number of the only pass


def write_capsule(trace: Trace, path: Path, number: int, needed: np.ndarray) -> None:
    """Write pass `number` of a trace to `path`, in place of a file there: the events since the pass before it, the
    optimizer's step behind it, the events `needed` from elsewhere, and the events with the state of their tensors.
    Raises OSError if the file cannot be written, TraceError if the trace is damaged."""
    if path.exists() and path.samefile(trace.path):
        raise OSError(f"{path} is the trace itself: choose another name for the capsule")
    if trace.is_being_recorded:
        raise OSError(f"{trace.path} is being recorded: take a capsule when its run has ended")
    trace.reach_all()
    path.unlink(missing_ok=True)
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            trace._connection.backup(connection)
            _thin(connection, path, number, needed)
    except sqlite3.Error as error:
        _take_away(path)
        raise OSError(f"cannot write {path}: {error}") from error
    except BaseException:
        _take_away(path)
        raise


def _thin(connection: sqlite3.Connection, path: Path, number: int, needed: np.ndarray) -> None:
    """Remove from a copy of a trace what the pass does not need."""
    copy = Trace(path, connection)
    whole = np.zeros(copy.count, bool)
    start, end = segment_of(copy, number)
    stop = _end_of_step(copy, end)
    whole[start:stop] = True
    kept = whole | standing(copy, whole)
    kept[stop:] &= copy.kinds[stop:] == Kind.NAMED  # events of later passes and steps do not belong to it
    kept[needed] = True
    cursor = connection.cursor()
    cursor.execute("BEGIN EXCLUSIVE")
    _unpack(cursor, copy, kept)
    copy = Trace(path, connection)
    for table in ("skipped", "contents", "site_ops"):
        cursor.execute(f"DELETE FROM {table}")
    # As a reader shows them: they had not ended yet.
    cursor.execute(
        "UPDATE passes SET last = NULL, nodes = NULL, digest = NULL WHERE last >= ?", (copy.count,)
    )
    drop_unused(cursor, copy, kept, "strings", "text")
    drop_unused(cursor, copy, kept, "rules", "rule")
    thin(cursor, copy, kept, whole)
    cursor.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (CAPSULE, str(number)))
    cursor.execute("COMMIT")
    cursor.execute("VACUUM")
    cursor.execute("PRAGMA journal_mode = DELETE")


def _end_of_step(copy: Trace, end: int) -> int:
    """The end of the optimizer's step between the end of a pass and the next pass; the end of the pass if there is no
    step."""
    began, steps = copy.indices(Kind.PASS_BEGAN), copy.indices(Kind.STEPPED)
    following = min(began[began >= end].tolist(), default=copy.count)
    following_steps = steps[(steps >= end) & (steps < following)]
    if not len(following_steps):
        return end
    stop = int(following_steps[-1]) + 1
    while stop < copy.count and copy.kinds[stop] == Kind.MUTATED:
        stop += 1
    return stop


def _unpack(cursor: sqlite3.Cursor, copy: Trace, kept: np.ndarray) -> None:
    """Keep each chunk as it is, no longer packed with the chunks before it, so that chunks can be removed. Values are
    kept only for chunks with events that stay."""
    unpacked = []
    for place, (number, first, count, _) in enumerate(copy.chunks.list):
        here = slice(first, first + count)
        values = copy.chunks.values(place) if kept[here].any() else b""
        links, states = copy._links_of(place).tobytes(), copy.chunks.one("states", place).tobytes()
        unpacked.append((number, (copy.events[here].tobytes(), links, states, values)))
    for number, parts in unpacked:
        for table, data in zip(("events", "links", "states", "payloads"), parts, strict=True):
            cursor.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (as_is(data), number))
    cursor.execute("UPDATE chunks SET since = id")


def _take_away(path: Path) -> None:
    for left in (path, journal_of(path)):
        with suppress(OSError):
            left.unlink(missing_ok=True)
