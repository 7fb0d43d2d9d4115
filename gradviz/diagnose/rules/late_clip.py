"""`late-clip`: a gradient is changed in place (clipped, scaled) after the step that used it, and is cleared, or
the run ends, before another step uses it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.query.training import ACCUMULATED, CHANGED, STEPPED


def _search(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    came, used = lives.whats == ACCUMULATED, lives.whats == STEPPED
    changed = lives.whats == CHANGED
    late = changed & (lives.before(came) > 0) & (lives.before(used) > 0) & (lives.after(used) == 0)
    late &= lives.after(came) == 0
    for events in case.by_site(np.unique(lives.events[late])).values():
        leaves = tuple(np.unique(lives.leaves[np.isin(lives.events, events)]).tolist())
        yield Found(
            f"the gradients of {case.called(leaves)} are changed after the step that used them: it has no effect",
            "loss.backward(); clip_grad_norm_(...); optimizer.step()  # in this order",
            (int(events[0]),),
            tensors=leaves,
        )


RULE = Rule(
    "late-clip",
    ERROR,
    "gradients that are clipped or changed after the step, where it has no effect",
    _search,
    needs=(Need.TRAINING,),
)
