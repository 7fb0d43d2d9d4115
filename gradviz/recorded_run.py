"""A run as tables: `gradviz.open(FILE)` answers SQL, and gives its tables to pandas."""

from __future__ import annotations

import math
import re
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.errors import GradvizError
from gradviz.events.kinds import REQUIRES_GRAD, Kind
from gradviz.events.values import Stat
from gradviz.query import curves as trace_curves
from gradviz.query.curves import NamedCurve
from gradviz.query.ledger import LINKS, Ledger
from gradviz.query.optimizer_steps import rates_of_groups
from gradviz.query.overview import called_modules, overview
from gradviz.query.query import Query
from gradviz.replaying import check
from gradviz.sources.notebook_cells import cell_links
from gradviz.system.paths import file_name
from gradviz.tracefile import Trace
from gradviz.tracefile.opening import opened_as
from gradviz.words.escape import clean
from gradviz.words.html_table import html_table, text_table
from gradviz.words.numbers import plural

Columns = dict[str, Sequence[Any]]
_STATISTICS = {"rms": Stat.RMS, "mean": Stat.MEAN, "min": Stat.MIN, "max": Stat.MAX}
_OF_LEAVES = ("leaf", "shape", "requires_grad", ".grad", "made at")
_MOST = 2**53  # the largest count that a double holds exactly
_COUNTS = {"nan": Stat.NAN, "inf": Stat.INF, "zeros": Stat.ZEROS}


def _events(query: Query) -> Columns:
    trace = query.trace
    names = {int(kind): kind.name.lower() for kind in Kind}
    return {
        "event": range(trace.count),
        "kind": [names[kind] for kind in trace.kinds.tolist()],
        "thread": (trace.events["head"] >> 16).tolist(),
        **_places(query, trace.events["site"]),
    }


def _ops(query: Query) -> Columns:
    trace = query.trace
    table = trace.table(Kind.OP)
    outputs = table.lists("outputs").firsts
    rows = trace.states.rows_of(outputs, table.events)
    forms = [trace.forms.get(int(form)) for form in np.where(rows >= 0, trace.states.forms[rows], 0).tolist()]
    return {
        "event": table.events.tolist(),
        "op": [trace.text(number) for number in table["op"].tolist()],
        "args": [trace.text(number) for number in table["args"].tolist()],
        "pass": [number or None for number in table["in_pass"].tolist()],
        "module": [trace.text(number) for number in _modules(query, table.events, table.threads)],
        "output": outputs.tolist(),
        "shape": [_shape(form.shape) if form is not None else None for form in forms],
        "dtype": [form.dtype if form is not None else None for form in forms],
        **_statistics(query, rows),
        **_places(query, table.sites),
    }


def _modules(query: Query, events: np.ndarray, threads: np.ndarray) -> list[int]:
    """The numbers of the names of the innermost scopes around events; 0 for none."""
    entered = query.trace.table(Kind.SCOPE_ENTERED)
    begins = query.scopes.nesting.innermost(events, threads)
    if not len(entered):
        return [0] * len(events)
    places = np.searchsorted(entered.events, begins)
    return np.where(begins >= 0, entered["name"][np.minimum(places, len(entered) - 1)], 0).tolist()


def _passes(query: Query) -> Columns:
    trace = query.trace
    began = trace.table(Kind.PASS_BEGAN)
    values = _by_pass(trace_curves.losses(query))
    norms, changes = _by_pass(trace_curves.norms_of_steps(query)), trace_curves.relative_changes(query)
    numbers, why = began["number"].tolist(), trace_curves.reasons(query)
    passes = [trace.find_pass(number) for number in numbers]
    return {
        "pass": numbers,
        "how": [trace.text(number) for number in began["how"].tolist()],
        "loss": [values.get(number) for number in numbers],
        "norm": [norms.get(number) for number in numbers],
        "change_ratio": [changes.get(number) for number in numbers],
        "why": [why.get(number) for number in numbers],
        "nodes": [backward_pass.nodes if backward_pass is not None else None for backward_pass in passes],
        "first_event": began.events.tolist(),
        "last_event": [backward_pass.last if backward_pass is not None else None for backward_pass in passes],
        **_places(query, began.sites),
    }


def _by_pass(curves: Sequence[NamedCurve]) -> dict[int, float]:
    """The values of curves by pass; of the last curve, where several have one."""
    return {
        number: value
        for curve in curves
        for number, value in zip(curve.at.tolist(), curve.values.tolist(), strict=True)
    }


