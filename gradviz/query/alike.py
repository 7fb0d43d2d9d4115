"""Whether two tensors were computed in the same way from the same tensors."""

from __future__ import annotations

from gradviz.events.kinds import TensorMade
from gradviz.query.cuts import op_of
from gradviz.query.ops import ZEROS
from gradviz.query.query import Query

_MOST = 256  # the most pairs of tensors that are compared


def computed_alike(query: Query, one: int, other: int) -> bool:
    """Whether two tensors are the same, or were computed by the same ops from the same tensors, as when a program has
    an expression twice."""
    waiting, seen = [(one, other)], {(one, other)}
    while waiting and len(seen) < _MOST:
        first, second = waiting.pop()
        if first == second:
            continue
        left, right = op_of(query, first), op_of(query, second)
        if left is None and right is None and _is_zeros(query, first) and _is_zeros(query, second):
            continue
        if left is None or right is None or left.op != right.op or left.args != right.args:
            return False
        if len(left.inputs) != len(right.inputs):
            return False
        pairs = [pair for pair in zip(left.inputs, right.inputs, strict=True) if pair not in seen]
        waiting += pairs
        seen.update(pairs)
    return not waiting


def _is_zeros(query: Query, tensor: int) -> bool:
    made = query.tensors.made(tensor)
    return isinstance(made, TensorMade) and made.how in ZEROS
