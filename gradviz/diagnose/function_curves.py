"""Custom Functions that work element by element, and whose backward is not the slope of their forward. The recorded
values show it, so nothing runs again.

The elements of the Function's inputs in the run, with the elements of its outputs, are points of a curve. Between
neighbours the curve has a slope. The gradient that backward returned, divided by the gradient that it received, must
be this slope. Tensors have to be recorded in full (small tensors always are)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind, OpRan, Produced
from gradviz.query.scopes import FUNCTION
from gradviz.sets import distinct

_POINTS = 12  # the fewest pairs of neighbours
_APART = 1e-3  # the least distance of neighbours: between nearer points rounding hides the slope
_WRONG = 0.1  # the median of the relative deviations that is allowed
_CALLS = 256  # the most calls of a Function that are looked at


@dataclass(frozen=True, slots=True)
class Deviation:
    """A wrong slope: near `x` the forward of the Function of `op` has the slope `slope`, and its backward (the event
    `ran`) multiplies by `given`."""

    op: OpRan
    ran: Produced
    x: float
    slope: float
    given: float


def deviations(case: Case, without: Collection[int]) -> Iterator[Deviation]:
    """A deviation of each Function whose backward deviates, but for names (numbers of strings) in `without`."""
    entered = case.trace.table(Kind.SCOPE_ENTERED)
    names = distinct(entered["name"][case.trace.named(entered["kind"], (FUNCTION,))])
    ops = case.trace.table(Kind.OP)
    for name in set(names.tolist()) - set(without):
        curves: dict[tuple[object, ...], list[tuple[np.ndarray, ...]]] = {}
        first: dict[tuple[object, ...], OpRan] = {}
        for event in ops.events[ops["op"] == name][:_CALLS].tolist():
            op = ops.object(event)
            points = _points(case, op)
            if points is not None:
                key = (op.args, op.inputs[1:])
                curves.setdefault(key, []).append(points)
                first.setdefault(key, op)
        for curve, parts in curves.items():
            deviation = _deviation(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            if deviation is not None:
                (node, *_) = case.query.nodes.of_op(first[curve].index)
                yield Deviation(first[curve], _first(case, Kind.PRODUCED, node), *deviation)
                break


def _points(case: Case, op: OpRan) -> tuple[np.ndarray, ...] | None:
    """x, y and the slope by backward, for each element of a call; None if they are not known."""
    nodes = case.query.nodes.of_op(op.index)
    if not nodes or len(op.outputs) != 1 or not op.inputs[0]:
        return None
    received, produced = _first(case, Kind.RECEIVED, nodes[0]), _first(case, Kind.PRODUCED, nodes[0])
    if received is None or produced is None or not produced.flows:
        return None
    arrays = [
        _array(case, op.inputs[0], op.index - 1),
        _array(case, op.outputs[0], op.index),
        _array(case, received.gradients[0], received.index),
        _array(case, produced.flows[0].gradient, produced.index),
    ]
    known = [array for array in arrays if array is not None and array.dtype.kind == "f"]
    if len(known) < len(arrays) or len({array.shape for array in known}) != 1:
        return None
    x, y, came, went = (array.astype(np.float64).ravel() for array in known)
    usable = np.isfinite(x) & np.isfinite(y) & np.isfinite(went) & (np.abs(came) > 1e-12)
    return x[usable], y[usable], went[usable] / came[usable]


def _first(case: Case, kind: Kind, node: int) -> Any:
    table = case.trace.table(kind)
    rows = np.flatnonzero(table["node"] == node)
    return table.object(int(table.events[rows[0]])) if len(rows) else None


def _array(case: Case, tensor: int, at: int) -> np.ndarray | None:
    """All elements of a tensor at an event; None if they were not recorded."""
    row = case.trace.states.valued(tensor, at) if tensor else -1
    return case.trace.snapshot_of(row, row).array if row >= 0 else None


def _deviation(x: np.ndarray, y: np.ndarray, slopes: np.ndarray) -> tuple[float, float, float] | None:
    """(x, slope of the curve, slope by backward) at a point where the two slopes differ; None if the slopes agree, or
    if there are too few points."""
    x, places = np.unique(x, return_index=True)
    y, slopes = y[places], slopes[places]
    apart = np.diff(x)
    near = (apart > _APART) & (apart < max(float(np.ptp(x)) / 4, 10 * _APART)) if len(x) else apart > 0
    if near.sum() < _POINTS:
        return None
    true = (np.diff(y) / np.where(near, apart, 1.0))[near]
    given = ((slopes[1:] + slopes[:-1]) / 2)[near]
    size = np.maximum(np.maximum(np.abs(true), np.abs(given)), 1e-3 * max(float(np.abs(true).max()), 1e-12))
    off = np.abs(true - given) / size
    if np.median(off) <= _WRONG:
        return None
    worst = int(np.argsort(off)[len(off) // 2])
    return float(((x[1:] + x[:-1]) / 2)[near][worst]), float(true[worst]), float(given[worst])
