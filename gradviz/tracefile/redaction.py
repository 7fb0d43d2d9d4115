"""A copy of a trace that may be shared: without source texts, paths, messages and elements of tensors.

The copy is a new file. Only content that is known to be harmless gets into it: texts go through the filters of
whitelist.py, and only statistics stay of values."""

import json
import math
import re
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.events.event_layout import COLUMNS, LAYOUTS, ROW, Layout, element_places
from gradviz.events.field_types import TEXT_PARTS
from gradviz.events.handles import Form
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat, packed_stats_of
from gradviz.sets import distinct
from gradviz.tracefile import whitelist
from gradviz.tracefile.batch import Batch, ByKind, Interned
from gradviz.tracefile.chunks import ChunkTables
from gradviz.tracefile.database import CHANGED, ELEMENTS, NO_VALUE, STATE, STATS
from gradviz.tracefile.file import TraceFile, take_away
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.sound import STATISTICS, elements_of

FEW = 16  # elements; of a tensor with so few, statistics would give the elements away


def redact(trace: Trace, path: Path) -> None:
    """Write the part of a trace that may be shared to `path`, in place of an earlier trace there. Raises OSError if the
    file cannot be written, TraceError if the trace is damaged."""
    if path.exists() and path.samefile(trace.path):
        raise OSError(f"{path} is the trace itself: choose another name for the copy")
    if trace.is_being_recorded:
        raise OSError(f"{trace.path} is being recorded: redact it when its run has ended")
    trace.reach_all()
    for what in (trace.events, trace.states):
        len(what)
    file = TraceFile(path, whitelist.meta_of(trace.meta))
    try:
        cursor = file.connection.cursor()
        cursor.execute("BEGIN EXCLUSIVE")
        _write_tables(cursor, trace)
        _write_chunks(cursor, trace)
        cursor.execute("COMMIT")
        file.replace()
        file.connection.execute("PRAGMA journal_mode = DELETE")
    except BaseException as error:
        file.close()
        take_away(file.place)
        if isinstance(error, sqlite3.Error):
            raise OSError(f"cannot write {path}: {error}") from error
        raise
    file.close()


# --- tables


def _write_tables(cursor: sqlite3.Cursor, trace: Trace) -> None:
    """Write the tables with one row for each thing: forms, rules, places, passes, names, errors."""
    forms = [
        (number, json.dumps(form.shape), whitelist.dtype(form.dtype), whitelist.device(form.device))
        for number, form in trace.forms.items()
    ]
    _insert(cursor, "forms", forms)
    _insert(cursor, "rules", _rules(trace))
    frames = trace._frames.values()
    _insert(cursor, "sites", [frame.row(whitelist.path, whitelist.name) for frame in frames])
    rows = trace._rows("SELECT number, first, last, thread, site, nodes, digest, recorded FROM passes")
    digest = re.compile("([0-9a-f]{16})?")  # 16 hexadecimal digits, or empty without nodes
    passes = [(*row[:6], row[6] if row[6] is not None and digest.fullmatch(row[6]) else None, row[7]) for row in rows]
    _insert(cursor, "passes", passes)
    skipped = "number, passes, first, last, stride, thread, site"
    _insert(cursor, "skipped", trace._rows(f"SELECT {skipped} FROM skipped"))
    named = trace._rows("SELECT tensor, name, role FROM parameters")
    _insert(cursor, "parameters", [(t, whitelist.name(name), whitelist.role(role)) for t, name, role in named])
    variables = trace._rows("SELECT tensor, name FROM variables")
    _insert(cursor, "variables", [(tensor, whitelist.name(name)) for tensor, name in variables])
    _insert(
        cursor,
        "errors",
        [(e.event, whitelist.name(e.type), whitelist.nothing(e.message), e.node, e.site) for e in trace.errors],
    )


def _insert(cursor: sqlite3.Cursor, table: str, rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)


def _rules(trace: Trace) -> list[tuple[Any, ...]]:
    return [
        (
            number,
            json.dumps([(whitelist.name(name), whitelist.formula(text)) for name, text in rule.inputs]),
            rule.elementwise,
        )
        for number, rule in trace.rules.items()
    ]


# --- chunks


def _write_chunks(cursor: sqlite3.Cursor, trace: Trace) -> None:
    """Write events, states and values, and the texts that the events name."""
    texts = Texts(trace)
    dtypes = {number: whitelist.dtype(form.dtype) for number, form in trace.forms.items()}
    is_ring = not trace._rows("SELECT chunk FROM contents LIMIT 1")
    tables = ChunkTables(texts.new.known, dtypes, is_ring)
    times = dict(trace._rows("SELECT id, time FROM chunks"))
    for place, chunk in enumerate(trace.chunks.list):
        batch = _redacted(trace, place, texts)
        events = ByKind(batch.first, np.frombuffer(batch.rows, ROW))
        tables.write(cursor, events, batch, times[chunk.id])
    _insert(cursor, "strings", texts.new.take_new())


def _redacted(trace: Trace, place: int, texts: "Texts") -> Batch:
    """The part of a chunk that stays."""
    _, first, count, _ = trace.chunks.list[place]
    rows, links = trace.events[first : first + count].copy(), trace._links_of(place).copy()
    texts.put(rows, links)
    states = trace.chunks.one("states", place).view(STATE).copy()
    batch = Batch()
    batch.payload = reduce_values(states, trace.chunks.values(place), trace.forms)
    batch.first = first
    batch.rows += rows.tobytes()
    batch.links += links.tobytes()
    batch.states += states.tobytes()
    return batch


