"""The modules of a run as a table: their classes, parameters and operations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gradviz.events.kinds import REQUIRES_GRAD, Kind
from gradviz.query.module_curves import alike
from gradviz.query.query import Query

_MOST_ROWS = 40  # that are all shown; of more, equal ones share a row


@dataclass(slots=True)
class ModuleRow:
    """A module, or `count` equal ones whose paths differ in numbers: `h.*.attn`. `shapes` are those of its own
    parameters by name, `own` is how many elements they have in one module, `trainable` how many of these require grad
    at the end. `ops` is how many ops ran in its first call (None: that was not recorded), with those of modules
    inside."""

    path: str
    type: str
    depth: int
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    own: int = 0
    trainable: int = 0
    ops: int | None = None
    paths: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many modules share the row."""
        return len(self.paths)


def model_summary(query: Query) -> list[ModuleRow]:
    """The modules that were called or hold parameters, outer ones before those inside, in the order of their first
    calls."""
    rows = {
        path: ModuleRow(path, type_, 0, ops=ops, paths=[path]) for path, type_, ops in called_modules(query)
    }
    _add_parameters(query, rows)
    ordered = _ordered(rows)
    for row in ordered:
        row.depth = sum(outer in rows for outer in _around(row.path))
    return ordered if len(ordered) <= _MOST_ROWS else _rolled(ordered)


def called_modules(query: Query) -> Iterable[tuple[str, str, int | None]]:
    """The path and the class of each module that was called, and how many ops its first call ran."""
    trace = query.trace
    entered = trace.table(Kind.SCOPE_ENTERED)
    modules = trace.named(entered["kind"], ("module",))
    names, first = np.unique(entered["name"][modules], return_index=True)
    firsts = np.flatnonzero(modules)[first]
    begins, ends, _ = query.scopes.nesting.stretches
    ops = query.tensors.ops
    for name, row in sorted(zip(names.tolist(), firsts.tolist(), strict=True), key=lambda pair: pair[1]):
        event = int(entered.events[row])
        end = int(ends[np.searchsorted(begins, event)])
        inside = int(np.searchsorted(ops, end) - np.searchsorted(ops, event))
        yield trace.text(name), trace.text(int(entered["type"][row])), inside or None


def _add_parameters(query: Query, rows: dict[str, ModuleRow]) -> None:
    trace = query.trace
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


def _around(path: str) -> list[str]:
    """The paths of the modules around one, outermost first."""
    parts = path.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _ordered(rows: dict[str, ModuleRow]) -> list[ModuleRow]:
    """Rows with those of outer modules before those inside, which follow at once."""
    first: dict[str, int] = {}
    for place, path in enumerate(rows):
        for outer in (*_around(path), path):
            first.setdefault(outer, place)
    return sorted(rows.values(), key=lambda row: [(first[p], p) for p in (*_around(row.path), row.path)])


def _rolled(rows: list[ModuleRow]) -> list[ModuleRow]:
    """Rows of which those that differ in numbers of their paths alone are one."""
    found: dict[tuple[str, object], ModuleRow] = {}
    for row in rows:
        pattern = alike(row.path)
        key = (pattern, (row.type, row.shapes, row.trainable))
        if key in found:
            found[key].paths.append(row.path)
        else:
            found[key] = row
    for row in found.values():
        row.path = _shared_path(row.paths)
    return list(found.values())


def _shared_path(paths: list[str]) -> str:
    """One path for several that have as many parts: parts that differ are `*`."""
    parts = zip(*(path.split(".") for path in paths), strict=True)
    return ".".join(part[0] if len(set(part)) == 1 else "*" for part in parts)
