"""The packed arrays of a trace, unpacked."""

from __future__ import annotations

import sqlite3

import numpy as np

from gradviz.tracefile.expected import expanded

_MOST = 1 << 26  # bytes that an array and those before it may stand for


def packed(connection: sqlite3.Connection, table: str, chunk: int) -> bytes:
    """A packed array of a chunk, as it was when it was packed. Raises ValueError where it follows from too many: an
    earlier mutation made them."""
    query = f"SELECT data FROM {table} WHERE chunk <= ? AND chunk >= (SELECT since FROM chunks WHERE id = ?)"
    before = np.zeros(0, np.uint32)
    data = b""
    for (kept,) in connection.execute(f"{query} ORDER BY chunk", (chunk, chunk)):
        data = expanded(bytes(kept), before)
        if before.nbytes + len(data) > _MOST:
            raise ValueError("too much to be damaged once more")
        before = np.concatenate([before, np.frombuffer(data, np.uint32)]) if table != "payloads" else before
    return data
