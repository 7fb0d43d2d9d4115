"""`vanished-lr`: for the last fifth of the run or longer, the learning rate is below a millionth of the highest one
before it, while there still are gradients. A schedule that only ends near 0 is healthy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.sets import distinct
from gradviz.words.numbers import number

_SHARE, _LEAST = 0.2, 3


def _search(case: Case) -> Iterator[Found]:
    stepped = case.training.stepped
    for optimizer in distinct(stepped["optimizer"]).tolist():
        own = stepped["optimizer"] == optimizer
        events, rates = stepped.events[own], case.training.rates[own]
        if not np.isfinite(rates).all():
            continue
        tiny = rates <= case.settings.threshold("vanished-lr") * np.maximum.accumulate(rates)
        last = len(rates) - (np.flatnonzero(~tiny)[-1] + 1 if not tiny.all() else 0)
        if last < max(_LEAST, _SHARE * len(rates)) or not _has_gradients(case, int(events[-last])):
            continue
        first = int(events[-last])
        by = _lowering(case, optimizer, first)
        told = (
            f"from step {len(rates) - last + 1} of {len(rates)} on" if last < len(rates) else "in all steps"
        )
        yield Found(
            f"the learning rate is {number(float(rates[-last]), 3)} {told} (at most {number(float(rates.max()), 3)} "
            "before): the parameters hardly change any more",
            "step the scheduler once in the unit it was made for (per epoch, not per batch), or use a lower bound",
            (by if by >= 0 else first, first),
        )


def _lowering(case: Case, optimizer: int, step: int) -> int:
    """The last event of a scheduler before a step; −1 if there is none."""
    told = case.trace.table(Kind.SCHEDULED)
    own = told.events[np.isin(told["optimizer"], [optimizer, 0]) & (told.events < step)]
    return int(own[-1]) if len(own) else -1


def _has_gradients(case: Case, step: int) -> bool:
    came = case.trace.table(Kind.ACCUMULATED)
    rows = case.trace.states.rows_of(came["gradient"], came.events)
    late = (came.events > step) & (rows >= 0)
    return bool((case.trace.states.stats[rows[late], 3] > 0).any())


RULE = Rule(
    "vanished-lr",
    WARNING,
    "a learning rate that is almost 0 long before the end",
    _search,
    needs=(Need.VALUES, Need.STEPS),
)
