"""Penalties on a gradient that are in no loss: `autograd.grad(..., create_graph=True)` in each round of the training,
a scalar that is computed from the result, and no pass that goes through it. The graph of a gradient is made for such a
pass alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.flow import leaves_of
from gradviz.sets import contained, distinct
from gradviz.tracefile import PassInfo

_LEAST = 3  # passes from one line
_MOST = 256  # the most results of a gradient that are looked at


@dataclass(frozen=True, slots=True)
class UnusedPenalty:
    """A scalar that was computed from the gradient of a pass, the op that made it, and the trained leaves behind it."""

    backward_pass: PassInfo
    tensor: int
    op: int
    leaves: tuple[int, ...]


def unused_penalties(case: Case) -> list[UnusedPenalty]:
    """The first penalty of each line whose penalties are in no loss. None if some passes were not recorded in
    detail: they may go through a penalty. Use `case.of(unused_penalties)`."""
    began = case.trace.table(Kind.PASS_BEGAN)
    numbers = began["number"][case.trace.named(began["how"], ("grad",)) & began["create_graph"].astype(bool)]
    if not len(numbers) or not all(one.recorded for one in case.trace.passes):
        return []
    by_site: dict[int, list[PassInfo]] = {}
    for one in case.trace.passes:
        if one.number in numbers:
            by_site.setdefault(one.site, []).append(one)
    found = []
    for passes in by_site.values():
        if len(passes) < _LEAST or _are_used(case, [one.number for one in passes]):
            continue
        penalty = _penalty(case, passes[0])
        if penalty is not None and _is_one_for_each_step(case, passes, penalty.leaves):
            found.append(penalty)
    return found


def _are_used(case: Case, numbers: list[int]) -> bool:
    """Whether some pass goes through a node that one of these passes made."""
    ops, made, received = (case.trace.table(kind) for kind in (Kind.OP, Kind.NODE, Kind.RECEIVED))
    inside = ops.events[contained(ops["in_pass"], numbers)]
    nodes = made["node"][contained(made["op"], inside)]
    return bool(contained(received["node"], nodes).any())


def _penalty(case: Case, backward_pass: PassInfo) -> UnusedPenalty | None:
    """The last scalar with a graph that is computed from the gradients of a pass; None if there is none, or if no
    trained leaf is behind it."""
    produced = case.trace.table(Kind.PRODUCED)
    flows = produced.lists("flows")
    gradients = distinct(flows.elements[(produced["in_pass"] == backward_pass.number)[flows.owners], 1])
    last = -1, 0
    for gradient in filter(None, gradients.tolist()):
        for tensor in case.downstream.results(gradient, _MOST):
            event = case.query.tensors.maker(tensor)
            is_scalar = case.query.tensors.shape(tensor) == ()
            if event is not None and case.query.tensors.is_op(event) and is_scalar:
                is_outside = not case.query.tensors.op(event).in_pass
                if is_outside and case.query.tensors.requires_grad(tensor, event):
                    last = max(last, (event, tensor))
    event, tensor = last
    leaves = tuple(leaf for leaf in leaves_of(case.query, tensor) if leaf in case.training.trained)
    return UnusedPenalty(backward_pass, tensor, event, leaves) if leaves else None


def _is_one_for_each_step(case: Case, passes: list[PassInfo], leaves: tuple[int, ...]) -> bool:
    """Whether these passes take turns with the steps of the optimizers that train the leaves: an evaluation now and
    then does not."""
    optimizers = {optimizer for leaf in leaves for optimizer in case.training.holders.get(leaf, ())}
    stepped = case.training.stepped
    steps = np.sort(stepped.events[contained(stepped["optimizer"], sorted(optimizers))])
    before = np.searchsorted(steps, [one.first for one in passes])
    return len(steps) >= _LEAST and bool((np.diff(before) == 1).all())
