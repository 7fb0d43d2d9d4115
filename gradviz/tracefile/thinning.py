"""Removes events from a trace while it is being written. The result is a trace like any other: events count from 0, and
their references to one another are still right."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import numpy as np

from gradviz.events.event_layout import COLUMNS, LAYOUTS
from gradviz.events.field_types import TEXT_PARTS
from gradviz.sets import distinct
from gradviz.tracefile.expected import as_is
from gradviz.tracefile.printed_lines import moved_count
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.schema import STATE

FEW = 1000  # up to so many unused texts stay in the file
_PACKED = ("events", "links", "states", "payloads")


def thin(cursor: sqlite3.Cursor, trace: Trace, kept: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Remove all events from the file except those `kept`. Events whose segments do not stay (`whole`) name no pass any
    more. Returns the place where each event is now, −1 for none."""
    moved = np.where(kept, np.cumsum(kept) - 1, -1)
    for place, (number, first, count, _) in enumerate(trace.chunks.list):
        here = slice(first, first + count)
        rows = trace.events[here].copy()
        links = trace._links_of(place).copy()
        changed = _mend(rows, links, first, moved, whole)
        if not kept[here].any():
            for table in _PACKED:
                cursor.execute(f"DELETE FROM {table} WHERE chunk = ?", (number,))
            cursor.execute("DELETE FROM chunks WHERE id = ?", (number,))
            continue
        states = trace.chunks.one("states", place).view(STATE).copy()
        if not kept[here].all():
            payload = _payload_of(trace, place, states, kept)
            cursor.execute("UPDATE payloads SET data = ? WHERE chunk = ?", (as_is(payload), number))
            links = links[np.repeat(kept[here], rows["links"])]
            rows, states, changed = rows[kept[here]], states[kept[states["event"]]], True
        states["event"] = moved[states["event"]]
        cursor.execute("UPDATE states SET data = ? WHERE chunk = ?", (as_is(states.tobytes()), number))
        if changed:
            cursor.execute("UPDATE events SET data = ? WHERE chunk = ?", (as_is(rows.tobytes()), number))
            cursor.execute("UPDATE links SET data = ? WHERE chunk = ?", (as_is(links.tobytes()), number))
        now = int(moved[here][kept[here]][0])
        cursor.execute("UPDATE chunks SET first = ?, count = ? WHERE id = ?", (now, len(rows), number))
    _move_tables(cursor, moved)
    return moved


def _payload_of(trace: Trace, place: int, states: np.ndarray, kept: np.ndarray) -> bytes:
    """The values of the states of one chunk that stay."""
    data = memoryview(trace.chunks.values(place))
    ends = np.cumsum(states["length"], dtype=np.int64)
    stay = kept[states["event"]] & (states["length"] > 0)
    parts = zip((ends - states["length"])[stay].tolist(), ends[stay].tolist(), strict=True)
    return b"".join([data[start:end] for start, end in parts])


def _mend(rows: np.ndarray, links: np.ndarray, first: int, moved: np.ndarray, whole: np.ndarray) -> bool:
    """Correct the references of a chunk's events to earlier events and to passes; returns whether anything changed."""
    changed = False
    kinds = rows["head"] & 0xFF
    starts = np.cumsum(rows["links"], dtype=np.int64) - rows["links"]
    for kind, column, is_link in _back_fields():
        at = np.flatnonzero(kinds == kind)
        values = links[starts[at] + column] if is_link else rows[COLUMNS[column]][at]
        at, values = at[values > 0], values[values > 0].astype(np.int64)
        targets = moved[first + at - values]
        mended = np.where(targets >= 0, moved[first + at] - targets, 0)
        mended[moved[first + at] < 0] = 0
        changed = changed or bool(np.any(mended != values))
        if is_link:
            links[starts[at] + column] = mended
        else:
            rows[COLUMNS[column]][at] = mended
    outside = ~whole[first : first + len(rows)]
    for kind, column in _pass_columns():
        at = outside & (kinds == kind) & (rows[COLUMNS[column]] > 0)
        changed = changed or bool(at.any())
        rows[COLUMNS[column]][at] = 0
    return changed


def _back_fields() -> Iterator[tuple[int, int, bool]]:
    """The fields that name an earlier event: the kind, its column or the place among the links, and whether it is a
    link."""
    for kind, layout in LAYOUTS.items():
        for position, field in enumerate(layout.columns):
            if field.stored.how == "back":
                yield int(kind), position, False
        at = 0
        for field in layout.more:
            if field.stored.how == "back":
                yield int(kind), at, True
            at += field.width


def _pass_columns() -> Iterator[tuple[int, int]]:
    """The columns that name the pass in which an event happened."""
    for kind, layout in LAYOUTS.items():
        for position, field in enumerate(layout.columns):
            if field.name == "in_pass":
                yield int(kind), position


def _move_tables(cursor: sqlite3.Cursor, moved: np.ndarray) -> None:
    """Correct the events that the tables name; rows that name a removed event are removed too."""
    where = moved.tolist()
    passes = cursor.execute("SELECT number, first, last FROM passes").fetchall()
    gone = [(number,) for number, first, _ in passes if where[first] < 0]
    stay = [
        (where[first], None if last is None else where[last], number)
        for number, first, last in passes
        if where[first] >= 0
    ]
    cursor.executemany("DELETE FROM passes WHERE number = ?", gone)
    cursor.executemany("DELETE FROM histograms WHERE number = ?", gone)
    cursor.executemany("UPDATE passes SET first = ?, last = ? WHERE number = ?", stay)
    errors = cursor.execute("SELECT event, type, message, node, site FROM errors").fetchall()
    cursor.execute("DELETE FROM errors")
    kept = [(where[event], *more) for event, *more in errors if where[event] >= 0]
    cursor.executemany("INSERT INTO errors VALUES (?, ?, ?, ?, ?)", kept)
    printed = cursor.execute("SELECT number, event FROM printed").fetchall()
    now = [(moved_count(event, moved), number) for number, event in printed]
    cursor.executemany("DELETE FROM printed WHERE number = ?", [(n,) for event, n in now if event is None])
    cursor.executemany(
        "UPDATE printed SET event = ? WHERE number = ?", [row for row in now if row[0] is not None]
    )


def drop_unused(cursor: sqlite3.Cursor, trace: Trace, kept: np.ndarray, table: str, how: str) -> set[int]:
    """Remove from `table` the texts or rules (`how`: `text`, `rule`) that no kept event names, if they are many;
    returns their numbers. If they occur again they get new numbers, so that a number is never given twice."""
    known = {number for (number,) in cursor.execute(f"SELECT id FROM {table}")}
    unused = known - {0}
    if len(unused) > FEW:
        for numbers in _named(trace, kept, how):
            unused.difference_update(numbers.tolist())
    if len(unused) <= FEW:
        return set()
    cursor.executemany(f"DELETE FROM {table} WHERE id = ?", [(number,) for number in unused])
    return unused


def _named(trace: Trace, kept: np.ndarray, how: str) -> Iterator[np.ndarray]:
    """The numbers of texts or rules that the kept events of each kind name."""
    for kind, layout in LAYOUTS.items():
        table = trace.table(kind)
        is_kept = kept[table.events]
        for field in (*layout.columns, *layout.more):
            if field.stored.how == how:
                yield distinct(table[field.name][is_kept])
        for field in layout.lists:
            for part, name in enumerate(field.stored.parts):
                if how == "text" and name in TEXT_PARTS:
                    lists = table.lists(field.name)
                    yield distinct(lists.elements[is_kept[lists.owners], part])
