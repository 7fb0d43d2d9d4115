"""The schema of a trace file: an SQLite database, with the hot events in packed chunks. See docs/trace-format.md."""

from __future__ import annotations

import re

import numpy as np

APPLICATION_ID = 0x67726476  # "grdv", in the database's header
VERSION = 8

TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE strings (id INTEGER PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE forms (id INTEGER PRIMARY KEY, shape TEXT NOT NULL, dtype TEXT NOT NULL, device TEXT NOT NULL);
CREATE TABLE rules (id INTEGER PRIMARY KEY, inputs TEXT NOT NULL, elementwise INTEGER NOT NULL);
CREATE TABLE sites (
    id INTEGER PRIMARY KEY, parent INTEGER NOT NULL, file TEXT NOT NULL, line INTEGER NOT NULL,
    col INTEGER NOT NULL, end_line INTEGER NOT NULL, end_col INTEGER NOT NULL, function TEXT NOT NULL,
    names TEXT NOT NULL, library INTEGER NOT NULL
);
CREATE TABLE sources (file TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE passes (
    number INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER, thread INTEGER NOT NULL,
    site INTEGER NOT NULL, nodes INTEGER, digest TEXT, recorded INTEGER NOT NULL
);
CREATE TABLE skipped (
    number INTEGER PRIMARY KEY, passes INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    stride INTEGER NOT NULL, thread INTEGER NOT NULL, site INTEGER NOT NULL
);
CREATE TABLE parameters (tensor INTEGER PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL);
CREATE TABLE variables (tensor INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE errors (
    event INTEGER PRIMARY KEY, type TEXT NOT NULL, message TEXT NOT NULL, node INTEGER NOT NULL,
    site INTEGER NOT NULL
);
CREATE TABLE printed (
    number INTEGER PRIMARY KEY, event INTEGER NOT NULL, site INTEGER NOT NULL, text TEXT NOT NULL,
    length INTEGER NOT NULL
);
CREATE TABLE histograms (
    number INTEGER NOT NULL, tensor INTEGER NOT NULL, role TEXT NOT NULL, low REAL NOT NULL, high REAL NOT NULL,
    counts BLOB NOT NULL
);
CREATE TABLE chunks (
    id INTEGER PRIMARY KEY, first INTEGER NOT NULL, count INTEGER NOT NULL, time REAL NOT NULL,
    since INTEGER NOT NULL
);
CREATE TABLE contents (
    chunk INTEGER PRIMARY KEY, since_event INTEGER NOT NULL, highest_tensor INTEGER NOT NULL,
    highest_node INTEGER NOT NULL, ops INTEGER NOT NULL, new_nodes INTEGER NOT NULL, first_nan INTEGER NOT NULL,
    entangled INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE TABLE site_ops (
    site INTEGER NOT NULL, op INTEGER NOT NULL, is_last INTEGER NOT NULL, PRIMARY KEY (site, op)
) WITHOUT ROWID;
CREATE TABLE events (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE links (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE states (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE payloads (chunk INTEGER PRIMARY KEY, data BLOB NOT NULL);
"""

LATER_TABLE = "histograms"  # a trace from before it was introduced has all others

# The type of a column of that name in any table; SQLite itself takes any type anywhere.
_KINDS = {"INTEGER": int, "TEXT": str, "BLOB": bytes, "REAL": float}
COLUMNS: dict[str, type] = {
    name: _KINDS[kind] for name, kind in re.findall(r"(\w+) (INTEGER|TEXT|BLOB|REAL)", TABLES)
}
MAY_BE_NULL = {"last", "nodes", "digest"}  # columns of a pass that did not end

# A state of a tensor at an event: `what` is flags | grade << 8, `length` the number of its bytes in the payload. With a
# form of 0 it has only flags and version.
STATE = np.dtype([(name, "<u4") for name in ("tensor", "version", "base", "form", "what", "length", "event")])

# A state's grade: no value, all elements, statistics, or the norm of the change by an optimizer's step and statistics.
NO_VALUE, ELEMENTS, STATS, CHANGED = 0, 1, 2, 3

# Set in the flags of a PASS_BEGAN whose pass is not recorded in detail.
SKIPPED = 1 << 7