def _parameters(query: Query) -> Columns:
    trace = query.trace
    names = trace.parameters
    known = {tensor: trace.snapshot(tensor) for tensor in names}
    parameters = [tensor for tensor in names if known[tensor] is not None and tensor not in trace.buffers]
    states = [state for tensor in parameters if (state := known[tensor]) is not None]
    return {
        "name": [names[tensor] for tensor in parameters],
        "module": [names[tensor].rpartition(".")[0] for tensor in parameters],
        "shape": [_shape(state.shape) for state in states],
        "dtype": [state.dtype for state in states],
        "elements": [math.prod(state.shape) for state in states],
        "requires_grad": [bool(state.flags & REQUIRES_GRAD) for state in states],
        "tensor": parameters,
    }


def _module_table(query: Query) -> Columns:
    modules = list(called_modules(query))
    return {
        "module": [path for path, _, _ in modules],
        "class": [type_ for _, type_, _ in modules],
        "ops": [ops for _, _, ops in modules],
    }


def _gradients(query: Query) -> Columns:
    trace = query.trace
    table = trace.table(Kind.ACCUMULATED)
    norms = query.of(trace_curves.accumulated_norms)
    rows = trace.states.rows_of(table["gradient"], table.events)
    return {
        "pass": table["in_pass"].tolist(),
        **_leaves(query, norms.leaves),
        "norm": _known(norms.values),
        "parameter_norm": _known(norms.sizes),
        **_statistics(query, rows),
        "event": table.events.tolist(),
    }


def _steps(query: Query) -> Columns:
    trace = query.trace
    stepped = trace.table(Kind.STEPPED)
    groups = stepped.lists("groups")
    texts = [trace.text(number) for number in groups.elements[:, 0].tolist()]
    return {
        "step": (groups.owners + 1).tolist(),
        "optimizer": stepped["optimizer"][groups.owners].tolist(),
        "class": [trace.text(number) for number in stepped["type"][groups.owners].tolist()],
        "parameter_group": groups.positions.tolist(),
        "lr": [rate if rate == rate else None for rate in query.of(rates_of_groups).tolist()],
        "settings": texts,
        "event": stepped.events[groups.owners].tolist(),
    }


def _errors(query: Query) -> Columns:
    trace = query.trace
    raised = trace.table(Kind.ERROR)
    return {
        "event": raised.events.tolist(),
        "error": [trace.text(number) for number in raised["type"].tolist()],
        "message": [trace.text(number) for number in raised["message"].tolist()],
        "pass": [number or None for number in raised["in_pass"].tolist()],
        **_places(query, raised.sites),
    }


def _updates(query: Query) -> Columns:
    norms = query.of(trace_curves.change_norms)
    return {
        "step": norms.at.tolist(),
        **_leaves(query, norms.leaves),
        "change": _known(norms.values),
        "parameter_norm": _known(norms.sizes),
        "ratio": _known(trace_curves.ratios(norms.values, norms.sizes)),
    }


def _ledger(query: Query) -> Columns:
    rows = query.of(Ledger).rows
    return {
        **_leaves(query, rows.leaves),
        "optimizer": rows.optimizers.tolist(),
        "event": rows.steps.tolist(),
        "passes": rows.passes.tolist(),
        "lost": rows.lost.tolist(),
        "norm": _known(rows.norms),
        "change": _known(rows.changes),
        "link": [LINKS[link].value for link in rows.links.tolist()],
    }


def _collectives(query: Query) -> Columns:
    trace = query.trace
    called = trace.table(Kind.COLLECTIVE)
    return {
        "collective": list(range(1, len(called.events) + 1)),
        "call": [trace.text(number) for number in called["how"].tolist()],
        "args": [trace.text(number) for number in called["args"].tolist()],
        "pass": [number or None for number in query.passes.numbers[called.events].tolist()],
        "event": called.events.tolist(),
        **_places(query, called.sites),
    }


TABLES: dict[str, tuple[Callable[[Query], Columns], str]] = {
    "passes": (_passes, "the backward passes: where each began, at which loss, with how many nodes"),
    "gradients": (_gradients, "what each leaf accumulated in each pass: norm and statistics, and its own norm"),
    "steps": (_steps, "the steps of optimizers, a row for each parameter group"),
    "updates": (_updates, "how much each step changed each parameter; NULL where that is not known"),
    "ledger": (_ledger, "what became of the gradient of each leaf at each step of its optimizer"),
    "parameters": (_parameters, "the parameters of modules at the end of the run"),
    "modules": (_module_table, "the modules that were called, and how many ops their first call ran"),
    "ops": (_ops, "the ops that were recorded in detail, with statistics of their first output"),
    "collectives": (_collectives, "the calls in which several processes take part, in their order on each rank"),
    "errors": (_errors, "the exceptions that left a pass, refused one, or ended the program"),
    "events": (_events, "all events"),
}

_TEXTS = frozenset(
    "args call class cure dtype error file finding how kind link message module name op rule settings severity shape"
    " why".split()
)
_REALS = frozenset("change change_ratio loss lr max mean min norm parameter_norm ratio rms".split())


