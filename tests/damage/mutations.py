"""Ways to damage a trace. Each takes random numbers and the path of a trace, which it changes.

`mutate(rng, path)` applies one to three of them. The same seed damages the same trace in the same way."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.layout import ROW
from gradviz.tracefile.expected import HEADER, as_is, expanded, unexpected
from gradviz.tracefile.schema import STATE

PAGE = 8192
JOURNAL = bytes.fromhex("d9d505f920a163d7")

Mutation = Callable[[Random, Path], None]
WAYS: dict[str, list[Mutation]] = {}


def _way(name: str) -> Callable[[Mutation], Mutation]:
    """Put a mutation among those of this name."""

    def put(mutation: Mutation) -> Mutation:
        WAYS.setdefault(name, []).append(mutation)
        return mutation

    return put


def mutate(rng: Random, path: Path) -> str:
    """Damage a trace in one to three ways; their names."""
    used = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice(list(WAYS))
        mutation = rng.choice(WAYS[name])
        used.append(f"{name}: {mutation.__name__}")
        with suppress(sqlite3.Error, ValueError, TypeError):  # of what an earlier one has damaged
            mutation(rng, path)
    return ", ".join(used)


# --- the file


def _changed(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    if content:
        change(content)
        path.write_bytes(content)


@_way("bytes")
def flipped_bits(rng: Random, path: Path) -> None:
    """Some bits are others."""

    def change(content: bytearray) -> None:
        for _ in range(rng.choice([1, 2, 10, 100])):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)

    _changed(path, change)


@_way("bytes")
def other_bytes(rng: Random, path: Path) -> None:
    """A stretch of bytes is another."""

    def change(content: bytearray) -> None:
        start = rng.randrange(len(content))
        length = rng.choice([1, 4, 16, 300])
        content[start : start + length] = rng.choice([bytes(length), b"\xff" * length, rng.randbytes(length)])

    _changed(path, change)


@_way("bytes")
def cut_short(rng: Random, path: Path) -> None:
    """The end of the file is missing."""
    _changed(path, lambda content: content.__delitem__(slice(rng.randrange(len(content)), None)))


@_way("pages")
def swapped_pages(rng: Random, path: Path) -> None:
    """Two pages are in each other's place, or one is there twice."""

    def change(content: bytearray) -> None:
        pages = len(content) // PAGE
        one, two = (rng.randrange(1, pages) * PAGE for _ in range(2))
        first, second = content[one : one + PAGE], content[two : two + PAGE]
        content[one : one + PAGE] = second
        if rng.random() < 0.5:
            content[two : two + PAGE] = first

    _changed(path, change)