class Texts:
    """The texts of a trace that stay, with new numbers. The filters of two fields may leave different parts of one
    text."""

    def __init__(self, trace: Trace) -> None:
        self._text = trace.text
        self.new = Interned()
        self.new.number("")
        self._known: dict[tuple[Callable[[str], str], int], int] = {}

    def put(self, rows: np.ndarray, links: np.ndarray) -> None:
        """Put the new numbers into the events of a chunk, and remove numbers that were computed from elements."""
        kinds = rows["head"] & 0xFF
        ends = np.cumsum(rows["links"], dtype=np.int64)
        for kind in map(Kind, distinct(kinds).tolist()):
            of_kind = np.flatnonzero(kinds == kind)
            layout = LAYOUTS[kind]
            for column, field in zip(COLUMNS, layout.columns, strict=False):
                if field.stored.how == "text":
                    rows[column][of_kind] = self._renumbered(kind, field.name, rows[column][of_kind])
            for bit, field in enumerate(layout.flags):
                if (kind, field.name) in whitelist.UNSET:
                    rows["head"][of_kind] &= np.uint32(~(1 << 8 + bit) & 0xFFFFFFFF)
            counts = rows["links"][of_kind].astype(np.int64)
            self._put_links(layout, links, ends[of_kind] - counts, counts)

    def _put_links(self, layout: Layout, links: np.ndarray, starts: np.ndarray, counts: np.ndarray) -> None:
        """Put the new numbers into the links of events of one kind."""
        kind, at = layout.kind, 0
        for field in layout.more:
            if field.stored.how == "text":
                links[starts + at] = self._renumbered(kind, field.name, links[starts + at])
            elif field.stored.how == "time" and (kind, field.name) not in whitelist.REALS:
                unknown = struct.pack("<d", whitelist.UNKNOWN.get((kind, field.name), math.nan))
                links[starts + at], links[starts + at + 1] = np.frombuffer(unknown, "<u4")
            at += field.width
        if not any(TEXT_PARTS.intersection(field.stored.parts) for field in layout.lists):
            return
        places = element_places(starts, counts, 1)  # the places of all links of these events
        stretches = layout.stretches(links[places], counts)
        for field in layout.lists:
            begins = places[element_places(*stretches[field.name], field.width)]
            for part, name in enumerate(field.stored.parts):
                if name in TEXT_PARTS:
                    old = links[begins + part]
                    links[begins + part] = self._renumbered(kind, f"{field.name}.{name}", old)

    def _renumbered(self, kind: Kind, field: str, numbers: np.ndarray) -> np.ndarray:
        keep = whitelist.filter_of(kind, field)
        old = distinct(numbers)
        new = np.array([self._number(keep, number) for number in old.tolist()], np.uint32)
        return new[np.searchsorted(old, numbers)] if len(old) else numbers

    def _number(self, keep: Callable[[str], str], old: int) -> int:
        known = self._known.get((keep, old))
        if known is None:
            known = self._known[keep, old] = self.new.number(keep(self._text(old)))
        return known


# --- values


def reduce_values(states: np.ndarray, values: bytes, forms: dict[int, Form]) -> list[bytes]:
    """Reduce the values of states to statistics; to nothing for a tensor with few elements of which one is finite.
    Changes the grades and lengths of the states, and returns the values that are left."""
    grades = states["what"] >> 8
    ends = np.cumsum(states["length"], dtype=np.int64)
    kept: dict[int, bytes] = {}
    for row, array in _in_full(states, grades, ends, values, forms):
        if array.size > FEW or (array.size and not np.isfinite(array).any()):
            kept[row] = packed_stats_of(array)
    for row in np.flatnonzero((grades == STATS) | (grades == CHANGED)).tolist():
        stats = values[int(ends[row] - states["length"][row]) : int(ends[row])]
        is_large = math.prod(forms[int(states["form"][row])].shape) > FEW
        if is_large or np.isnan(np.frombuffer(stats, "<f8")[Stat.MIN - STATISTICS]):
            kept[row] = stats
    left = np.zeros(len(states), bool)
    left[list(kept)] = True
    left_grades = np.where(left, np.where(grades == CHANGED, CHANGED, STATS), NO_VALUE)
    states["what"] = (states["what"] & 0xFF) | left_grades.astype(np.uint32) << 8
    states["length"] = 0
    states["length"][left] = [len(kept[row]) for row in sorted(kept)]
    return [kept[row] for row in sorted(kept)]


def _in_full(
    states: np.ndarray, grades: np.ndarray, ends: np.ndarray, values: bytes, forms: dict[int, Form]
) -> Iterator[tuple[int, np.ndarray]]:
    """The states whose elements were kept, each with its elements as a flat array; without dtypes that NumPy lacks."""
    data = np.frombuffer(values, np.uint8)
    for row in np.flatnonzero(grades == ELEMENTS).tolist():
        value = data[int(ends[row]) - int(states["length"][row]) : int(ends[row])]
        array = elements_of(value, forms[int(states["form"][row])].dtype)
        if array is not None:
            yield row, array
