"""Ways to damage the packed arrays of a trace: events, links, states, values."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from contextlib import closing
from pathlib import Path
from random import Random

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.events.kinds import Kind
from gradviz.tracefile.database import STATE
from gradviz.tracefile.expected import HEADER, as_is, unexpected
from tests.damage.of_tables import PACKED, TABLES
from tests.damage.packed import packed
from tests.damage.ways import opened, way

# --- packed arrays


class _Array:
    """The packed array of one chunk, to be changed in a `with` block."""

    def __init__(self, rng: Random, path: Path, table: str) -> None:
        self.rng, self.path, self.table = rng, path, table

    def __enter__(self) -> np.ndarray:
        dtype = {"events": ROW, "states": STATE, "links": np.dtype("<u4")}[self.table]
        self.connection = opened(self.path)
        try:
            numbers = [number for (number,) in self.connection.execute(f"SELECT chunk FROM {self.table}")]
            self.chunk = self.rng.choice(numbers or [0])
            self.array = np.frombuffer(packed(self.connection, self.table, self.chunk), dtype).copy()
        except BaseException:
            self.connection.close()
            raise
        return self.array

    def __exit__(self, *_: object) -> None:
        with closing(self.connection):
            _pack(self.connection, self.table, self.chunk, self.array.tobytes())


def _pack(connection: sqlite3.Connection, table: str, chunk: int, data: bytes) -> None:
    connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (as_is(data), chunk))


_COUNTS = (0, 1, 2, 3, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2, 150_000_000, 1_000_000)


def _number(rng: Random, like: np.ndarray) -> int:
    """A number that is large, small, near one that is there, or any."""
    known = int(rng.choice(like.tolist() or [0]))
    return rng.choice([*_COUNTS, known, known + 1 & 0xFFFFFFFF, known - 1 & 0xFFFFFFFF, rng.randrange(1 << 32)])


@way("events")
@way("events")
def numbers_of_events(rng: Random, path: Path) -> None:
    """Columns of events hold other numbers."""
    with _Array(rng, path, "events") as rows:
        for _ in range(rng.choice([1, 1, 3])):
            column = rng.choice(ROW.names or ())
            where = rng.randrange(len(rows)) if rng.random() < 0.8 else slice(None)
            rows[column][where] = _number(rng, rows[column])


@way("events")
def another_kind_of_event(rng: Random, path: Path) -> None:
    """Events are of another kind, thread or flags."""
    with _Array(rng, path, "events") as rows:
        at = rng.randrange(len(rows))
        rows["head"][at] = (
            rng.choice([0, 99, 255, *map(int, Kind)]) | rng.randrange(256) << 8 | rng.choice([0, 1, 65535]) << 16
        )


@way("events")
def swapped_events(rng: Random, path: Path) -> None:
    """Two events are in each other's place."""
    with _Array(rng, path, "events") as rows:
        one, two = rng.randrange(len(rows)), rng.randrange(len(rows))
        rows[[one, two]] = rows[[two, one]]


@way("events")
def a_thing_made_twice(rng: Random, path: Path) -> None:
    """Nodes, passes or tensors have the number of another, or refer to an event that is none of theirs."""
    with _Array(rng, path, "events") as rows:
        kind = rng.choice(
            [Kind.NODE, Kind.PASS_BEGAN, Kind.RECEIVED, Kind.PRODUCED, Kind.OP, Kind.ACCUMULATED, Kind.NAMED]
        )
        own = np.flatnonzero((rows["head"] & 0xFF) == kind)
        column = rng.choice("abcd")
        rows[column][own] = rng.choice([*_COUNTS[:4], int(rng.choice(rows[column][own].tolist() or [0]))])


@way("links")
def numbers_of_links(rng: Random, path: Path) -> None:
    """Links hold other numbers."""
    with _Array(rng, path, "links") as links:
        for _ in range(rng.choice([1, 1, 5, 50])):
            links[rng.randrange(len(links))] = _number(rng, links)


@way("links")
def circles(rng: Random, path: Path) -> None:
    """Nodes send their gradients to themselves, ops read what they make."""
    with closing(opened(path)) as connection:
        chunk = rng.choice(connection.execute("SELECT chunk FROM events").fetchall())[0]
        rows = np.frombuffer(packed(connection, "events", chunk), ROW)
        links = np.frombuffer(packed(connection, "links", chunk), "<u4").copy()
        ends = np.cumsum(rows["links"])
        for row, end in zip(rows, ends.tolist(), strict=True):
            own = slice(end - int(row["links"]), end)
            if row["head"] & 0xFF in (Kind.NODE, Kind.OP, Kind.PRODUCED) and rng.random() < 0.5:
                links[own] = np.where(
                    links[own] > 2, rng.choice([int(row["a"]), int(links[own].max(initial=0))]), links[own]
                )
        _pack(connection, "links", chunk, links.tobytes())


