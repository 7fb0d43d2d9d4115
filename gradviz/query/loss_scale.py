"""The scale of a loss: the number that a root was multiplied by, as a gradient scaler does in mixed precision."""

from __future__ import annotations

from gradviz.events.kinds import OpRan
from gradviz.events.values import Stat
from gradviz.query.flow import op_of
from gradviz.query.ops import MULTIPLYING
from gradviz.query.query import Query


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
