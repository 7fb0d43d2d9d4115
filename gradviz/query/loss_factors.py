"""The numbers that a loss is multiplied by before its backward pass."""

from typing import NamedTuple

from gradviz.events.kinds import OpRan
from gradviz.events.values import Stat
from gradviz.query.flow import op_of
from gradviz.query.ops import DIVIDING, MULTIPLYING
from gradviz.query.query import Query
from gradviz.query.replicas import MOST_ROOTS


class ScaledLoss(NamedTuple):
    """The loss of a pass: the product of all numbers that it is multiplied by; the event and the number of each op that
    multiplies, the last first; and the name of the op that computes the loss before, with the shapes of its inputs."""

    factor: float
    numbers: tuple[tuple[int, float], ...]
    op: str
    shapes: tuple[object, ...]


def scaled_losses(query: Query) -> list[ScaledLoss | None]:
    """The losses of the first passes; None for a pass that begins at several roots, or whose op is not known. Use
    `query.of(scaled_losses)`."""
    return [_scaled(query, one.number) for one in query.trace.passes[:MOST_ROOTS]]


def _scaled(query: Query, pass_number: int) -> ScaledLoss | None:
    roots = query.passes.began(pass_number).roots
    op = op_of(query, roots[0].tensor) if len(roots) == 1 else None
    factor, numbers = 1.0, []
    if roots[0].gradient and (op is None or _value(query, op, roots[0].gradient) != 1):
        return None  # backward() is given another gradient
    while op is not None and (number := number_of(query, op)):
        factor *= number
        numbers.append((op.index, number))
        op = op_of(query, next(tensor for tensor in op.inputs if _has_gradient(query, tensor, op.index)))
    if op is None:
        return None
    shapes = tuple(query.trace.shape(tensor) for tensor in op.inputs if tensor)
    return ScaledLoss(factor, tuple(numbers), op.op, shapes)


def number_of(query: Query, op: OpRan) -> float:
    """The number that an op multiplies its input by; 0 for any other op, or if it multiplies by 0."""
    divides = op.op in DIVIDING
    if (not divides and op.op not in MULTIPLYING) or len(op.inputs) != 2:
        return 0.0
    flowing = [bool(tensor) and _has_gradient(query, tensor, op.index) for tensor in op.inputs]
    if sum(flowing) != 1 or (divides and not flowing[0]):
        return 0.0
    value = _value(query, op, op.inputs[flowing.index(False)])
    if not divides or not value:
        return value
    return 1 / value


def _value(query: Query, op: OpRan, operand: int) -> float:
    """The number that an operand is; 0 if it is unknown or not a single number."""
    if not operand:
        try:
            return float(op.args)
        except ValueError:
            return 0.0
    value = query.memory.value(operand, op.index)
    known = value is not None and value.array is not None and value.array.size == 1
    return float(value.array.item()) if known and value is not None and value.array is not None else 0.0


def _has_gradient(query: Query, tensor: int, event: int) -> bool:
    return bool(tensor) and query.tensors.requires_grad(tensor, event)


def loss_scale(query: Query, event: int) -> float:
    """The number that the root of the last pass that began before an event was multiplied by; 0 if it is no product
    with a number."""
    begun = [backward_pass for backward_pass in query.trace.passes if backward_pass.first < event]
    backward_pass = max(begun, key=lambda backward_pass: backward_pass.first, default=None)
    if backward_pass is None:
        return 0.0
    roots = query.passes.began(backward_pass.number).roots
    op = op_of(query, roots[0].tensor) if roots else None
    return constant_of(query, op) if op is not None and op.op in MULTIPLYING else 0.0


def constant_of(query: Query, op: OpRan) -> float:
    """The number in the arguments of an op, or the value of its second operand; 0 if there is none."""
    try:
        return float(op.args)
    except ValueError:
        pass
    states = query.trace.states
    for tensor in op.inputs[::-1][:1]:
        row = states.valued(tensor, op.index) if tensor else -1
        if row >= 0 and states.stats[row, Stat.MIN] == states.stats[row, Stat.MAX]:
            return float(states.stats[row, Stat.MIN])
    return 0.0
