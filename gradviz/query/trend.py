"""How the norm of a leaf's gradient develops over the passes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.tracefile import Snapshot

_MOST = 64  # the most passes that are measured; they are spread over the run
_LEAST = 3  # the fewest passes that make a trend


@dataclass(frozen=True, slots=True, eq=False)
class Trend:
    """The events that accumulated into a leaf, and the Euclidean norm of each gradient (NaN if it is not
    finite). If there are many, this is a sample; `passes` is the number of all."""

    events: list[int]
    norms: list[float]
    passes: int


def trend(query: Query, leaf: int) -> Trend | None:
    """The trend of a leaf's gradient over the whole run; None if it has fewer than three passes, or values
    are missing."""
    trace = query.trace
    events, _ = query.tensors.grads.of(leaf)
    events = events[trace.kinds[events] == Kind.ACCUMULATED]
    if len(events) < _LEAST:
        return None
    sample = events[distinct(np.linspace(0, len(events) - 1, min(_MOST, len(events))).astype(int))]
    norms = []
    for event in sample.tolist():
        gradient = trace.table(Kind.ACCUMULATED).object(event).gradient
        norm = norm_of(query.at(event - 1).value(gradient))
        if norm is None:
            return None
        norms.append(norm)
    return Trend(sample.tolist(), norms, len(events))


def norm_of(snapshot: Snapshot | None) -> float | None:
    """The Euclidean norm of a tensor: √n times its root mean square. NaN if it is not finite, None if no
    value was kept."""
    if snapshot is None or snapshot.stats is None:
        return None
    stats = snapshot.stats
    if stats.nan or stats.inf:
        return math.nan
    return float(stats.rms) * math.sqrt(math.prod(snapshot.shape))
