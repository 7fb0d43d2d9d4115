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

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.reach import Wanting, lacking
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.twins import learns_in_other_blocks
from gradviz.diagnose.unused_penalties import unused_penalties
from gradviz.query.lack import Lack, Lacks
from gradviz.query.source_trees import assigned_to, following, names_read, statement_at
from gradviz.tracefile import Site
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
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: {result}, which is computed from "
            f"{'it' if len(leaves) == 1 else 'them'}, reaches no root{lost}",
            cure or f"use {result} in the loss, or do not compute it",
            (own[0].event,),
            site=site,
            tensors=tuple(leaves),
            severity=NOTE if noted else WARNING,
        )
    for penalty in case.of(unused_penalties):
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


RULE = Rule(
    "off-loss-path",
    WARNING,
    "a result that never reaches the loss",
    _search,
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path",),
)
