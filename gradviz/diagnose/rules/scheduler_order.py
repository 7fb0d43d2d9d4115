"""`scheduler-order`: a learning-rate scheduler is stepped before the optimizer has stepped for the first time, so that
the first value of its schedule is never used."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.words.escape import clean


def _search(case: Case) -> Iterator[Found]:
    told, stepped = case.scheduled, case.training.stepped
    for optimizer in np.unique(told["optimizer"]).tolist():
        own = told.events[(told["optimizer"] == optimizer) & (told["steps"] > 0)]
        steps = stepped.events[stepped["optimizer"] == optimizer] if optimizer else stepped.events
        if len(own) and len(steps) and own[0] < steps[0]:
            event = told.object(int(own[0]))
            yield Found(
                f"{clean(event.type)} is stepped before the optimizer: the first rate of its schedule is skipped",
                "optimizer.step(); scheduler.step()  # in this order",
                (int(own[0]), int(steps[0])),
            )


RULE = Rule(
    "scheduler-order",
    WARNING,
    "a scheduler that is stepped before the optimizer",
    _search,
    needs=(Need.SCHEDULER, Need.STEP),
)
