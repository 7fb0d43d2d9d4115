"""A run as tables of plain columns, for `sql` and `to_pandas`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.events.kinds import REQUIRES_GRAD, Kind
from gradviz.events.values import Stat
from gradviz.query.curves import (
    NamedCurve,
    accumulated_norms,
    change_norms,
    losses,
    norms_of_steps,
    ratios,
    reasons,
    relative_changes,
)
from gradviz.query.optimizer_steps import number_of, settings_of
from gradviz.query.overview import called_modules
from gradviz.query.query import Query

Columns = dict[str, Sequence[Any]]
_STATISTICS = {"rms": Stat.RMS, "mean": Stat.MEAN, "min": Stat.MIN, "max": Stat.MAX}
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
    values = _by_pass(losses(query))
    norms, changes = _by_pass(norms_of_steps(query)), relative_changes(query)
    numbers, why = began["number"].tolist(), reasons(query)
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
    norms = query.of(accumulated_norms)
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
    rates = [number_of(settings_of(text).get("lr")) for text in texts]
    return {
        "step": (groups.owners + 1).tolist(),
        "optimizer": stepped["optimizer"][groups.owners].tolist(),
        "class": [trace.text(number) for number in stepped["type"][groups.owners].tolist()],
        "parameter_group": groups.positions.tolist(),
        "lr": [rate if rate == rate else None for rate in rates],
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
    norms = query.of(change_norms)
    return {
        "step": norms.at.tolist(),
        **_leaves(query, norms.leaves),
        "change": _known(norms.values),
        "parameter_norm": _known(norms.sizes),
        "ratio": _known(ratios(norms.values, norms.sizes)),
    }


TABLES: dict[str, tuple[Callable[[Query], Columns], str]] = {
    "passes": (_passes, "the backward passes: where each began, at which loss, with how many nodes"),
    "gradients": (
        _gradients,
        "what each leaf accumulated in each pass: norm and statistics, and its own norm",
    ),
    "steps": (_steps, "the steps of optimizers, a row for each parameter group"),
    "updates": (_updates, "how much each step changed each parameter; NULL where that is not known"),
    "parameters": (_parameters, "the parameters of modules at the end of the run"),
    "modules": (_module_table, "the modules that were called, and how many ops their first call ran"),
    "ops": (_ops, "the ops that were recorded in detail, with statistics of their first output"),
    "errors": (_errors, "the exceptions that left a pass, refused one, or ended the program"),
    "events": (_events, "all events"),
}

_TEXTS = frozenset(
    "args class cure dtype error file finding how kind message module name op rule settings severity shape why".split()
)
_REALS = frozenset("change change_ratio loss lr max mean min norm parameter_norm ratio rms".split())


def type_of(column: str) -> str:
    """The SQL type of a column of that name, in whichever table: TEXT, REAL or INTEGER."""
    return "TEXT" if column in _TEXTS else "REAL" if column in _REALS else "INTEGER"


def columns_of(query: Query, table: str) -> Columns:
    """The columns of a table, all of one length. Unknown values, and norms that are not finite, are None."""
    make, _ = TABLES[table]
    return make(query)


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
