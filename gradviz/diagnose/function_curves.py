"""Custom Functions that work element by element, and whose backward is not the slope of their forward, by what a trace
holds of them.

All elements that the Function was given in the run, with what it made of them, are points of a curve. Between
neighbours the curve has a slope; the gradient that the backward returned, over the one that it was given, must be that
slope. So nothing runs again. Tensors have to be recorded in full (small ones always are)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind, OpRan, Produced
from gradviz.query.scopes import FUNCTION
from gradviz.sets import distinct

_POINTS = 12  # pairs of neighbours
_APART = 1e-3  # how far neighbours are apart at least, or rounding is all there is
_WRONG = 0.1  # the relative deviation, in the middle of all pairs
_CALLS = 256  # of a Function that are looked at


@dataclass(frozen=True, slots=True)
class Deviation:
    """Near `x` the forward of the Function of `op` has the slope `slope`, and its backward, which `ran`, multiplies by
    `given`."""

    op: OpRan
    ran: Produced
    x: float
    slope: float
    given: float


def deviations(case: Case, without: Collection[int]) -> Iterator[Deviation]:
    """Each Function whose backward deviates, but for those whose names (as numbers of strings) are in `without`."""
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
            told = _deviation(*(np.concatenate(column) for column in zip(*parts, strict=True)))
            if told is not None:
                (node, *_) = case.query.nodes.of_op(first[curve].index)
                yield Deviation(first[curve], _first(case, Kind.PRODUCED, node), *told)
                break


def _points(case: Case, op: OpRan) -> tuple[np.ndarray, ...] | None:
    """x, y and the slope by the backward, for each element of a call; None if that is not known."""
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
    """Where the slopes of a curve are not those that were given: a point, its slope, and the one that was given; None
    if they are alike, or there are too few points."""
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
