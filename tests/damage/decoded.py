"""A trace taken apart into its events, to be changed and packed again so that lengths, distances and tables agree."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.events.event_layout import COLUMNS, LAYOUTS, ROW, Field, Layout
from gradviz.events.kinds import Kind
from gradviz.tracefile.batch import ByKind
from gradviz.tracefile.chunks import NOT_PLAIN, Contents
from gradviz.tracefile.database import STATE
from gradviz.tracefile.expected import as_is
from tests.damage.of_tables import PACKED
from tests.damage.packed import packed
from tests.damage.ways import opened

Place = tuple[list[int], int]  # a number: the list that holds it, and its place there
TENSOR, VERSION, BASE, FORM, WHAT = range(5)  # of a state
_MOST = 100_000  # events
_MEANS = {"gradient": "tensor", "tangent": "tensor", "number": "pass", "living": "pass"}


@dataclass(eq=False)
class Happening:
    """An event: the bits of its head, its site, its columns, what comes first in its links, its lists (part by part),
    and its states, each with its value. `target` is the earlier event that it names."""

    kind: Kind
    head: int
    site: int
    columns: list[int]
    more: list[int]
    lists: list[list[int]]
    states: list[tuple[list[int], bytes]] = field(default_factory=list)
    target: Happening | None = None

    @property
    def layout(self) -> Layout:
        return LAYOUTS[self.kind]

    def again(self) -> Happening:
        """The same event once more."""
        found = copy(self)
        found.columns, found.more = list(self.columns), list(self.more)
        found.lists = [list(numbers) for numbers in self.lists]
        found.states = [(list(numbers), value) for numbers, value in self.states]
        return found

    def places(self, means: str) -> Iterator[Place]:
        """The numbers in it that stand for a tensor, node, scope, pass, text ..."""
        for at, declared in enumerate(self.layout.columns):
            if _meaning(declared) == means:
                yield self.columns, at
        for numbers, declared in zip(self.lists, self.layout.lists, strict=True):
            parts = declared.stored.parts
            for part, name in enumerate(parts):
                if _MEANS.get(name, "text" if name == "settings" else name) == means:
                    yield from ((numbers, at) for at in range(part, len(numbers), len(parts)))
        if means == "tensor":
            yield from ((numbers, at) for numbers, _ in self.states for at in (TENSOR, BASE))

    def backs(self) -> list[int]:
        """How far back the events lie that it names, as it was packed."""
        of_columns = zip(self.columns, self.layout.columns, strict=False)
        of_links = zip(self.more, self.layout.more, strict=False)
        return [number for number, declared in (*of_columns, *of_links) if declared.stored.how == "back"]

    def _words(self, at: dict[Happening, int]) -> tuple[list[int], list[int]]:
        """Its columns and links; `at` says where each event stands."""
        back = at[self] - at.get(self.target, at[self]) if self.target is not None else 0
        columns, more = list(self.columns), list(self.more)
        for numbers, fields in ((columns, self.layout.columns), (more, self.layout.more)):
            for place, declared in enumerate(fields):
                if declared.stored.how == "back":
                    numbers[place] = max(back, 0)
        widths = [declared.width for declared in self.layout.lists]
        lengths = [len(own) // width for own, width in zip(self.lists[:-1], widths, strict=False)]
        return columns, [*more, *lengths, *(number for own in self.lists for number in own)]


def _meaning(declared: Field) -> str:
    stored = declared.stored
    return {"text": "text", "rule": "rule", "pass": "pass"}.get(stored.how, _MEANS.get(stored.means, stored.means))


class Run:
    """The events of a trace, to be changed in a `with` block, after which they are packed again."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Run:
        with closing(opened(self.path)) as connection:
            self.counts = [count for (count,) in connection.execute("SELECT count FROM chunks ORDER BY id")]
            if sum(self.counts) > _MOST:
                raise ValueError("too much to be taken apart: an earlier mutation made it")
            self.forms = dict(connection.execute("SELECT id, dtype FROM forms"))
            self.shapes = dict(connection.execute("SELECT id, shape FROM forms"))
            arrays = {table: self._array(connection, table) for table in PACKED}
        rows = np.frombuffer(arrays["events"], ROW)
        links = np.frombuffer(arrays["links"], "<u4").tolist()
        self.events = [_taken_apart(row, own) for row, own in _with_links(rows, links)]
        for number, event in enumerate(self.events):
            event.target = next((self.events[number - back] for back in event.backs() if 0 < back <= number), None)
        start = 0
        for state in np.frombuffer(arrays["states"], STATE).tolist():
            *numbers, length, at = state
            self.events[at].states.append((numbers, arrays["payloads"][start : start + length]))
            start += length
        return self

    @staticmethod
    def _array(connection: sqlite3.Connection, table: str) -> bytes:
        chunks = connection.execute("SELECT id FROM chunks ORDER BY id").fetchall()
        return b"".join(packed(connection, table, chunk) for (chunk,) in chunks)

    def of(self, *kinds: Kind) -> list[Happening]:
        """The events of these kinds; all events where there are none of them."""
        return [event for event in self.events if event.kind in kinds] or self.events

    def places(self, means: str) -> list[Place]:
        """All numbers that stand for a tensor, node, scope, pass or text."""
        return [place for event in self.events for place in event.places(means)]

    def size_of(self, form: int, shape: list[int] | None) -> int:
        """How many elements a form has, or another shape."""
        return math.prod(json.loads(self.shapes[form]) if shape is None else shape)

    # --- packing

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            with closing(opened(self.path)) as connection:
                connection.execute("BEGIN")
                self._pack(connection)
                connection.execute("COMMIT")

    def _pack(self, connection: sqlite3.Connection) -> None:
        at = {event: number for number, event in enumerate(self.events)}
        bounds = np.linspace(0, len(self.events), len(self.counts) + 1).astype(int).tolist()
        if len(self.events) == sum(self.counts):
            bounds = np.cumsum([0, *self.counts]).tolist()
        makers = connection.execute(
            f"SELECT id FROM strings WHERE text IN ({', '.join('?' * len(NOT_PLAIN))})", NOT_PLAIN
        )
        not_plain = [number for (number,) in makers]
        ids = [number for (number,) in connection.execute("SELECT id FROM chunks ORDER BY id")]
        has_contents = connection.execute("SELECT count(*) FROM contents").fetchone() != (0,)
        for table in ("contents", "site_ops"):
            connection.execute(f"DELETE FROM {table}")
        contents = Contents()
        for chunk, (first, end) in zip(ids, pairwise(bounds), strict=True):
            rows, links, states, values = _packed(self.events[first:end], at)
            connection.execute(
                "UPDATE chunks SET first = ?, count = ?, since = id WHERE id = ?", (first, end - first, chunk)
            )
            for table, data in zip(PACKED, (rows, links, states, b"".join(values)), strict=True):
                connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (as_is(data), chunk))
            if has_contents:
                events, told = ByKind(first, np.frombuffer(rows, ROW)), np.frombuffer(states, STATE)
                summed = contents.chunk(events, told, values, self.forms, not_plain)
                connection.execute(f"INSERT INTO contents VALUES (?{', ?' * len(summed)})", (chunk, *summed))
                connection.executemany("INSERT INTO site_ops VALUES (?, ?, FALSE)", contents.new_ops)
                connection.executemany("UPDATE site_ops SET is_last = (op = ?) WHERE site = ?", contents.changed_ops)
        self._tell_passes(connection)
        errors = [at[event] for event in self.events if event.kind == Kind.ERROR]
        told = connection.execute("SELECT type, message, node, site FROM errors ORDER BY event").fetchall()
        connection.execute("DELETE FROM errors")
        connection.executemany(
            "INSERT INTO errors VALUES (?, ?, ?, ?, ?)",
            [(event, *row) for event, row in zip(errors, told, strict=False)],
        )

    def _tell_passes(self, connection: sqlite3.Connection) -> None:
        """Tell in the table where passes begin and end."""
        ends: dict[int, list[int | None]] = defaultdict(lambda: [None, None])
        for number, event in enumerate(self.events):
            if event.kind in (Kind.PASS_BEGAN, Kind.PASS_ENDED):
                ends[event.columns[0]][event.kind == Kind.PASS_ENDED] = number
        known = {row[0]: row for row in connection.execute("SELECT * FROM passes")}
        connection.execute("DELETE FROM passes")
        connection.execute("DELETE FROM skipped")
        like = next(iter(known.values()), (0, 0, 0, 0, 0, 0, "", 0))
        for number, (first, last) in ends.items():
            if first is not None:
                _, _, _, thread, site, nodes, digest, recorded = known.get(number, like)
                told = (nodes, digest) if last is not None else (None, None)
                row = (number, first, last, thread, site, *told, recorded)
                connection.execute(f"INSERT INTO passes VALUES (?{', ?' * 7})", row)


