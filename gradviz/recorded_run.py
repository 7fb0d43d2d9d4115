"""A run as tables: `gradviz.open(FILE)` answers SQL, and gives its tables to pandas."""

from __future__ import annotations

import re
import sqlite3
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from gradviz.errors import GradvizError
from gradviz.query.data_tables import TABLES, Columns, columns_of, type_of
from gradviz.query.query import Query
from gradviz.replaying import check
from gradviz.tracefile import Trace
from gradviz.tracefile.opening import opened_as
from gradviz.words.escape import clean
from gradviz.words.html_table import html_table, text_table

FINDINGS = "findings"
TABLE_NAMES = (*TABLES, FINDINGS)
_MOST_SHOWN = 30  # rows, where a result is printed or shown in a notebook
_WORD = re.compile(r"\w+")
_READING = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class NoTable(GradvizError):
    """A question that the tables of a trace do not answer. The message is one line for the user."""


class Rows:
    """The rows that SQL gave: `columns` are their names, each row is a tuple. A notebook shows them as a table."""

    def __init__(self, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> None:
        self.columns, self.rows = columns, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        return self.rows[place]

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame. Raises NoTable if pandas is not installed."""
        return _pandas().DataFrame(self.rows, columns=list(self.columns))

    def __repr__(self) -> str:
        return text_table(self.columns, self._shown_rows(), below=self._left_out)

    def _repr_html_(self) -> str:
        return html_table(self.columns, self._shown_rows(), below=self._left_out)

    def _shown_rows(self) -> list[tuple[str, ...]]:
        return [tuple(map(_shown, row)) for row in islice(self.rows, _MOST_SHOWN)]

    @property
    def _left_out(self) -> str:
        more = len(self.rows) - _MOST_SHOWN
        return f"and {more:,} more rows" if more > 0 else ""


class RecordedRun(Trace):
    """A recorded run, or the part of one that was recorded when it was opened: what is appended later is not seen.

    It answers SQL, and gives its tables to pandas: docs/tables.md describes them. `event(k)` is an event as an object,
    `table(kind)` all of a kind as columns, `states` what tensors were. Numbers of tensors, nodes and sites are those of
    `gradviz.events`. Reading raises TraceError where the file is damaged."""

    def sql(self, query: str) -> Rows:
        """Ask the run in SQL, as SQLite speaks it: one SELECT over its tables, with `median(x)` besides SQLite's
        functions. Raises NoTable, in one line, for what SQLite refuses."""
        words = {word.lower() for word in _WORD.findall(query)}
        asked_of = [table for table in TABLE_NAMES if table in words]
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
            for table in asked_of:
                self._fill(database, table)
            database.create_aggregate("median", 1, _Median)  # type: ignore[arg-type]  # as its page shows it
            database.set_authorizer(_only_reads)
            try:
                asked = database.execute(query)
                rows = asked.fetchall()
            except (sqlite3.Error, sqlite3.Warning) as error:
                tables = ", ".join(TABLE_NAMES)
                raise NoTable(f"SQLite says: {clean(str(error))} (the tables are {tables})") from None
            return Rows(tuple(name for name, *_ in asked.description or ()), rows)

    def to_pandas(self, table: str = "gradients") -> Any:
        """A table as a pandas DataFrame. Raises NoTable if there is no such table, or if pandas is not installed."""
        if table not in TABLE_NAMES:
            raise NoTable(f"there is no table {clean(table)!r}: the tables are {', '.join(TABLE_NAMES)}")
        return _pandas().DataFrame(self._columns(table))

    def save_tables(self, path: Path | str) -> None:
        """Write all tables into an SQLite file, which replaces a file of that name. Raises OSError where it cannot be
        written."""
        path = Path(path)
        with tempfile.TemporaryDirectory(prefix=".tables-", dir=path.absolute().parent) as folder:
            written = Path(folder) / path.name
            with closing(sqlite3.connect(written, isolation_level=None)) as database:
                for table in TABLE_NAMES:
                    self._fill(database, table)
            written.replace(path)

    @cached_property
    def _query(self) -> Query:
        return Query(self)

    def _columns(self, table: str) -> Columns:
        return _findings(self) if table == FINDINGS else columns_of(self._query, table)

    def _fill(self, database: sqlite3.Connection, table: str) -> None:
        columns = self._columns(table)
        database.execute("BEGIN")
        names = ", ".join(f'"{name}" {type_of(name)}' for name in columns)
        database.execute(f"CREATE TABLE {table} ({names})")
        marks = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", zip(*columns.values(), strict=True))
        database.execute("COMMIT")


def _findings(run: RecordedRun) -> Columns:
    """What `gradviz.check` finds, the cause first, with the first event that proves it."""
    findings = check(run).findings
    return {
        "finding": [finding.message for finding in findings],
        "rule": [finding.rule for finding in findings],
        "severity": [finding.severity for finding in findings],
        "cure": [finding.fix for finding in findings],
        "pass": [finding.number or None for finding in findings],
        "event": [finding.events[0] if finding.events else None for finding in findings],
        "file": [finding.file or None for finding in findings],
        "line": [finding.line or None for finding in findings],
    }


def open(path: Path | str) -> RecordedRun:
    """Open a trace for reading. Raises TraceError, in one line, where there is none or it is none."""
    return opened_as(RecordedRun, path)


class _Median:
    """SQL's `median`: of the values that are not NULL; NULL of none."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def step(self, value: float | None) -> None:
        if value is not None:
            self.values.append(value)

    def finalize(self) -> float | None:
        return statistics.median(self.values) if self.values else None


def _only_reads(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY


def _pandas() -> Any:
    if find_spec("pandas") is None:
        raise NoTable("to_pandas needs pandas, which is not installed: pip install pandas")
    return import_module("pandas")


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
