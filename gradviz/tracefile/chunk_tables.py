"""The tables of a trace that have a row for each chunk, written chunk by chunk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gradviz.tracefile.batch import Batch
from gradviz.tracefile.bykind import ByKind
from gradviz.tracefile.contents import NOT_PLAIN, Contents
from gradviz.tracefile.expected import as_is
from gradviz.tracefile.schema import STATE
from gradviz.tracefile.squeeze import Kept, Squeezer


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
