"""The steps of range tests. In a range test the program multiplies its learning rate by the same factor from step to
step, to see at which rate training diverges. So the divergence is no fault."""

from __future__ import annotations

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.sets import distinct

_LEAST = 5  # steps in a row
_FACTOR, _SAME = 1.02, 1e-3  # the least growth of a step, and the largest difference of two factors
_RISE = 10.0  # the least growth of the rate in all


def range_tests(case: Case) -> np.ndarray:
    """The events of the steps that belong to range tests. Use `case.of(range_tests)`."""
    stepped = case.training.stepped
    events = [stepped.events[:0]]
    for optimizer in distinct(stepped["optimizer"]).tolist():
        own = stepped["optimizer"] == optimizer
        events += [stepped.events[own][first:last] for first, last in _geometric(case.training.rates[own])]
    return np.sort(np.concatenate(events))


def _geometric(rates: np.ndarray) -> list[tuple[int, int]]:
    """The parts of a series that grow by the same factor from number to number, each as (first, last + 1)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = rates[1:] / rates[:-1]
    grows = factors >= _FACTOR
    same = grows[1:] & grows[:-1] & (np.abs(factors[1:] / factors[:-1] - 1) < _SAME)
    ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(int)))
    parts = [(first, last + 2) for first, last in ends.reshape(-1, 2).tolist()]
    return [
        (first, last)
        for first, last in parts
        if last - first >= _LEAST and rates[last - 1] >= _RISE * rates[first]
    ]
