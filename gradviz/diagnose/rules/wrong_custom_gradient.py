"""`wrong-custom-gradient`: the backward of a custom Function does not return the derivative of its forward.

With `--check-functions` the run itself compares each Function with finite differences, and the trace has the result. A
Function that was not compared is judged by its recorded values: see `function_curves.py`.

Why it is bad: training goes in a direction that is not that of the loss, slowly or not at all, and nothing raises.

Example:

    torch.manual_seed(0)
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x
        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x  # <- wrong-custom-gradient
    x = torch.linspace(-2, 2, 40, requires_grad=True)
    Square.apply(x).sum().backward()

Cure: derive the formula again, and check it with `torch.autograd.gradcheck` in float64.

Not reported: any Function, unless the rule is asked for by `--check-functions` or `--select wrong-custom-gradient`:
straight-through estimators and gradient reversal deviate on purpose.
"""

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from gradviz.diagnose.rule import ERROR, Case, Found, Need, Rule
from gradviz.events.kinds import FunctionCompared, Kind, OpRan
from gradviz.query.scopes import FUNCTION
from gradviz.query.statements import returned_at
from gradviz.sets import distinct
from gradviz.words.numbers import number

_FIX = (
    "return grad_output times the derivative of forward (torch.autograd.gradcheck compares them element by element); "
    "where it is meant to differ, # gradviz: ignore[wrong-custom-gradient]"
)


def _compared(case: Case) -> Iterator[FunctionCompared]:
    table = case.trace.table(Kind.COMPARED)
    return (table.object(event) for event in table.events.tolist())


@Rule(
    "wrong-custom-gradient",
    ERROR,
    "a custom Function whose backward is not the derivative of its forward (with --check-functions or --select)",
    needs=(Need.COMPARED, Need.DETAILS, Need.PASS),
    opt_in=True,
    asked_for_it=lambda case: bool(case.trace.meta.get("check_functions")),
    left_out=lambda case: iter({(event.function, event.why_not): None for event in _compared(case) if event.why_not}),
    at_once=True,
)
def wrong_custom_gradient(case: Case) -> Iterator[Found]:
    reported = set()
    for event in _compared(case):
        if event.is_wrong and (event.function, event.argument) not in reported:
            reported.add((event.function, event.argument))
            op = case.query.nodes.op(event.node)
            yield Found(
                _said(event),
                _FIX,
                (event.index,) if op is None else (event.index, op),
                site=returned_at(case.query, event.function),
                node=event.node,
                number=event.in_pass,
            )
    table = case.trace.table(Kind.COMPARED)
    yield from _deviations(case, without=distinct(table["function"]).tolist())


def _said(event: FunctionCompared) -> str:
    name, argument = event.function, event.argument
    if math.isnan(event.given):  # a copy of a trace that is to be shared
        return f"the backward of {name} is not the derivative of its forward for {argument}"
    if not event.given:
        return (
            f"the backward of {name} gives no gradient for {argument}, but by finite differences forward has one: "
            f"{number(event.found, 3)} along a direction"
        )
    tail = ", as that of a straight-through estimator" if not event.found else ""
    return (
        f"the backward of {name} is not the derivative of its forward for {argument}{tail}: along a direction it gives "
        f"{number(event.given, 3)}, and finite differences give {number(event.found, 3)}"
    )


# --- the curve of a Function


_POINTS = 12  # the fewest pairs of neighbours
_APART = 1e-3  # the least distance of neighbours: between nearer points rounding hides the slope
_WRONG = 0.1  # the median of the relative _deviations that is allowed
_CALLS = 256  # the most calls of a Function that are looked at


def _deviations(case: Case, without: Collection[int]) -> Iterator[Found]:
    """A finding for each Function whose backward deviates, but for names (numbers of strings) in `without`."""
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
                op, (x, slope, given) = first[curve], deviation
                ran = _first(case, Kind.PRODUCED, case.query.nodes.of_op(op.index)[0])
                yield Found(
                    f"near x = {number(x, 3)} the slope of {op.op} is {number(slope, 3)}, but its backward multiplies "
                    f"by {number(given, 3)}",
                    _FIX,
                    (ran.index, op.index),
                    site=returned_at(case.query, op.op),
                    node=ran.node,
                    number=ran.in_pass,
                )
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
