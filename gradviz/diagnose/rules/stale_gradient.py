"""`stale-gradient`: a step uses a gradient that an earlier step has used already: it was not cleared between the two
steps, and a later pass added to it.

Why it is bad: backward() adds to `.grad`. Without clearing, each step follows the sum of all gradients since the first
pass.

Example:

    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.01)
    for step in range(4):
        loss = (w ** 2).sum()
        loss.backward()  # <- stale-gradient
        optimizer.step()

Cure: call `optimizer.zero_grad()` before each backward(), or `p.grad = None` after each step by hand.

Not reported: accumulation on purpose: several passes, then one step, then `zero_grad()`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.query.own_names import optimizer_name, seen_at
from gradviz.query.training import ACCUMULATED, BY_HAND, STEPPED
from gradviz.sets import distinct
from gradviz.words.escape import clean


def _search(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    came, used = lives.whats == ACCUMULATED, lives.whats == STEPPED
    used &= lives.before(came) > 0
    added = came & (lives.before(used) > 0) & (lives.after(used) > 0)
    if not added.any():
        return
    leaves = distinct(lives.leaves[added])
    first = int(np.flatnonzero(added)[np.argmin(lives.events[added])])
    number = int(lives.numbers[first])
    backward_pass = case.query.passes.by_number[number]
    window = lives.windows == lives.windows[first]
    step = int(lives.events[window & used][0])
    stepped = int(lives.numbers[window & used][0])
    if stepped == BY_HAND:
        cure = f"{case.words.called(int(leaves[0]))}.grad = None"
    else:
        cure = f"{_holder(case, stepped, leaves.tolist(), backward_pass.site)}.zero_grad()"
    yield Found(
        f"pass {number} adds to gradients that a step has already used ({case.called(leaves.tolist())}): "
        f"they are not cleared after {case.at(step)}",
        f"{cure}  # before backward()",
        (backward_pass.first, step, int(lives.events[first])),
        site=backward_pass.site,
        number=number,
        tensors=tuple(leaves.tolist()),
    )


def _holder(case: Case, optimizer: int, leaves: list[int], site: int) -> str:
    """The name, at a site, of what can clear the gradients of some leaves: their optimizer, or the one module that has
    them, if the program has several optimizers and the name of this one is not known."""
    name = optimizer_name(case.query, {optimizer})
    if not name and len(set(case.trace.table(Kind.HOLDS)["optimizer"].tolist())) > 1:
        paths = [path for path, own in case.query.modules.whole(leaves) if len(own) > 1]
        name = paths[0] if len(paths) == 1 else ""
    return clean(seen_at(case.query, site, name)) or "optimizer"


RULE = Rule(
    "stale-gradient",
    ERROR,
    "gradients that are not cleared after a step, so that the next pass adds to them",
    _search,
    needs=(Need.PASSES, Need.TRAINING),
)
