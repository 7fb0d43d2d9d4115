"""How large a leaf's gradient was, pass by pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot

_MOST = 64  # passes looked at: of more, so many spread over the run
_LEAST = 3  # passes, to speak of a trend


@dataclass(frozen=True, slots=True)
class Trend:
    """The events that accumulated into a leaf, and the Euclidean norm of what each brought (NaN where it was not
    finite). Of many, a sample; `passes` is how many there are."""

    events: list[int]
    norms: list[float]
    passes: int


def trend(query: Query, leaf: int) -> Trend | None:
    """The trend of a leaf's gradient over the whole run; None where it has less than three passes or no values."""
    trace = query.trace
    events, _ = query.tensors.grads.of(leaf)
    events = events[trace.kinds[events] == Kind.ACCUMULATED]
    if len(events) < _LEAST:
        return None
    sample = events[np.unique(np.linspace(0, len(events) - 1, min(_MOST, len(events))).astype(int))]
    norms = []
    for event in sample.tolist():
        gradient = trace.table(Kind.ACCUMULATED).object(event).gradient
        norm = norm_of(query.at(event - 1).value(gradient))
        if norm is None:
            return None
        norms.append(norm)
    return Trend(sample.tolist(), norms, len(events))


def norm_of(snapshot: Snapshot | None) -> float | None:
    """The Euclidean norm of a tensor, √n times the root of the mean of squares: NaN where it is not finite, None where
    no value was kept."""
    if snapshot is None or snapshot.stats is None:
        return None
    stats = snapshot.stats
    if stats.nan or stats.inf:
        return math.nan
    return float(stats.rms) * math.sqrt(math.prod(snapshot.shape))
