"""The packed arrays of a trace, read chunk by chunk.

An array may follow from the arrays of the chunks before it in its group (expected.py): then these are read too."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from gradviz.tracefile.database import most_unpacked
from gradviz.tracefile.expected import AS_IS, HEADER, NUMBER, expanded, header_of

_GROUPS = 3  # the most groups kept in memory, for each kind of array
_VALUES = 8  # the most chunks whose values are kept in memory
_SMALL = 1 << 19  # bytes of values that are read at once: it takes longer to open a blob for each value


class Chunk(NamedTuple):
    """The events of a chunk, and the chunk that its group begins with."""

    id: int
    first: int
    events: int
    since: int


class Chunks:
    """The chunks of a trace. `rows` queries the file and raises TraceError if it is damaged; everything else raises
    ValueError or sqlite3.Error then."""

    def __init__(self, connection: sqlite3.Connection, rows: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._connection, self._rows = connection, rows
        self.list = [Chunk(*row) for row in rows("SELECT id, first, count, since FROM chunks ORDER BY id")]
        self._ids = [chunk.id for chunk in self.list]
        ends = accumulate((chunk.events for chunk in self.list), initial=0)
        if any(chunk.events < 0 or chunk.first != end for chunk, end in zip(self.list, ends, strict=False)):
            raise ValueError("the chunks do not add up")
        since = 0
        for chunk in self.list:
            if chunk.since not in (chunk.id, since):
                raise ValueError("a chunk belongs to no group")
            since = chunk.since
        self._group = lru_cache(maxsize=4 * _GROUPS)(_not_read_yet)
        self._values = lru_cache(maxsize=_VALUES)(self._read_values)
        self._header = lru_cache(maxsize=None)(self._read_header)

    def __len__(self) -> int:
        return len(self.list)

    @property
    def events(self) -> int:
        """The number of events."""
        return self.list[-1].first + self.list[-1].events if self.list else 0

    # --- numbers

    def each(self, table: str) -> Iterator[np.ndarray]:
        """The numbers of a kind, chunk by chunk."""
        last = self._ids[-1] if self.list else 0
        kept = [
            data for (data,) in self._rows(f"SELECT data FROM {table} WHERE chunk <= ? ORDER BY chunk", last)
        ]
        if len(kept) != len(self):
            raise ValueError(f"{table} of a chunk are missing")
        if sum(header_of(data).length for data in kept) > most_unpacked(self._connection):
            raise ValueError("it stands for more than its size allows")
        return _expanded(kept, [chunk.since == chunk.id for chunk in self.list])

    def one(self, table: str, place: int) -> np.ndarray:
        """The numbers of a kind in one chunk."""
        since = self.list[place].since
        start, group = bisect_left(self._ids, since), self._group(table, since)
        if place >= start + len(group):
            self._read_on(table, start + len(group), place, group)
        return group[place - start]

    def _read_on(self, table: str, first: int, last: int, group: list[np.ndarray]) -> None:
        """Read on in a group of chunks, from one place to another."""
        query = f"SELECT data FROM {table} WHERE chunk BETWEEN ? AND ? ORDER BY chunk"
        kept = [data for (data,) in self._rows(query, self._ids[first], self._ids[last])]
        if len(kept) != last + 1 - first:
            raise ValueError(f"{table} of a chunk are missing")
        for data in kept:
            group.append(_following(data, group))

    # --- values

    def sizes(self) -> list[int]:
        """The number of bytes of values in each chunk."""
        return [self.size(place) for place in range(len(self))]

    def size(self, place: int) -> int:
        """The number of bytes of values in a chunk."""
        return self._header(place)[1]

    def value(self, place: int, offset: int, length: int) -> bytes:
        """A part of the values of a chunk."""
        how, size = self._header(place)
        if how != AS_IS or size <= _SMALL:
            return self._values(place)[offset : offset + length]
        with self._payload(place) as blob:
            blob.seek(HEADER + offset)
            return blob.read(length)

    def values(self, place: int) -> bytes:
        """All values of a chunk."""
        return self._values(place)

    def _payload(self, place: int) -> sqlite3.Blob:
        return self._connection.blobopen("payloads", "data", self._ids[place], readonly=True)

    def _read_header(self, place: int) -> tuple[int, int]:
        """The way in which the values of a chunk are kept, and their length in bytes."""
        with self._payload(place) as blob:
            header = header_of(blob.read(HEADER))
            return header.how, len(blob) - HEADER if header.how == AS_IS else header.length

    def _read_values(self, place: int) -> bytes:
        with self._payload(place) as blob:
            return expanded(blob.read())


def _not_read_yet(table: str, since: int) -> list[np.ndarray]:
    """The numbers of the chunks of a group that have been read: none yet."""
    return []


def _expanded(kept: Sequence[bytes], begins: Sequence[bool]) -> Iterator[np.ndarray]:
    """Arrays of numbers as they were before packing. Where a group begins, an array follows from none before it."""
    before: list[np.ndarray] = []
    for data, begin in zip(kept, begins, strict=True):
        if begin:
            before = []
        before.append(_following(data, before))
        yield before[-1]


def _following(data: bytes, before: Sequence[np.ndarray]) -> np.ndarray:
    """An array of numbers as it was before packing; it follows from the arrays before it in its group."""
    return np.frombuffer(expanded(data, _last(before, header_of(data).known)), NUMBER)


def _last(parts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The last numbers of several arrays: at least `count` of them, if there are so many."""
    chosen: list[np.ndarray] = []
    for part in reversed(parts):
        if count <= 0:
            break
        chosen.append(part)
        count -= len(part)
    return np.concatenate([np.zeros(0, NUMBER), *reversed(chosen)])
