"""The modules of a run as a table: their classes, parameters and operations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gradviz.events.kinds import REQUIRES_GRAD, Kind
from gradviz.query.module_curves import alike
from gradviz.query.profile import flops_of_stretches, is_profiled
from gradviz.query.query import Query
from gradviz.query.tied_names import tied_names

_MOST_ROWS = 40  # the most rows without rolling; of more, equal ones share a row


@dataclass(slots=True)
class ModuleRow:
    """A module, or `count` equal modules whose paths differ in numbers: `h.*.attn`. `shapes` are the shapes of its own
    parameters by name, `own` the number of their elements in one module, and `trainable` the number of elements that
    require grad at the end. `ops` is the number of ops in its first call, with the ops of modules inside (None: not
    recorded), and `flops` the number of their floating-point operations (None: not measured). A row for a network that
    was never called stands for all of its `modules`."""

    path: str
    type: str
    depth: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    own: int = 0
    trainable: int = 0
    ops: int | None = None
    flops: float | None = None
    paths: list[str] = field(default_factory=list)
    modules: int = 1

    @property
    def count(self) -> int:
        """The number of modules that share the row."""
        return len(self.paths)


def model_summary(query: Query) -> list[ModuleRow]:
    """The modules that were called or hold parameters, outer ones before those inside, in the order of their first
    calls."""
    rows = {
        path: ModuleRow(path, type_, 0, ops=ops, paths=[path]) for path, type_, ops in called_modules(query)
    }
    _add_parameters(query, rows)
    if is_profiled(query):
        for path, flops in flops_of_stretches(query, query.of(_first_calls)).items():
            rows[path].flops = flops
    ordered = _ordered(_joined(rows))
    for row in ordered:
        row.depth = sum(outer in rows for outer in _around(row.path))
    return ordered if len(ordered) <= _MOST_ROWS else _rolled(ordered)


def called_modules(query: Query) -> Iterable[tuple[str, str, int | None]]:
    """The path and the class of each module that was called, and the number of ops in its first call."""
    entered = query.trace.table(Kind.SCOPE_ENTERED)
    ops = query.tensors.ops
    for path, (event, end) in query.of(_first_calls).items():
        inside = int(np.searchsorted(ops, end) - np.searchsorted(ops, event))
        yield path, entered.object(event).type, inside or None


def _first_calls(query: Query) -> dict[str, tuple[int, int]]:
    """The first and the last event of the first call of each module, by its path, in the order of the calls."""
    trace = query.trace
    entered = trace.table(Kind.SCOPE_ENTERED)
    modules = trace.named(entered["kind"], ("module",))
    names, first = np.unique(entered["name"][modules], return_index=True)
    events = entered.events[np.flatnonzero(modules)[first]]
    begins, ends, _ = query.scopes.nesting.stretches
    return {
        trace.text(name): (event, int(ends[np.searchsorted(begins, event)]))
        for event, name in sorted(zip(events.tolist(), names.tolist(), strict=True))
    }


def _add_parameters(query: Query, rows: dict[str, ModuleRow]) -> None:
    trace = query.trace
    for tensor, names in query.of(tied_names).items():
        for name in names:
            path, _, own_name = name.rpartition(".")
            if path in rows and (snapshot := trace.snapshot(tensor)) is not None:
                rows[path].shapes += ((f"{own_name} = {trace.parameters.get(tensor, '?')}", snapshot.shape),)
    for tensor, name in trace.parameters.items():
        snapshot = trace.snapshot(tensor) if tensor not in trace.buffers else None
        if snapshot is None:
            continue
        path, _, own_name = name.rpartition(".")
        row = rows.setdefault(path or name, ModuleRow(path or name, "", 0, paths=[path or name]))
        size = math.prod(snapshot.shape)
        row.shapes += ((own_name, snapshot.shape),)
        row.own += size
        row.trainable += size if snapshot.flags & REQUIRES_GRAD else 0


def _joined(rows: dict[str, ModuleRow]) -> dict[str, ModuleRow]:
    """The rows, with one row for a frozen network that was never called, such as an average of the weights."""
    networks: dict[str, list[ModuleRow]] = {}
    for row in rows.values():
        networks.setdefault(row.path.partition(".")[0], []).append(row)
    return {
        row.path: row
        for name, of_network in networks.items()
        for row in (
            [_copy_of(name, of_network)] if len(of_network) > 1 and _is_never_used(of_network) else of_network
        )
    }


def _is_never_used(rows: Iterable[ModuleRow]) -> bool:
    return not any(row.type or row.trainable for row in rows)


def _copy_of(name: str, rows: list[ModuleRow]) -> ModuleRow:
    return ModuleRow(
        name,
        f"{len(rows)} modules, not called",
        0,
        own=sum(row.own for row in rows),
        paths=[name],
        modules=len(rows),
    )


def _around(path: str) -> list[str]:
    """The paths of the modules around a module, outermost first."""
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _ordered(rows: dict[str, ModuleRow]) -> list[ModuleRow]:
    """The rows in order: each outer module, and right after it the modules inside."""
    first: dict[str, int] = {}
    for place, path in enumerate(rows):
        for outer in (*_around(path), path):
            first.setdefault(outer, place)
    return sorted(rows.values(), key=lambda row: [(first[p], p) for p in (*_around(row.path), row.path)])


def _rolled(rows: list[ModuleRow]) -> list[ModuleRow]:
    """The rows, with one row for rows that differ only in the numbers of their paths."""
    by_pattern: dict[tuple[str, object], ModuleRow] = {}
    for row in rows:
        pattern = alike(row.path)
        key = (pattern, (row.type, row.shapes, row.trainable))
        if key in by_pattern:
            by_pattern[key].paths.append(row.path)
        else:
            by_pattern[key] = row
    for row in by_pattern.values():
        row.path = _shared_path(row.paths)
    return list(by_pattern.values())


def _shared_path(paths: list[str]) -> str:
    """One path for several of equally many parts: parts that differ are `*`."""
    parts = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(part[0] if len(set(part)) == 1 else "*" for part in parts)
