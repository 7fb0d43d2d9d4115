"""The database of a trace, with its schema (docs/trace-format.md). It is read with suspicion: the file may be damaged,
or made to harm.

Only tables of the known schema are read: no views, triggers or virtual tables, which could compute anything. The size
of a file bounds the content of a sound one, so it bounds the work of a query and the length of its result."""

import math
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.errors import GradvizError

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
COLUMNS: dict[str, type] = {name: _KINDS[kind] for name, kind in re.findall(r"(\w+) (INTEGER|TEXT|BLOB|REAL)", TABLES)}
MAY_BE_NULL = {"last", "nodes", "digest"}  # columns of a pass that did not end

# A state of a tensor at an event: `what` is flags | grade << 8, `length` the number of its bytes in the payload. With a
# form of 0 it has only flags and version.
STATE = np.dtype([(name, "<u4") for name in ("tensor", "version", "base", "form", "what", "length", "event")])

# A state's grade: no value, all elements, statistics, or the norm of the change by an optimizer's step and statistics.
NO_VALUE, ELEMENTS, STATS, CHANGED = 0, 1, 2, 3

# Set in the flags of a PASS_BEGAN whose pass is not recorded in detail.
SKIPPED = 1 << 7


UNREADABLE = (sqlite3.Error, ValueError, MemoryError)  # the exceptions from reading a damaged trace
_LONGEST_REASON = 120  # the most characters of a cause
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NOT_READ = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
_CAUSES = {
    sqlite3.SQLITE_INTERRUPT: "reading it takes more work than its size allows",
    sqlite3.SQLITE_TOOBIG: "it holds more than its size allows",
}


class TraceError(GradvizError):
    """A file cannot be read as a trace; the message is one line for the user."""


def code_of(error: Exception) -> int:
    """SQLite's code of an error; 0 if it has none, as the error about a text that is no UTF-8."""
    return getattr(error, "sqlite_errorcode", 0)


def damaged(path: Path, error: Exception) -> TraceError:
    """The error for a file that is a trace, but cannot be read through."""
    primary = code_of(error) & 0xFF  # the other bits are details
    if primary in _LOCKED:
        return TraceError(f"{path} is locked by another program, which is writing to it: try again")
    cause = " ".join(str(error).split())[:_LONGEST_REASON]  # SQLite quotes statements of several lines
    if primary in _NOT_READ:
        return TraceError(f"{path} cannot be read: {cause}")
    return TraceError(f"{path} is damaged or truncated ({_CAUSES.get(primary, cause)}): record it again")


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """Turn the exceptions from reading a damaged trace into TraceError."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> TraceError:
    """The error for an exception from reading a damaged trace."""
    if isinstance(error, MemoryError):
        return TraceError(f"{path} takes more memory to read than there is")
    return damaged(path, error)


_LONGEST = 1 << 20  # bytes of a text or an array that any file may have
_LIMIT = (1 << 31) - 1  # the highest limit that SQLite takes
_BLOCK, _MEMORY = 64, 64 << 20  # the rows, and bytes, that are fetched before their length is checked
# the most bytes of unpacked arrays: so many, and so many for each byte of the file
_UNPACKED, _TIMES = 16 << 20, 256
_STEPS = 1_000_000  # steps of SQLite's machine that any query may take
_AT_ONCE = 10_000
_LEAST, _BEYOND = -1, 1 << 32  # the bounds of whole numbers: numbers of events have 32 bits


class Database(sqlite3.Connection):
    """A read-only connection to a file that is not trusted."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.bytes = _LONGEST  # the size of the file
        self.steps = 0  # the steps of SQLite's machine in this query

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """As in a connection; the steps of each query are counted from 0."""
        self.steps = 0
        return super().execute(*arguments)

    def _too_many_steps(self) -> bool:
        self.steps += _AT_ONCE
        return self.steps > _STEPS + self.bytes


def opened(path: Path) -> Database:
    """A connection to a file. Raises sqlite3.Error if it cannot be read, ValueError if its tables are not those of a
    trace."""
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False, isolation_level=None, factory=Database
    )
    try:
        bound(connection, path.stat().st_size)
        _check_schema(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def bound(connection: Database, size: int) -> None:
    """Limit the time and memory for a file of `size` bytes to what a sound file could need."""
    connection.bytes = size
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(max(size, _LONGEST), _LIMIT))
    connection.set_progress_handler(connection._too_many_steps, _AT_ONCE)
    for setting in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
        connection.execute(f"PRAGMA {setting}")


_EXPECTED = {
    ("table", words.split(maxsplit=3)[2], " ".join(words.split()))
    for words in map(str.strip, TABLES.split(";"))
    if words
}


def _check_schema(connection: sqlite3.Connection) -> None:
    try:
        entries = connection.execute("SELECT type, name, sql FROM sqlite_schema").fetchmany(len(_EXPECTED) + 1)
    except MemoryError:  # an entry claims to be huge
        entries = []
    if not {type(word) for row in entries for word in row} <= {str}:
        raise ValueError("its tables are not those of a trace")
    known = {(kind, name, " ".join(sql.split())) for kind, name, sql in entries}
    if known != _EXPECTED and known != {entry for entry in _EXPECTED if entry[1] != LATER_TABLE}:
        raise ValueError("its tables are not those of a trace")


def has_table(connection: sqlite3.Connection, name: str) -> bool:
    """Whether a file has a table."""
    return bool(connection.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (name,)).fetchall())


def most_unpacked(connection: sqlite3.Connection) -> float:
    """The most bytes that the packed arrays of a table may have when they are unpacked. In a recording, those of a
    chunk are at most some hundred times as long as they are packed."""
    return _UNPACKED + _TIMES * connection.bytes if isinstance(connection, Database) else math.inf


def rows_of(connection: sqlite3.Connection, query: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a query, every value of its column's type and between bounds.

    Raises ValueError if one is not, sqlite3.Error if the file cannot be read."""
    cursor = connection.execute(query, values)
    kinds = {name: COLUMNS[name] for name, *_ in cursor.description}
    rows = (
        cursor.fetchall() if not isinstance(connection, Database) else _fetched(connection, cursor, [*kinds.values()])
    )
    for (name, kind), column in zip(kinds.items(), zip(*rows, strict=True), strict=bool(rows)):
        expected = {kind, type(None)} if name in MAY_BE_NULL else {kind}
        if not set(map(type, column)) <= expected:
            raise ValueError(f"a {name} of another type")
        if kind is int:
            numbers = [number for number in column if number is not None] if name in MAY_BE_NULL else column
            if numbers and not (min(numbers) >= _LEAST and max(numbers) < _BEYOND):
                raise ValueError(f"a {name} beyond all bounds")
    return rows


def _fetched(connection: Database, cursor: sqlite3.Cursor, kinds: list[type]) -> list[tuple[Any, ...]]:
    """All rows. Raises ValueError if their texts and arrays together are longer than the file."""
    long = [at for at, kind in enumerate(kinds) if kind in (str, bytes)]
    if not long:
        return cursor.fetchall()
    left = connection.bytes
    rows: list[tuple[Any, ...]] = []
    block = max(1, min(_BLOCK, _MEMORY // max(connection.bytes, _LONGEST)))
    while more := cursor.fetchmany(block):
        rows += more
        for at in long:
            left -= sum([len(row[at]) for row in more if type(row[at]) is kinds[at]])
        if left < 0:
            raise ValueError("it holds more than its size allows")
    return rows