@_way("pages")
def a_cell_of_a_page(rng: Random, path: Path) -> None:
    """The header of a page, or a pointer in it, says something else."""

    def change(content: bytearray) -> None:
        page = rng.randrange(len(content) // PAGE) * PAGE + (100 if rng.random() < 0.2 else 0)
        at = page + rng.randrange(24)
        content[at : at + 2] = rng.choice([b"\0\0", b"\xff\xff", b"\x7f\xff", rng.randbytes(2)])

    _changed(path, change)


@_way("header")
def a_field_of_the_header(rng: Random, path: Path) -> None:
    """A field of SQLite's header is another number."""

    def change(content: bytearray) -> None:
        at = rng.choice([16, 18, 20, 21, 22, 23, *range(24, 72, 4), 92, 96])
        width = 4 if at >= 24 else 2 if at in (16, 18) else 1
        number = rng.choice([0, 1, 2, 3, (1 << 8 * width) - 1, rng.randrange(1 << 8 * width)])
        content[at : at + width] = number.to_bytes(width, "big")

    _changed(path, change)


@_way("header")
def another_version(rng: Random, path: Path) -> None:
    """The version of the format, or the application, is another."""
    what = rng.choice(["user_version", "application_id"])
    number = rng.choice([0, 1, 2, 4, 99, 2**31 - 1, -1])
    _run(path, f"PRAGMA {what} = {number}")


@_way("journals")
def a_journal_of_rubbish(rng: Random, path: Path) -> None:
    """A journal lies beside it that no recording wrote."""
    count = rng.choice([0, 1, 0xFFFFFFFF, rng.randrange(1 << 32)])
    pages = rng.choice([0, 1, 16, 0xFFFFFFFF])
    header = JOURNAL + struct.pack(
        ">IIIII", count, rng.randrange(1 << 32), pages, rng.choice([512, 0, 7]), PAGE
    )
    body = header.ljust(512, b"\0") + b"".join(
        struct.pack(">I", rng.choice([0, 1, 2, 0xFFFFFFFF])) + rng.randbytes(PAGE) + rng.randbytes(4)
        for _ in range(2)
    )
    Path(f"{path}-journal").write_bytes(body[: rng.choice([0, 8, 28, 512, len(body)])])


@_way("journals")
def a_super_journal(rng: Random, path: Path) -> None:
    """A journal lies beside it that names a file of the user's."""
    name = str(path.parent / "thesis.txt").encode()
    header = JOURNAL + struct.pack(">IIIII", 0, 1234, path.stat().st_size // PAGE, 512, PAGE)
    record = struct.pack(">I", (1 << 30) // PAGE + 1) + name + struct.pack(">II", len(name), sum(name))
    Path(f"{path}-journal").write_bytes(header.ljust(512, b"\0") + record + JOURNAL)


@_way("journals")
def a_write_ahead_log(rng: Random, path: Path) -> None:
    """It was turned to a write-ahead log, with or without one beside it."""
    _run(path, "PRAGMA journal_mode = WAL")
    if rng.random() < 0.5:
        Path(f"{path}-wal").write_bytes(rng.randbytes(rng.choice([0, 32, 5000])))


# --- tables


def _opened(path: Path) -> sqlite3.Connection:
    """A connection that writes at once, and does not wait for the disk."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def _run(path: Path, *statements: str) -> None:
    with closing(_opened(path)) as connection:
        for statement in statements:
            connection.execute(statement)


TABLES = {
    "meta": ("key", "value"),
    "strings": ("id", "text"),
    "forms": ("id", "shape", "dtype", "device"),
    "rules": ("id", "inputs", "elementwise"),
    "sites": (
        "id", "parent", "file", "line", "col", "end_line", "end_col", "function", "names", "library",
    ),
    "sources": ("file", "text"),
    "passes": ("number", "first", "last", "thread", "site", "nodes", "digest", "recorded"),
    "parameters": ("tensor", "name"),
    "errors": ("event", "type", "message", "node", "site"),
    "chunks": ("id", "first", "count", "time", "since"),
    "events": ("chunk", "data"),
    "links": ("chunk", "data"),
    "states": ("chunk", "data"),
    "payloads": ("chunk", "data"),
}  # fmt: skip
_PACKED = ("events", "links", "states", "payloads")
_NASTY = "\x9b31m\u202e\u2066\x1b]0;x\x07\r\n\0<script>alert(1)</script>&\"'\\N|{}" + "\U000e0001\ufeff\u2028"
_JSON = (
    "[", "{}", "[NaN]", "[Infinity]", "[-1]", "[1.5]", "[true]", "[null]", '["a"]', "[[1]]", '[{"a": 1}]', "7", '"x"',
    "[1e999]", "[4294967296, 4294967296]", "[9223372036854775807]", "[0, 123456789012345678901234567890]",
    "[2" * 50_000, "[" * 100_000, "[1," * 40 + "1" + "]" * 40,
    "[" + "1," * 100_000 + "1]", '[["a", "b"], ["c"]]', '["\\ud800"]',
    "[" + "9" * 5000 + "]", '{"lr": NaN}', '{"lr": 1e999}', '{"lr": {}}', '[["\\u001b[31m", "\\u202e"]]', "[3, 5, 7]",
)  # fmt: skip
_TEXTS = (
    "", "x", _NASTY, "é" * 300, "a" * 1_000_000, "\n" * 3_000_000, "%s%n{0}{}", "../../etc/passwd", "0", "-1", "nan",
    "float32", "O", "V8", "i4,i4", "datetime64[s]", "S1000000000", "bfloat16", "float64", "complex128", "<f4", "void",
    "exit 9" + "9" * 5000, "error", "ok", "1.0", "inf",
)  # fmt: skip
_NUMBERS = (
    0, 1, -1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 150_000_000, 200_000_000, 2**62, 2**63 - 1, -(2**63),
    -(2**31), 9 * 10**18, 1_000_000,
)  # fmt: skip


def _nasty_value(rng: Random) -> Any:
    kind = rng.choice(["number", "number", "json", "text", "other"])
    if kind == "number":
        return rng.choice(_NUMBERS)
    if kind == "json":
        return rng.choice(_JSON)
    if kind == "text":
        return rng.choice(_TEXTS)
    return rng.choice([None, 0.5, float("inf"), b"", b"\xff\xfe", b"\xed\xa0\x80", rng.randbytes(1000)])


def _changed_cell(rng: Random, path: Path, table: str, value: Any, cast: str = "?") -> None:
    column = rng.choice(TABLES[table])
    with closing(_opened(path)) as connection:
        some = connection.execute(f"SELECT {TABLES[table][0]} FROM {table} LIMIT 500").fetchall()
        where = "" if rng.random() < 0.2 or not some else f"WHERE {TABLES[table][0]} = ?"
        key = rng.choice(some) if where else ()
        connection.execute(f"UPDATE OR REPLACE {table} SET {column} = {cast} {where}", (value, *key))


@_way("cells")
def a_cell(rng: Random, path: Path) -> None:
    """A cell, or a whole column, holds something else."""
    _changed_cell(rng, path, rng.choice(list(TABLES)), _nasty_value(rng))


@_way("cells")
def a_cell_of_its_type(rng: Random, path: Path) -> None:
    """As `a_cell`, in a table that a person would query, of the type that belongs there."""
    table = rng.choice([name for name in TABLES if name not in _PACKED])
    column = rng.choice(TABLES[table])
    is_text = column in (
        "key", "value", "text", "shape", "dtype", "device", "inputs", "file", "function", "names", "digest", "name",
        "type", "message",
    )  # fmt: skip
    is_json = column in ("shape", "inputs", "names")
    value = rng.choice(_JSON) if is_json else rng.choice(_TEXTS) if is_text else rng.choice(_NUMBERS)
    with closing(_opened(path)) as connection:
        keys = connection.execute(f"SELECT {TABLES[table][0]} FROM {table} LIMIT 500").fetchall()
        connection.execute(
            f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {TABLES[table][0]} = ?",
            (value, *rng.choice(keys or [(0,)])),
        )


@_way("cells")
def text_that_is_no_text(rng: Random, path: Path) -> None:
    """A text is no UTF-8, or has half of a surrogate pair."""
    table = rng.choice(["meta", "strings", "forms", "sites", "sources", "parameters", "errors"])
    _changed_cell(
        rng, path, table, rng.choice([b"\xff\xfe", b"a\xed\xa0\x80b", b"\xc0\x80"]), "CAST(? AS TEXT)"
    )


@_way("cells")
def a_nasty_name(rng: Random, path: Path) -> None:
    """Names and texts hold what a terminal, a browser or Graphviz would obey."""
    table, column = rng.choice(
        [("strings", "text"), ("parameters", "name"), ("sites", "file"), ("sites", "function"), ("meta", "value"),
         ("sources", "text"), ("errors", "message"), ("errors", "type"), ("forms", "dtype"), ("forms", "device")]
    )  # fmt: skip
    with closing(_opened(path)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {column} || ?", (_NASTY,))


@_way("cells")
def a_fact_of_the_run(rng: Random, path: Path) -> None:
    """What `meta` says of the run is something else."""
    key = rng.choice(
        [
            "ended",
            "error_line",
            "error",
            "error_type",
            "error_file",
            "engine",
            "values",
            "last",
            "scope",
            "script",
            "python",
        ]
    )
    value = rng.choice([*_TEXTS, *_JSON[:8], "error", "error", "12", "99999999999999999999"])
    with closing(_opened(path)) as connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        if rng.random() < 0.5:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('ended', 'error')")


@_way("rows")
def a_row_less(rng: Random, path: Path) -> None:
    """A row, or all rows, of a table are missing."""
    table = rng.choice(list(TABLES))
    some = "" if rng.random() < 0.3 else f"WHERE {TABLES[table][0]} % 3 = {rng.randrange(3)}"
    _run(path, f"DELETE FROM {table} {some}")


@_way("rows")
def a_row_more(rng: Random, path: Path) -> None:
    """A table has a row that is like another, but for its key."""
    table = rng.choice([name for name in TABLES if name not in ("meta", "sources")])
    key, *others = TABLES[table]
    number = rng.choice(_NUMBERS)
    columns = ", ".join([key, *others])
    _run(
        path,
        f"INSERT INTO {table} ({columns}) SELECT {', '.join([str(number), *others])} FROM {table} LIMIT 1",
    )


@_way("rows")
def swapped_chunks(rng: Random, path: Path) -> None:
    """Two chunks have each other's content, or two tables have."""
    one, two = (rng.choice(_PACKED) for _ in range(2))
    with closing(_opened(path)) as connection:
        numbers = [number for (number,) in connection.execute("SELECT id FROM chunks")]
        first, second = rng.choice(numbers), rng.choice(numbers)
        find = "SELECT data FROM {} WHERE chunk = ?"
        found = [
            connection.execute(find.format(table), (number,)).fetchone()[0]
            for table, number in ((one, first), (two, second))
        ]
        for table, number, data in ((one, first, found[1]), (two, second, found[0])):
            connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (data, number))


@_way("schema")
def a_view_in_place_of_a_table(rng: Random, path: Path) -> None:
    """A table is a view that has no end, that takes long, or that makes much of nothing."""
    table = rng.choice(list(TABLES))
    columns = TABLES[table]
    endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n {}"
    some = ", ".join(
        f"i AS {name}" if at == 0 and table != "meta" else f"'x' || i AS {name}"
        for at, name in enumerate(columns)
    )
    bodies = [
        endless.format(some, ""),
        endless.format(some, "WHERE i < -1"),
        f"SELECT {', '.join(f'zeroblob(900000000) AS {name}' for name in columns)}",
        f"SELECT {', '.join(f'hex(zeroblob(400000000)) AS {name}' for name in columns)}",
        f"SELECT * FROM old_{table}",
    ]
    body = rng.choice(bodies)
    _run(path, f"ALTER TABLE {table} RENAME TO old_{table}", f"CREATE VIEW {table} AS {body}")


@_way("schema")
def something_beside_the_tables(rng: Random, path: Path) -> None:
    """There is a trigger, an index, a view or a table too many."""
    table = rng.choice(list(TABLES))
    column = TABLES[table][-1]
    _run(
        path,
        rng.choice(
            [
                f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM meta; END",
                f"CREATE INDEX i ON {table} ({column})",
                f"CREATE INDEX i ON {table} (abs({column}))",
                "CREATE VIEW v AS SELECT * FROM meta",
                "CREATE TABLE more (x)",
                "CREATE VIRTUAL TABLE f USING fts5(x)",
                f"ALTER TABLE {table} ADD COLUMN more DEFAULT 7",
                f"ALTER TABLE {table} RENAME COLUMN {column} TO other",
                f"DROP TABLE {table}",
            ]
        ),
    )


@_way("schema")
def a_table_of_another_make(rng: Random, path: Path) -> None:
    """A table has columns that are computed, another key, or a condition."""
    table = rng.choice(list(TABLES))
    key, *others = TABLES[table]
    columns = ", ".join(others)
    computed = ", ".join(f"{name} AS (zeroblob(900000000))" for name in others)
    make = rng.choice(
        [
            f"CREATE TABLE {table} ({key} INTEGER PRIMARY KEY, {computed})",
            f"CREATE TABLE {table} ({key} PRIMARY KEY, {columns}) WITHOUT ROWID",
            f"CREATE TABLE {table} ({key}, {columns}, CHECK (length({key}) >= 0))",
        ]
    )
    copied = f"INSERT INTO {table} ({key}) SELECT {key} FROM old" if " AS (" in make else (
        f"INSERT INTO {table} SELECT * FROM old"
    )  # fmt: skip
    _run(path, f"ALTER TABLE {table} RENAME TO old", make, copied, "DROP TABLE old")


@_way("schema")
def a_schema_by_hand(rng: Random, path: Path) -> None:
    """The schema was written over: a table lies where another does, or is called something else."""
    one, two = rng.sample(list(TABLES), 2)
    statement = rng.choice(
        [
            f"UPDATE sqlite_schema SET rootpage = (SELECT rootpage FROM sqlite_schema WHERE name = '{one}') "
            f"WHERE name = '{two}'",
            f"UPDATE sqlite_schema SET rootpage = {rng.choice([0, 1, 2, 99999])} WHERE name = '{two}'",
            f"UPDATE sqlite_schema SET sql = 'CREATE TABLE {two} (x)' WHERE name = '{two}'",
            f"UPDATE sqlite_schema SET sql = 'rubbish' WHERE name = '{two}'",
            f"UPDATE sqlite_schema SET name = upper(name) WHERE name = '{two}'",
            f"DELETE FROM sqlite_schema WHERE name = '{two}'",
        ]
    )
    with closing(_opened(path)) as connection:
        connection.executescript(f"PRAGMA writable_schema = ON; {statement}; PRAGMA writable_schema = OFF;")


# --- packed arrays


class _Array:
    """The packed array of one chunk, to be changed in a `with` block."""

    def __init__(self, rng: Random, path: Path, table: str) -> None:
        self.table = table
        self.connection = _opened(path)
        numbers = [number for (number,) in self.connection.execute(f"SELECT chunk FROM {table}")]
        self.chunk = rng.choice(numbers or [0])

    def __enter__(self) -> np.ndarray:
        dtype = {"events": ROW, "states": STATE, "links": np.dtype("<u4")}[self.table]
        try:
            self.array = np.frombuffer(_packed(self.connection, self.table, self.chunk), dtype).copy()
        except ValueError:
            self.connection.close()
            raise
        return self.array

    def __exit__(self, *_: object) -> None:
        _pack(self.connection, self.table, self.chunk, self.array.tobytes())
        self.connection.close()


def _packed(connection: sqlite3.Connection, table: str, chunk: int) -> bytes:
    """A packed array of a chunk, as it was when it was packed."""
    query = f"SELECT data FROM {table} WHERE chunk <= ? AND chunk >= (SELECT since FROM chunks WHERE id = ?)"
    before = np.zeros(0, np.uint32)
    data = b""
    for (kept,) in connection.execute(f"{query} ORDER BY chunk", (chunk, chunk)):
        data = expanded(bytes(kept), before)
        before = np.concatenate([before, np.frombuffer(data, np.uint32)]) if table != "payloads" else before
    return data


def _pack(connection: sqlite3.Connection, table: str, chunk: int, data: bytes) -> None:
    connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (as_is(data), chunk))


_COUNTS = (0, 1, 2, 3, 255, 65536, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 2, 150_000_000, 1_000_000)


def _number(rng: Random, like: np.ndarray) -> int:
    """A number that is large, small, near one that is there, or any."""
    known = int(rng.choice(like.tolist() or [0]))
    return rng.choice(
        [*_COUNTS, known, known + 1 & 0xFFFFFFFF, known - 1 & 0xFFFFFFFF, rng.randrange(1 << 32)]
    )


@_way("events")
@_way("events")
def numbers_of_events(rng: Random, path: Path) -> None:
    """Columns of events hold other numbers."""
    with _Array(rng, path, "events") as rows:
        for _ in range(rng.choice([1, 1, 3])):
            column = rng.choice(ROW.names or ())
            where = rng.randrange(len(rows)) if rng.random() < 0.8 else slice(None)
            rows[column][where] = _number(rng, rows[column])


@_way("events")
def another_kind_of_event(rng: Random, path: Path) -> None:
    """Events are of another kind, thread or flags."""
    with _Array(rng, path, "events") as rows:
        at = rng.randrange(len(rows))
        rows["head"][at] = (
            rng.choice([0, 26, 99, 255, *map(int, Kind)])
            | rng.randrange(256) << 8
            | rng.choice([0, 1, 65535]) << 16
        )


@_way("events")
def swapped_events(rng: Random, path: Path) -> None:
    """Two events are in each other's place."""
    with _Array(rng, path, "events") as rows:
        one, two = rng.randrange(len(rows)), rng.randrange(len(rows))
        rows[[one, two]] = rows[[two, one]]


@_way("events")
def a_thing_made_twice(rng: Random, path: Path) -> None:
    """Nodes, passes or tensors have the number of another, or refer to an event that is none of theirs."""
    with _Array(rng, path, "events") as rows:
        kind = rng.choice(
            [Kind.NODE, Kind.PASS_BEGAN, Kind.RECEIVED, Kind.PRODUCED, Kind.OP, Kind.ACCUMULATED, Kind.NAMED]
        )
        own = np.flatnonzero((rows["head"] & 0xFF) == kind)
        column = rng.choice("abcd")
        rows[column][own] = rng.choice([*_COUNTS[:4], int(rng.choice(rows[column][own].tolist() or [0]))])


@_way("links")
def numbers_of_links(rng: Random, path: Path) -> None:
    """Links hold other numbers."""
    with _Array(rng, path, "links") as links:
        for _ in range(rng.choice([1, 1, 5, 50])):
            links[rng.randrange(len(links))] = _number(rng, links)


@_way("links")
def circles(rng: Random, path: Path) -> None:
    """Nodes send their gradients to themselves, ops read what they make."""
    with closing(_opened(path)) as connection:
        chunk = rng.choice(connection.execute("SELECT chunk FROM events").fetchall())[0]
        rows = np.frombuffer(_packed(connection, "events", chunk), ROW)
        links = np.frombuffer(_packed(connection, "links", chunk), "<u4").copy()
        ends = np.cumsum(rows["links"])
        for row, end in zip(rows, ends.tolist(), strict=True):
            own = slice(end - int(row["links"]), end)
            if row["head"] & 0xFF in (Kind.NODE, Kind.OP, Kind.PRODUCED) and rng.random() < 0.5:
                links[own] = np.where(
                    links[own] > 2, rng.choice([int(row["a"]), int(links[own].max(initial=0))]), links[own]
                )
        _pack(connection, "links", chunk, links.tobytes())


@_way("states")
@_way("states")
def numbers_of_states(rng: Random, path: Path) -> None:
    """Columns of states hold other numbers."""
    with _Array(rng, path, "states") as states:
        for _ in range(rng.choice([1, 1, 3])):
            column = rng.choice(STATE.names or ())
            where = rng.randrange(len(states)) if rng.random() < 0.8 else slice(None)
            states[column][where] = _number(rng, states[column])


@_way("states")
def views_of_themselves(rng: Random, path: Path) -> None:
    """Tensors are views of themselves, or of each other in a circle."""
    with _Array(rng, path, "states") as states:
        states["base"] = states["tensor"] if rng.random() < 0.5 else np.roll(states["tensor"], 1)
        states["what"] |= rng.choice([0, 4, 12])


@_way("states")
def other_forms(rng: Random, path: Path) -> None:
    """Values have the form of others: what is kept does not fit."""
    with _Array(rng, path, "states") as states:
        at = rng.randrange(len(states))
        states["form"][at] = rng.choice(states["form"].tolist())
        if rng.random() < 0.5:
            states["what"][at] = rng.randrange(256) | rng.randrange(4) << 8


@_way("states")
def a_chunk_of_another_length(rng: Random, path: Path) -> None:
    """A packed array is longer or shorter than it should be."""
    table = rng.choice(_PACKED)
    with closing(_opened(path)) as connection:
        chunk = rng.choice(connection.execute("SELECT id FROM chunks").fetchall())[0]
        data = _packed(connection, table, chunk)
        size = {"events": ROW.itemsize, "states": STATE.itemsize}.get(table, 4)
        new = rng.choice(
            [data[:-1], data[:-size], data + bytes(size), data + data[-size:], data[size:], b"", data * 2]
        )
        _pack(connection, table, chunk, new)


@_way("states")
def another_packing(rng: Random, path: Path) -> None:
    """A packed array is said to be kept in another way, from more or fewer numbers."""
    table = rng.choice(_PACKED)
    with closing(_opened(path)) as connection:
        chunk, data = rng.choice(connection.execute(f"SELECT chunk, data FROM {table}").fetchall())
        if rng.random() < 0.5:
            data = (
                unexpected(np.zeros(0, np.uint32), _packed(connection, table, chunk), rng.choice([7, 70]))
                or data
            )
        header = list(struct.unpack_from("<5I", data))
        header[rng.randrange(5)] = rng.choice(
            [0, 1, 2, 3, 7, 1 << 24, (1 << 24) + 1, (1 << 32) - 1, header[2]]
        )
        new = struct.pack("<5I", *header) + data[HEADER:]
        connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (new, chunk))