@way("states")
@way("states")
def numbers_of_states(rng: Random, path: Path) -> None:
    """Columns of states hold other numbers."""
    with _Array(rng, path, "states") as states:
        for _ in range(rng.choice([1, 1, 3])):
            column = rng.choice(STATE.names or ())
            where = rng.randrange(len(states)) if rng.random() < 0.8 else slice(None)
            states[column][where] = _number(rng, states[column])


@way("states")
def views_of_themselves(rng: Random, path: Path) -> None:
    """Tensors are views of themselves, or of each other in a circle."""
    with _Array(rng, path, "states") as states:
        states["base"] = states["tensor"] if rng.random() < 0.5 else np.roll(states["tensor"], 1)
        states["what"] |= rng.choice([0, 4, 12])


@way("states")
def other_forms(rng: Random, path: Path) -> None:
    """Values have the form of others: what is kept does not fit."""
    with _Array(rng, path, "states") as states:
        at = rng.randrange(len(states))
        states["form"][at] = rng.choice(states["form"].tolist())
        if rng.random() < 0.5:
            states["what"][at] = rng.randrange(256) | rng.randrange(4) << 8


@way("states")
def a_chunk_of_another_length(rng: Random, path: Path) -> None:
    """A packed array is longer or shorter than it should be."""
    table = rng.choice(PACKED)
    with closing(opened(path)) as connection:
        chunk = rng.choice(connection.execute("SELECT id FROM chunks").fetchall())[0]
        data = packed(connection, table, chunk)
        size = {"events": ROW.itemsize, "states": STATE.itemsize}.get(table, 4)
        new = rng.choice([data[:-1], data[:-size], data + bytes(size), data + data[-size:], data[size:], b"", data * 2])
        _pack(connection, table, chunk, new)


@way("states")
def another_packing(rng: Random, path: Path) -> None:
    """A packed array is said to be kept in another way, from more or fewer numbers."""
    table = rng.choice(PACKED)
    with closing(opened(path)) as connection:
        chunk, data = rng.choice(connection.execute(f"SELECT chunk, data FROM {table}").fetchall())
        if rng.random() < 0.5:
            data = unexpected(np.zeros(0, np.uint32), packed(connection, table, chunk), rng.choice([7, 70]))
        header = list(struct.unpack_from("<5I", data))
        header[rng.randrange(5)] = rng.choice([0, 1, 2, 3, 7, 1 << 24, (1 << 24) + 1, (1 << 32) - 1, header[2]])
        new = struct.pack("<5I", *header) + data[HEADER:]
        connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (new, chunk))


@way("states")
def much_of_nothing(rng: Random, path: Path) -> None:
    """Chunks that take a few bytes stand for millions of events."""
    length = (1 << 24) // 28 * 28
    packed = struct.pack("<5I", 1, rng.choice([7, length // 4]), length, 0, 0) + zlib.compress(b"")
    with closing(opened(path)) as connection:
        last, first = connection.execute("SELECT id, first + count FROM chunks ORDER BY id DESC").fetchone()
        columns = ", ".join("?" * len(TABLES["chunks"]))
        for number in range(last + 1, last + 1 + rng.choice([1, 100])):
            row = {"id": number, "first": first, "count": length // 28, "time": 0.0, "since": number}
            connection.execute(f"INSERT INTO chunks VALUES ({columns})", [row[name] for name in TABLES["chunks"]])
            for table in PACKED:
                connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, packed))
            first += length // 28


@way("values")
def other_values(rng: Random, path: Path) -> None:
    """Values are NaN, infinite, huge or any bytes."""
    with closing(opened(path)) as connection:
        chunk = rng.choice(connection.execute("SELECT id FROM chunks").fetchall())[0]
        data = packed(connection, "payloads", chunk)
        content = bytearray(data)
        for _ in range(rng.choice([1, 5, 50])):
            at = rng.randrange(max(len(content) - 8, 1)) // 4 * 4
            content[at : at + 8] = rng.choice(
                [struct.pack("<d", value) for value in (float("nan"), float("inf"), -1e308, 1e308, -1.0, 5e-324)]
                + [struct.pack("<2f", 3e38, -3e38), rng.randbytes(8)]
            )
        _pack(connection, "payloads", chunk, bytes(content[: len(data)]))
