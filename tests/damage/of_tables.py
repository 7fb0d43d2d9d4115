"""Ways to damage the tables of a trace: cells, rows, the schema."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

from tests.damage.ways import opened, run, way

# --- tables


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
    "skipped": ("number", "passes", "first", "last", "stride", "thread", "site"),
    "parameters": ("tensor", "name", "role"),
    "variables": ("tensor", "name"),
    "errors": ("event", "type", "message", "node", "site"),
    "printed": ("number", "event", "site", "text", "length"),
    "chunks": ("id", "first", "count", "time", "since"),
    "contents": (
        "chunk", "since_event", "highest_tensor", "highest_node", "ops", "new_nodes", "first_nan",
        "entangled", "data",
    ),
    "site_ops": ("site", "op", "is_last"),
    "events": ("chunk", "data"),
    "links": ("chunk", "data"),
    "states": ("chunk", "data"),
    "payloads": ("chunk", "data"),
}  # fmt: skip
PACKED = ("events", "links", "states", "payloads")
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
    with closing(opened(path)) as connection:
        some = connection.execute(f"SELECT {TABLES[table][0]} FROM {table} LIMIT 500").fetchall()
        where = "" if rng.random() < 0.2 or not some else f"WHERE {TABLES[table][0]} = ?"
        key = rng.choice(some) if where else ()
        connection.execute(f"UPDATE OR REPLACE {table} SET {column} = {cast} {where}", (value, *key))


@way("cells")
def a_cell(rng: Random, path: Path) -> None:
    """A cell, or a whole column, holds something else."""
    _changed_cell(rng, path, rng.choice(list(TABLES)), _nasty_value(rng))


@way("cells")
def a_cell_of_its_type(rng: Random, path: Path) -> None:
    """As `a_cell`, in a table that a person would query, of the type that belongs there."""
    table = rng.choice([name for name in TABLES if name not in PACKED])
    column = rng.choice(TABLES[table])
    is_text = column in (
        "key", "value", "text", "shape", "dtype", "device", "inputs", "file", "function", "names", "digest", "name",
        "type", "message",
    )  # fmt: skip
    is_json = column in ("shape", "inputs", "names")
    value = rng.choice(_JSON) if is_json else rng.choice(_TEXTS) if is_text else rng.choice(_NUMBERS)
    with closing(opened(path)) as connection:
        keys = connection.execute(f"SELECT {TABLES[table][0]} FROM {table} LIMIT 500").fetchall()
        connection.execute(
            f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {TABLES[table][0]} = ?",
            (value, *rng.choice(keys or [(0,)])),
        )


@way("cells")
def text_that_is_no_text(rng: Random, path: Path) -> None:
    """A text is no UTF-8, or has half of a surrogate pair."""
    table = rng.choice(["meta", "strings", "forms", "sites", "sources", "parameters", "errors"])
    _changed_cell(rng, path, table, rng.choice([b"\xff\xfe", b"a\xed\xa0\x80b", b"\xc0\x80"]), "CAST(? AS TEXT)")


@way("cells")
def a_nasty_name(rng: Random, path: Path) -> None:
    """Names and texts hold what a terminal, a browser or Graphviz would obey."""
    table, column = rng.choice(
        [("strings", "text"), ("parameters", "name"), ("sites", "file"), ("sites", "function"), ("meta", "value"),
         ("sources", "text"), ("errors", "message"), ("errors", "type"), ("forms", "dtype"), ("forms", "device")]
    )  # fmt: skip
    with closing(opened(path)) as connection:
        connection.execute(f"UPDATE {table} SET {column} = {column} || ?", (_NASTY,))


@way("cells")
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
    with closing(opened(path)) as connection:
        connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        if rng.random() < 0.5:
            connection.execute("INSERT OR REPLACE INTO meta VALUES ('ended', 'error')")


@way("rows")
def a_row_less(rng: Random, path: Path) -> None:
    """A row, or all rows, of a table are missing."""
    table = rng.choice(list(TABLES))
    some = "" if rng.random() < 0.3 else f"WHERE {TABLES[table][0]} % 3 = {rng.randrange(3)}"
    run(path, f"DELETE FROM {table} {some}")


@way("rows")
def a_row_more(rng: Random, path: Path) -> None:
    """A table has a row that is like another, but for its key."""
    table = rng.choice([name for name in TABLES if name not in ("meta", "sources")])
    key, *others = TABLES[table]
    number = rng.choice(_NUMBERS)
    columns = ", ".join([key, *others])
    run(path, f"INSERT INTO {table} ({columns}) SELECT {', '.join([str(number), *others])} FROM {table} LIMIT 1")


@way("rows")
def swapped_chunks(rng: Random, path: Path) -> None:
    """Two chunks have each other's content, or two tables have."""
    one, two = (rng.choice(PACKED) for _ in range(2))
    with closing(opened(path)) as connection:
        numbers = [number for (number,) in connection.execute("SELECT id FROM chunks")]
        first, second = rng.choice(numbers), rng.choice(numbers)
        find = "SELECT data FROM {} WHERE chunk = ?"
        found = [
            connection.execute(find.format(table), (number,)).fetchone()[0]
            for table, number in ((one, first), (two, second))
        ]
        for table, number, data in ((one, first, found[1]), (two, second, found[0])):
            connection.execute(f"UPDATE {table} SET data = ? WHERE chunk = ?", (data, number))


@way("schema")
def a_view_in_place_of_a_table(rng: Random, path: Path) -> None:
    """A table is a view that has no end, that takes long, or that makes much of nothing."""
    table = rng.choice(list(TABLES))
    columns = TABLES[table]
    endless = "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n) SELECT {} FROM n {}"
    some = ", ".join(
        f"i AS {name}" if at == 0 and table != "meta" else f"'x' || i AS {name}" for at, name in enumerate(columns)
    )
    bodies = [
        endless.format(some, ""),
        endless.format(some, "WHERE i < -1"),
        f"SELECT {', '.join(f'zeroblob(900000000) AS {name}' for name in columns)}",
        f"SELECT {', '.join(f'hex(zeroblob(400000000)) AS {name}' for name in columns)}",
        f"SELECT * FROM old_{table}",
    ]
    body = rng.choice(bodies)
    run(path, f"ALTER TABLE {table} RENAME TO old_{table}", f"CREATE VIEW {table} AS {body}")


@way("schema")
def something_beside_the_tables(rng: Random, path: Path) -> None:
    """There is a trigger, an index, a view or a table too many."""
    table = rng.choice(list(TABLES))
    column = TABLES[table][-1]
    run(
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


@way("schema")
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
    run(path, f"ALTER TABLE {table} RENAME TO old", make, copied, "DROP TABLE old")


@way("schema")
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
    with closing(opened(path)) as connection:
        connection.executescript(f"PRAGMA writable_schema = ON; {statement}; PRAGMA writable_schema = OFF;")
