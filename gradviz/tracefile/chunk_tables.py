"""The tables of a trace that have a row for each chunk, written chunk by chunk."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.tracefile.batch import Batch, ByKind
from gradviz.tracefile.chunks import NOT_PLAIN, Contents
from gradviz.tracefile.expected import NUMBER, as_is, rearranged, unexpected
from gradviz.tracefile.schema import STATE

GROUP = 64  # chunks
_HISTORY = 1 << 15  # the events that are searched for a period, which has at most half as many
_ALIKE = 0.9  # the least share of the events that come again after a period
_SAME = 0.99  # ...so many that no better period is searched: every 50th step may be different
_VALUES = 64  # bytes of values for an event: more are large arrays, which zlib packs slowly and badly
_LARGE = 1 << 16  # bytes of a value, from which on it is written by itself
# Bytes: more do not fit into SQLite's cache (file.py), and are written twice, as zeros first.
_MOST_IN_PIECES = 12 << 20
_PATIENCE = 16  # the most chunks until a period is searched again
_FEW = 512  # the most events whose period is found without a Fourier transform
_HEAD, _SITE, _LINKS = (ROW.names.index(name) for name in ("head", "site", "links"))  # type: ignore[union-attr]
_LENGTH, _EVENT = (STATE.names.index(name) for name in ("length", "event"))  # type: ignore[union-attr]
_WIDTH = 7  # numbers of an event's row, and of a state


class Kept(NamedTuple):
    """The arrays of a chunk as the file keeps them. Large values are a list of pieces, to be written one after another:
    joined, they would be in memory twice, and no other thread could run while they are copied."""

    events: bytes
    links: bytes
    states: bytes
    payloads: bytes | list[bytes]


class Squeezer:
    """Squeezes the chunks of a recording, in order. `group` is the first chunk of the last chunk's group."""

    def __init__(self) -> None:
        self.group = self.period = self.tired = 0
        self.is_same = False  # nearly all events come again after the period
        self.patience = 1  # twice as long after each time that there was no period
        self._begin(0)

    def _begin(self, group: int) -> None:
        """Begin a group: everything before it is forgotten."""
        self.group = group
        self.events, self.links = np.zeros((0, _WIDTH), NUMBER), np.zeros(0, NUMBER)
        self.states = np.zeros((0, _WIDTH), NUMBER)

    def chunk(
        self, number: int, end: int, rows: bytes, links: bytes, states: bytes, values: Sequence[bytes]
    ) -> Kept:
        """A chunk as the file keeps it; `end` is the event after its last."""
        if not self.group or number >= self.group + GROUP:
            self._begin(number)
        before = self.events, self.links, self.states
        self.events = np.concatenate([before[0], np.frombuffer(rows, NUMBER).reshape(-1, _WIDTH)])
        self.links = np.concatenate([before[1], np.frombuffer(links, NUMBER)])
        self.states = np.concatenate([before[2], np.frombuffer(states, NUMBER).reshape(-1, _WIDTH)])
        self._look_for_period()
        of_links, last_states = self._of_last(self.period, end)
        of_values = int(last_states[:, _LENGTH].sum(dtype=np.int64))
        size = sum(map(len, values))
        if size > _VALUES * (len(self.events) - len(before[0])):
            of_values = 0
        columns, links_columns = (_WIDTH, 1) if self.period else (0, 0)
        kept = Kept(
            unexpected(before[0].reshape(-1), rows, _WIDTH * self.period, columns),
            unexpected(before[1], links, of_links, links_columns),
            unexpected(before[2].reshape(-1), states, _WIDTH * len(last_states), columns),
            rearranged(values, of_values) if of_values or size > _MOST_IN_PIECES else _pieces(values),
        )
        self._forget(end)
        return kept

    def _look_for_period(self) -> None:
        share = alike(self.events, self.period) if self.period else 0.0
        self.is_same = share >= _SAME
        if self.is_same or math.isnan(share):
            return
        self.tired -= 1
        is_lost = self.period and share < _ALIKE
        if is_lost or self.tired <= 0:
            before, self.period = self.period, period_of(self.events[-_HISTORY:])
            self.tired = self.patience
            self.patience = 1 if self.period != before else min(2 * self.patience, _PATIENCE)

    def _of_last(self, events: int, end: int) -> tuple[int, np.ndarray]:
        """The number of links of the last events, and the states of these events."""
        if not events:
            return 0, self.states[:0]
        links = int(self.events[-events:, _LINKS].sum(dtype=np.int64))
        return links, self.states[np.searchsorted(self.states[:, _EVENT], end - events) :]

    def _forget(self, end: int) -> None:
        """Forget everything that no later chunk follows from."""
        recent = 2 * self.period if self.is_same else max(2 * self.period, _HISTORY)
        if recent < len(self.events):
            links, states = self._of_last(recent, end)
            self.events, self.states = self.events[-recent:], states
            self.links = self.links[len(self.links) - links :]