@_way("states")
def much_of_nothing(rng: Random, path: Path) -> None:
    """Chunks that take a few bytes stand for millions of events."""
    length = (1 << 24) // 28 * 28
    packed = struct.pack("<5I", 1, rng.choice([7, length // 4]), length, 0, 0) + zlib.compress(b"")
    with closing(_opened(path)) as connection:
        last, first = connection.execute("SELECT id, first + count FROM chunks ORDER BY id DESC").fetchone()
        columns = ", ".join("?" * len(TABLES["chunks"]))
        for number in range(last + 1, last + 1 + rng.choice([1, 100])):
            row = {"id": number, "first": first, "count": length // 28, "time": 0.0, "since": number}
            connection.execute(
                f"INSERT INTO chunks VALUES ({columns})", [row[name] for name in TABLES["chunks"]]
            )
            for table in _PACKED:
                connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, packed))
            first += length // 28


@_way("values")
def other_values(rng: Random, path: Path) -> None:
    """Values are NaN, infinite, huge or any bytes."""
    with closing(_opened(path)) as connection:
        chunk = rng.choice(connection.execute("SELECT id FROM chunks").fetchall())[0]
        data = _packed(connection, "payloads", chunk)
        content = bytearray(data)
        for _ in range(rng.choice([1, 5, 50])):
            at = rng.randrange(max(len(content) - 8, 1)) // 4 * 4
            content[at : at + 8] = rng.choice(
                [
                    struct.pack("<d", value)
                    for value in (float("nan"), float("inf"), -1e308, 1e308, -1.0, 5e-324)
                ]
                + [struct.pack("<2f", 3e38, -3e38), rng.randbytes(8)]
            )
        _pack(connection, "payloads", chunk, bytes(content[: len(data)]))
