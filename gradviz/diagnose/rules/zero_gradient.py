"""`zero-gradient`: parameters get nothing but zeros in every pass, because a line gives only zeros for the
gradients that it receives: `round`, `sign`, a product with 0, `clamp` outside of its range. A loss of 0 that sends
none is healthy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.blocked import HOOKED_CALL, blocks
from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.rule import Found, Need, Rule

_CURES = {
    "round": "x + (x.round() - x).detach()  # a straight-through estimator",
    "floor": "x + (x.floor() - x).detach()  # a straight-through estimator",
    "ceil": "x + (x.ceil() - x).detach()  # a straight-through estimator",
    "sign": "torch.tanh(x / temperature)  # in place of sign",
    "clamp": "keep the input inside of the range, or use a soft limit (tanh, sigmoid)",
}
_MINIMA = {"pow", "square", "abs", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"}
_CURE = "use an op here whose derivative is not 0 everywhere"


def _search(case: Case) -> Iterator[Found]:
    for block in case.of(blocks):
        made = case.query.nodes.event(block.node)
        op = case.query.nodes.op(block.node)
        name = case.query.tensors.op(op).op if op is not None else ""
        if name == HOOKED_CALL or _is_minimum(case, op):
            continue
        what = case.words.expression_of(made, 40) if made is not None else case.words.node_name(block.node)
        yield Found(
            f"the gradient of {case.called(block.leaves)} is 0 in every pass: {what} gives 0 for any gradient",
            _CURES.get(name, _CURE),
            (block.event, *((made.index,) if made is not None else ())),
            site=block.site,
            node=block.node,
            number=block.number,
            tensors=block.leaves,
            severity=NOTE if name == "mul" and _is_switched_off(case, op) else "",
        )


def _is_minimum(case: Case, op: int | None) -> bool:
    """Whether an op gave only zeros at the minimum of a loss, where no gradient flows, as is right."""
    if op is None:
        return False
    ran = case.query.tensors.op(op)
    is_square = ran.op == "mul" and len(set(ran.inputs)) == 1
    if ran.op not in _MINIMA and not is_square:
        return False
    rows = case.trace.states.rows_of(np.array(ran.outputs), np.full(len(ran.outputs), op))
    return bool((rows >= 0).all() and (case.trace.states.stats[rows, 3] == 0).all())


def _is_switched_off(case: Case, op: int | None) -> bool:
    """Whether an op is a product with the number 0: `0.0 * extra_loss` is written on purpose."""
    return op is not None and 0 in case.query.tensors.op(op).inputs


RULE = Rule(
    "zero-gradient",
    WARNING,
    "a line behind which all gradients are 0",
    _search,
    needs=(Need.VALUES, Need.DETAILS, Need.PASSES),
    follows=(
        "dead-relu",
        "constant-output",
        "hook-changed-gradient",
        "saturated-activation",
        "detached-path",
    ),
)