def _with_links(rows: np.ndarray, links: list[int]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
    start = 0
    for row in rows.tolist():
        yield row, links[start : start + row[-1]]
        start += row[-1]


def _taken_apart(row: tuple[int, ...], links: list[int]) -> Happening:
    head, site, *columns, _ = row
    kind = Kind(head & 0xFF)
    layout = LAYOUTS[kind]
    before = sum(declared.width for declared in layout.more)
    lengths = links[before : layout.head]
    lists, at = [], layout.head
    for declared, length in zip(layout.lists[:-1], lengths, strict=True):
        lists.append(links[at : at + length * declared.width])
        at += length * declared.width
    if layout.lists:
        lists.append(links[at:])
    return Happening(kind, head, site, columns[: len(COLUMNS)], links[:before], lists)


def _packed(events: list[Happening], at: dict[Happening, int]) -> tuple[bytes, bytes, bytes, list[bytes]]:
    """The rows, links, states and values of events."""
    rows, links, states, values = [], [], [], []
    for event in events:
        columns, own = event._words(at)
        rows.append((event.head & ~0xFF | event.kind, event.site, *columns, len(own)))
        links += own
        states += [(*numbers, len(value), at[event]) for numbers, value in event.states]
        values += [value for numbers, value in event.states if numbers[WHAT] >> 8]
    return (_as_words(rows).tobytes(), _as_words(links).tobytes(), _as_words(states).tobytes(), values)


def _as_words(numbers: list[Any]) -> np.ndarray:
    return (np.array(numbers, np.int64) & 0xFFFFFFFF).astype("<u4")
