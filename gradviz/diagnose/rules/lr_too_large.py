"""`lr-too-large`: the updates overshoot. The root and the norm of the gradients grow from step to step by a
factor of 1000 or more in all, or until a parameter is no longer finite.

Why it is bad: each step lands farther from the minimum than it began, until the numbers overflow.

Example:

    w = torch.tensor(1.0, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.5)
    for step in range(20):
        loss = (w - 3.0) ** 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- lr-too-large

Cure: divide the learning rate by 10 until the loss falls, or clip the gradients.

Not reported: a range test, which raises the rate on purpose.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR, WARNING
from gradviz.diagnose.nonfinite import Source, first_bad
from gradviz.diagnose.norms import norms_of_passes
from gradviz.diagnose.range_test import range_tests
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.query.training import STEPPED
from gradviz.sets import contained
from gradviz.words.numbers import number

_LEAST, _LEAST_FINITE = 3, 5  # passes, with and without an overflow at the end
_RISING = 0.7  # the share of the passes in which the norm has to rise


def _search(case: Case) -> Iterator[Found]:
    steps = case.training.lives.events[case.training.lives.whats == STEPPED]
    origin = case.of(first_bad)
    if len(steps) == 0:
        return
    for runs, norms in norms_of_passes(case):
        finite = np.isfinite(norms) & (norms > 0)
        rising = norms[finite]
        overflow = origin is not None and not finite.all()
        if len(rising) < (_LEAST if overflow else _LEAST_FINITE):
            continue
        growth = case.settings.threshold("lr-too-large")
        if rising[-1] < growth * (rising[0] if overflow else np.median(rising[:3])):
            continue
        if np.mean(np.diff(rising) > 0) < _RISING:
            continue
        first = (
            int(steps[np.searchsorted(steps, runs[0].first)]) if steps[-1] > runs[0].first else int(steps[0])
        )
        if contained(np.array([first]), case.of(range_tests)).any():
            continue
        yield Found(
            f"the norm of the gradients grows from {number(rising[0], 3)} to {number(rising[-1], 3)} in "
            f"{len(rising)} passes{' and then is no longer finite' if overflow else ''}: the updates overshoot",
            "use a smaller learning rate (a tenth), or clip the gradients before the step",
            (first, runs[-1].first),
            severity=ERROR if overflow else WARNING,
        )
        return
    if origin is not None and origin.source is Source.STEP:
        yield Found(
            f"a step makes {case.words.called(origin.tensor)} infinite or NaN while its gradients are finite",
            "use a smaller learning rate, or clip the gradients before the step",
            (origin.event, origin.harm),
            tensors=(origin.tensor,),
            severity=ERROR,
        )


RULE = Rule(
    "lr-too-large",
    WARNING,
    "updates that overshoot, so that the gradients grow from step to step",
    _search,
    needs=(Need.VALUES, Need.TRAINING, Need.PASSES),
)