def type_of(column: str) -> str:
    """The SQL type of a column of that name, in whichever table: TEXT, REAL or INTEGER."""
    return "TEXT" if column in _TEXTS else "REAL" if column in _REALS else "INTEGER"


def _leaves(query: Query, leaves: np.ndarray) -> Columns:
    """The names of leaves, and the modules that hold them."""
    numbers, places = np.unique(leaves, return_inverse=True)
    names = query.trace.parameters
    called = np.array([names.get(leaf) or query.labels.of(leaf) for leaf in numbers.tolist()], object)
    modules = np.array([names.get(leaf, "").rpartition(".")[0] for leaf in numbers.tolist()], object)
    return {"name": called[places].tolist(), "module": modules[places].tolist(), "tensor": leaves.tolist()}


def _places(query: Query, sites: np.ndarray) -> Columns:
    """The files and lines of sites; None where they are not known."""
    numbers, places = np.unique(sites.astype(np.int64), return_inverse=True)
    known = [query.trace.sites.get(number) for number in numbers.tolist()]
    files = np.array([site.place.file if site is not None else None for site in known], object)
    lines = np.array([site.place.line if site is not None else None for site in known], object)
    return {"file": files[places].tolist(), "line": lines[places].tolist()}


def _statistics(query: Query, rows: np.ndarray) -> Columns:
    """The statistics of states by their rows; None where no values were kept."""
    if not len(query.trace.states):
        return {name: [None] * len(rows) for name in (*_STATISTICS, *_COUNTS)}
    stats = np.where((rows >= 0)[:, None], query.trace.states.stats[rows], np.nan)
    statistics: Columns = {name: _numbers(stats[:, column]) for name, column in _STATISTICS.items()}
    counts = {name: _numbers(stats[:, column]) for name, column in _COUNTS.items()}
    return statistics | {name: list(map(_count, values)) for name, values in counts.items()}


def _count(value: float | None) -> int | None:
    """A count as a whole number; None for a number that cannot be a count, as in a damaged trace."""
    return int(value) if value is not None and abs(value) <= _MOST else None


def _known(values: np.ndarray) -> list[float | None]:
    return _numbers(np.where(values == -1, np.nan, values))


def _numbers(values: np.ndarray) -> list[float | None]:
    return [None if value != value else value for value in values.tolist()]


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"


FINDINGS = "findings"
TABLE_NAMES = (*TABLES, FINDINGS)
_MOST_SHOWN = 30  # rows, where a result is printed or shown in a notebook
_WORD = re.compile(r"\w+")
_READING = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}


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

    def __repr__(self) -> str:
        return text_table(_OF_LEAVES, self._leaves(), self._summary())

    def _repr_html_(self) -> str:
        return html_table(_OF_LEAVES, self._leaves(), self._summary(), links=cell_links(self))

    def _summary(self) -> str:
        """The program, how it ended, and the counts of what is recorded."""
        found = overview(self._query)
        counts = plural(found.ops, "operation"), plural(found.passes, "backward pass", "backward passes")
        how = self.meta.get("error") or self.meta.get("ended", "not to its end")
        program = file_name(self.meta.get("script", "")) or self.path.name
        return f"{program} · {', '.join(counts)}, {found.events:,} events · ended: {how}"

    def _leaves(self) -> list[tuple[str, ...]]:
        return [
            (leaf.name, str(leaf.shape), str(leaf.requires_grad), "yes" if leaf.has_grad else "None",
             f"{file_name(leaf.file)}:{leaf.line}" if leaf.line else "")
            for leaf in overview(self._query).leaves[:_MOST_SHOWN]
        ]  # fmt: skip

    def sql(self, query: str) -> Rows:
        """Ask the run in SQL, as SQLite speaks it: one SELECT over its tables, with `median(x)` besides SQLite's
        functions. Raises NoTable, in one line, for what SQLite refuses."""
        words = {word.lower() for word in _WORD.findall(query)}
        asked_of = [table for table in TABLE_NAMES if table in words]
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
            for table in asked_of:
                self._fill(database, table)
            database.create_aggregate("median", 1, _Median)  # type: ignore[arg-type]  # as its page shows it
            database.set_authorizer(lambda action, *_: sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY)
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
        return _pandas().DataFrame(self.columns(table))

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

    def columns(self, table: str) -> Columns:
        """The columns of a table by their names, all of one length. Unknown values, and norms that are not finite, are
        None."""
        return _findings(self) if table == FINDINGS else TABLES[table][0](self._query)

    def _fill(self, database: sqlite3.Connection, table: str) -> None:
        columns = self.columns(table)
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


def _pandas() -> Any:
    if find_spec("pandas") is None:
        raise NoTable("to_pandas needs pandas, which is not installed: pip install pandas")
    return import_module("pandas")


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
