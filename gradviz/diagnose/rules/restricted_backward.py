"""`restricted-backward`: `backward(inputs=...)` or `autograd.grad` leaves out parameters behind its root. An optimizer
holds them, and no other pass gives them a gradient.

Why it is bad: the parameters that are left out get no gradient and never change, though an optimizer is meant to
train them.

Example:

    torch.manual_seed(0)
    body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for step in range(3):
        loss = head(torch.relu(body(torch.randn(6, 4)))).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(inputs=list(head.parameters()))  # <- restricted-backward
        optimizer.step()

Cure: leave out `inputs=`, or name the other parameters too.

Not reported: parameters that get their gradient from another pass, or that no optimizer holds.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.fix import Edit, Fix, Spot
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind

_SITES = 16  # the most lines that are looked at


def _search(case: Case) -> Iterator[Found]:
    began = case.trace.table(Kind.PASS_BEGAN)
    asked = began.lists("inputs")
    asking = np.flatnonzero(asked.counts > 0)
    if not len(asking):
        return
    got = set(case.trace.table(Kind.ACCUMULATED)["tensor"].tolist()) | set(asked.values.tolist())
    got |= set(case.trace.table(Kind.GRAD_ASSIGNED)["tensor"].tolist())
    wanting = set(case.training.holders) - got
    learning = set(case.training.holders) & got
    if not wanting or not learning:
        return
    leaves = case.query.nodes.leaves
    for rows in list(case.by_site(began.events[asking]).values())[:_SITES]:
        backward_pass = began.object(int(rows[0]))
        behind = {
            leaves[n]
            for n in case.query.nodes.walk([root.node for root in backward_pass.roots])
            if n in leaves
        }
        left_out = tuple(sorted(behind & wanting))
        if left_out and set(backward_pass.inputs) & learning:
            yield Found(
                f"pass {backward_pass.number} is asked for the gradients of {case.called(backward_pass.inputs)} only: "
                f"{case.called(left_out)}, which the optimizer holds, never get{'s' * (len(left_out) == 1)} one",
                Fix("loss.backward()  # without inputs=; or ask for all parameters", _without_inputs),
                (backward_pass.index,),
                number=backward_pass.number,
                tensors=left_out,
            )


def _without_inputs(spot: Spot) -> list[Edit]:
    """`loss.backward()` without `inputs=`."""
    for call in spot.calls_here("backward"):
        if [keyword.arg for keyword in call.keywords] == ["inputs"] and not call.args:
            return [spot.source.replaced(call, f"{spot.source.code(call.func)}()")]
    return []


RULE = Rule(
    "restricted-backward",
    ERROR,
    "a pass that is asked for the gradients of some of the parameters only",
    _search,
    needs=(Need.STEP, Need.PASS, Need.DETAILS),
)
