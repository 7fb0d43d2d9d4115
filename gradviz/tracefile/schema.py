"""What a trace file holds: an SQLite database, hot events in packed chunks. See docs/trace-format.md."""

from __future__ import annotations

import re

import numpy as np

APPLICATION_ID = 0x67726476  # "grdv", in the database's header
VERSION = 1

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE strings (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE shapes (id INTEGER PRIMARY KEY, shape TEXT NOT NULL);
CREATE TABLE sites (
    id INTEGER PRIMARY KEY, parent INTEGER NOT NULL, file TEXT NOT NULL, line INTEGER NOT NULL,
    col INTEGER NOT NULL, end_line INTEGER NOT NULL, end_col INTEGER NOT NULL, function TEXT NOT NULL,
    names TEXT NOT NULL
);
CREATE TABLE formulas (grad_fn TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE sources (file TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE passes (
    number INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER, thread INTEGER NOT NULL,
    site INTEGER NOT NULL, nodes INTEGER, digest TEXT, recorded INTEGER NOT NULL
);
CREATE TABLE parameters (tensor INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE errors (
    event INTEGER PRIMARY KEY, type TEXT NOT NULL, message TEXT NOT NULL, node INTEGER NOT NULL,
    site INTEGER NOT NULL
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL, time REAL NOT NULL,
    newest INTEGER NOT NULL
);
CREATE TABLE events (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE links (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE snapshots (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE payloads (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""

# What a column of that name holds in any table; SQLite itself takes anything anywhere.
_KINDS = {"INTEGER": int, "TEXT": str, "BLOB": bytes, "REAL": float}
COLUMNS: dict[str, type] = {
    name: _KINDS[kind] for name, kind in re.findall(r"(\w+) (INTEGER|TEXT|BLOB|REAL)", TABLES)
}
MAY_BE_NULL = {"last", "nodes", "digest"}  # of a pass that did not end

# One event. `head` is kind | flags << 8 | thread << 16; the other columns' meaning goes by the kind (decode.py).
EVENT = np.dtype(
    [
        ("head", "<u4"),
        ("site", "<u4"),
        ("name", "<u4"),
        ("subject", "<u4"),
        ("object", "<u4"),
        ("note", "<u4"),
        ("links", "<u4"),
    ]
)

# What a tensor was at an event: `what` is dtype | flags << 8 | grade << 24, `length` its bytes in the payload.
SNAPSHOT = np.dtype(
    [
        ("tensor", "<u4"),
        ("version", "<u4"),
        ("shape", "<u4"),
        ("what", "<u4"),
        ("length", "<u4"),
        ("event", "<u4"),
    ]
)

NO_VALUE, ELEMENTS, STATS = 0, 1, 2  # a snapshot's grade

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64",
    "complex128", "bfloat16", "uint16", "uint32", "uint64",
)  # fmt: skip
DTYPE_IDS = {name: position for position, name in enumerate(DTYPES)}
