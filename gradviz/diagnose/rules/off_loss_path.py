"""`off-loss-path`: a leaf that should learn is used, but no result that is computed from it reaches a root. Also
reported: a penalty on the gradient of `autograd.grad(..., create_graph=True)` that reaches none, in each round of the
training.

Why it is bad: these results have no effect on training, and the leaf gets no gradient.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    scale = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([w, scale], lr=0.1)
    x, y = torch.randn(8, 3), torch.randn(8)
    for step in range(3):
        penalty = (scale ** 2).sum()  # <- off-loss-path
        loss = ((x @ w - y) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: add the term to the loss, or return and use the result of the branch.

Not reported: results that are only logged. The output that the last of several equal blocks makes for a next block is
a note only. Parameters in no optimizer that the program itself writes to again and again: it searches their values
without gradients.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.twins import learns_in_other_blocks
from gradviz.diagnose.without_gradient import Wanting, lacking, lacks_gradient
from gradviz.events.kinds import Kind
from gradviz.query.flow import leaves_of
from gradviz.query.missing_gradients import Lack, Lacks
from gradviz.query.source_trees import assigned_to, following, names_read, statement_at
from gradviz.sets import contained, distinct
from gradviz.tracefile import PassInfo, Site
from gradviz.words.escape import clean


def _search(case: Case) -> Iterator[Found]:
    by_place: dict[Site | None, list[Wanting]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.OFF_PATH:
            by_place.setdefault(case.query.of(Lacks).place(lack.lacking), []).append(lack)
    for site, own in by_place.items():
        leaves = [lack.leaf for lack in own]
        noted = all(lack.severity == NOTE or learns_in_other_blocks(case, lack.leaf) for lack in own)
        result = case.called(case.query.tensors.op(own[0].event).outputs)
        lost, cure = _overwritten(case, own[0].event)
        yield Found(
            f"{lacks_gradient(case, leaves)}: {result}, which is computed from "
            f"{'it' if len(leaves) == 1 else 'them'}, reaches no root{lost}",
            cure or f"use {result} in the loss, or do not compute it",
            (own[0].event,),
            site=site,
            tensors=tuple(leaves),
            severity=NOTE if noted else WARNING,
        )
    for penalty in case.of(_unused_penalties):
        name, number = case.words.called(penalty.tensor), penalty.backward_pass.number
        yield Found(
            f"{name} is computed from the gradient of pass {number}, whose graph is kept (create_graph=True), and "
            "reaches no root: no step takes it into account",
            f"add {name} to the loss, or do not compute it",
            (penalty.op, penalty.backward_pass.first),
            tensors=penalty.leaves,
        )


def _overwritten(case: Case, event: int) -> tuple[str, str]:
    """The line that gives the variable of a result another value before any other line reads it, and the assignment
    that adds to it; both empty if there is none."""
    for statement in following(case.query, case.place(event)):
        name = assigned_to(statement_at(case.query, case.place(event)))
        if isinstance(statement, ast.Assign) and name and assigned_to(statement) == name:
            value = ast.unparse(statement.value)
            if name not in names_read(statement):
                cure = f"{name} = {name} + {value}  # in place of {name} = {value}, line {statement.lineno}"
                return f": line {statement.lineno} gives {clean(name)} another value", clean(cure)
        if not name or name in names_read(statement):
            break
    return "", ""


# --- penalties that reach no root


_LEAST = 3  # passes from one line
_MOST = 256  # the most results of a gradient that are looked at


@dataclass(frozen=True, slots=True)
class UnusedPenalty:
    """A scalar that was computed from the gradient of a pass, the op that made it, and the trained leaves behind it."""

    backward_pass: PassInfo
    tensor: int
    op: int
    leaves: tuple[int, ...]


def _unused_penalties(case: Case) -> list[UnusedPenalty]:
    """The first penalty of each line whose penalties are in no loss. None if some passes were not recorded in
    detail: they may go through a penalty. Use `case.of(_unused_penalties)`."""
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


RULE = Rule(
    "off-loss-path",
    WARNING,
    "a result that never reaches the loss",
    _search,
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path",),
)