def _pieces(values: Sequence[bytes]) -> bytes | list[bytes]:
    """Values as the file keeps them, unchanged: in pieces if one of them is large. Small values between are one
    piece."""
    if max(map(len, values), default=0) < _LARGE:
        return as_is(*values)
    pieces = [as_is()]
    for is_large, run in groupby(values, lambda value: len(value) >= _LARGE):
        parts = list(run)
        pieces += parts if is_large else [b"".join(parts)]
    return pieces


def alike(events: np.ndarray, period: int) -> float:
    """The share of the events that come again after `period` events: the same kind at the same place. NaN if there are
    too few events."""
    if len(events) < 2 * period:
        return math.nan
    same = events[period:, _HEAD] == events[:-period, _HEAD]
    same &= events[period:, _SITE] == events[:-period, _SITE]
    return float(np.count_nonzero(same)) / len(same)


def period_of(events: np.ndarray) -> int:
    """The number of events after which they come again, 0 if they do not."""
    if len(events) < 4:
        return 0
    # The autocorrelation of a random number for each kind at each place: it is largest at the period.
    keys = events[:, _HEAD].astype(np.uint64) << np.uint64(32) | events[:, _SITE]
    keys *= np.uint64(0x9E3779B97F4A7C15)
    keys ^= keys >> np.uint64(29)
    keys *= np.uint64(0xBF58476D1CE4E5B9)
    noise = (keys >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - 1
    longest = len(events) // 2
    products = _products(noise)[1 : longest + 1]
    shares = products / (len(events) - np.arange(1, longest + 1))
    most = shares.max()
    short, long = (int(np.argmax(shares >= part * most)) + 1 for part in (0.98, 0.999))
    if alike(events, short) < _SAME <= alike(events, long):
        return long
    return short if alike(events, short) >= _ALIKE else 0


def _products(noise: np.ndarray) -> np.ndarray:
    """The sum of the products of numbers with those at a distance before them, for each distance from 0 on."""
    if len(noise) <= _FEW:  # the run of a short script need not load `numpy.fft`
        return np.correlate(noise, noise, "full")[len(noise) - 1 :]
    size = 1 << (2 * len(noise) - 1).bit_length()
    spectrum = np.fft.rfft(noise, size)
    return np.fft.irfft(spectrum * spectrum.conj(), size)


class ChunkTables:
    """Writes the chunks of a trace, in order. `texts` are the numbers of texts, and `dtypes` the dtypes of forms by
    their numbers; both grow while it is written. The chunks of a ring are kept unpacked, because they are changed one
    by one later."""

    def __init__(self, texts: Mapping[str, int], dtypes: Mapping[int, str], is_ring: bool) -> None:
        self._texts, self._dtypes, self._is_ring = texts, dtypes, is_ring
        self._squeezer, self._contents = Squeezer(), Contents()
        self._number = 0  # of the last chunk

    def write(self, cursor: sqlite3.Cursor, events: ByKind, batch: Batch, time: float) -> None:
        """Write a batch, whose values are settled, as the next chunk; its values are freed. `time` is when it was
        recorded, in seconds since 1970."""
        self._number += 1
        number, count = self._number, len(events.rows)
        arrays = bytes(batch.rows), bytes(batch.links), bytes(batch.states)
        if self._is_ring:
            kept, since = Kept._make(map(as_is, (*arrays, b"".join(batch.payload)))), number
        else:
            self._write_contents(cursor, events, batch)
            kept = self._squeezer.chunk(number, batch.first + count, *arrays, batch.payload)
            since = self._squeezer.group
            batch.payload.clear()  # not both in memory while they are written
        cursor.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", (number, batch.first, count, time, since))
        for table, packed in kept._asdict().items():
            if isinstance(packed, list):
                _write_pieces(cursor, table, number, packed)
            else:
                cursor.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, packed))

    def _write_contents(self, cursor: sqlite3.Cursor, events: ByKind, batch: Batch) -> None:
        """Write the summary of a chunk. A ring has none, because its events are removed later."""
        not_plain = [number for how in NOT_PLAIN if (number := self._texts.get(how)) is not None]
        states = np.frombuffer(batch.states, STATE)
        summary = self._contents.chunk(events, states, batch.payload, self._dtypes, not_plain)
        cursor.execute("INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (self._number, *summary))
        new, changed = self._contents.new_ops, self._contents.changed_ops
        execute_each(cursor, "INSERT INTO site_ops VALUES (?, ?, 0)", new)
        execute_each(cursor, "UPDATE site_ops SET is_last = (op = ?) WHERE site = ?", changed)


def _write_pieces(cursor: sqlite3.Cursor, table: str, number: int, pieces: list[bytes]) -> None:
    """Write an array that lies in pieces, each straight into the file."""
    size = sum(map(len, pieces))
    cursor.execute(f"INSERT INTO {table} VALUES (?, zeroblob(?))", (number, size))
    with cursor.connection.blobopen(table, "data", number) as blob:
        for piece in pieces:
            blob.write(piece)


def execute_each(cursor: sqlite3.Cursor, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """`executemany`, which is slow even if there are no rows."""
    listed = list(rows)
    if listed:
        cursor.executemany(statement, listed)
