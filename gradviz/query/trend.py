"""The development of the norm of a leaf's gradient over the passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.sets import contained
from gradviz.tracefile import Snapshot

_MOST = 64  # the most passes that are all measured
_SAMPLE = 16  # the number of passes that are measured if there are more, spread over the run
_LEAST = 3  # the fewest passes that make a trend


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """The events that accumulated into a leaf, and the Euclidean norm of each gradient (NaN if it is not finite). If
    the run has many passes, only a sample of them is measured; `of` is the number of all passes then, else 0."""

    events: list[int]
    norms: list[float]
    of: int


def trend(query: Query, leaf: int) -> Trend | None:
    """The trend of a leaf's gradient over the whole run; None if it has fewer than three passes, or values
    are missing."""
    trace = query.trace
    numbers = trace.pass_numbers
    sample = numbers if len(numbers) <= _MOST else _spread(numbers)
    for number in sample:
        trace.find_pass(number)
    table = trace.table(Kind.ACCUMULATED)
    sampled = (table["tensor"] == leaf) & contained(table["in_pass"], sample)
    events = table.events[sampled].tolist()
    if len(events) < _LEAST:
        return None
    norms = []
    for event in events:
        gradient = trace.table(Kind.ACCUMULATED).object(event).gradient
        norm = norm_of(query.memory.value(gradient, event - 1))
        if norm is None:
            return None
        norms.append(norm)
    return Trend(events, norms, len(numbers) if len(sample) < len(numbers) else 0)


def _spread(numbers: list[int]) -> list[int]:
    return [numbers[place] for place in np.linspace(0, len(numbers) - 1, _SAMPLE).astype(int).tolist()]


def norm_of(snapshot: Snapshot | None) -> float | None:
    """The Euclidean norm of a tensor: √n times its root mean square. NaN if it is not finite, None if no
    value was kept."""
    if snapshot is None or snapshot.stats is None:
        return None
    stats = snapshot.stats
    if stats.nan or stats.inf:
        return math.nan
    return float(stats.rms) * math.sqrt(math.prod(snapshot.shape))
