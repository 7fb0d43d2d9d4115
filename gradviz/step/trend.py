"""How large a leaf's gradient was, pass by pass: a line of bars."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Accumulated, Kind
from gradviz.graph.moment import Moments
from gradviz.step.numbers import number
from gradviz.tracefile import Snapshot

_BARS = "▁▂▃▄▅▆▇█"
_NOT_FINITE = "!"
_MOST = 64  # passes looked at: of more, so many spread over the run
_LEAST = 3  # passes, to speak of a trend
_DECADES = 2.0  # from so much between smallest and largest on, heights are of the logarithm


@dataclass(frozen=True, slots=True)
class Trend:
    """The events that accumulated into a leaf, and the Euclidean norm of what each brought. Of many, a sample."""

    events: list[int]
    norms: list[float]
    passes: int

    def bars(self, width: int) -> str:
        """At most `width` bars; each is the largest of those it stands for."""
        count = min(width, len(self.norms))
        if count < 1:
            return ""
        parts = np.array_split(np.array(self.norms), count)
        return _bars([float(part.max()) if np.isfinite(part).all() else math.nan for part in parts])

    def words(self) -> str:
        """From what to what."""
        first, last = self.norms[0], self.norms[-1]
        return f"norm {number(first, 3)} → {number(last, 3)} in {self.passes} passes"


def _bars(heights: list[float]) -> str:
    known = [height for height in heights if math.isfinite(height) and height > 0]
    if not known:
        return "".join(_NOT_FINITE if not math.isfinite(height) else _BARS[0] for height in heights)
    low, high = min(known), max(known)
    if math.log10(high / low) >= _DECADES:
        scaled = [math.log(height / low) / math.log(high / low) if height > 0 else 0.0 for height in heights]
    else:
        scaled = [height / high for height in heights]
    return "".join(
        _BARS[round(share * (len(_BARS) - 1))] if math.isfinite(height) else _NOT_FINITE
        for share, height in zip(scaled, heights, strict=True)
    )


def trend(moments: Moments, leaf: int) -> Trend | None:
    """The trend of a leaf's gradient over the whole run; None where it has less than three passes or no values."""
    trace = moments.trace
    events, _ = moments.grads.of(leaf)
    events = events[trace.kinds[events] == Kind.ACCUMULATED]
    if len(events) < _LEAST:
        return None
    sample = events[np.unique(np.linspace(0, len(events) - 1, min(_MOST, len(events))).astype(int))]
    norms = []
    for event in sample.tolist():
        made = trace.event(event)
        assert isinstance(made, Accumulated)
        norm = _norm(moments.at(event - 1).value(made.gradient))
        if norm is None:
            return None
        norms.append(norm)
    return Trend(sample.tolist(), norms, len(events))


def _norm(snapshot: Snapshot | None) -> float | None:
    """The Euclidean norm: √n times the root of the mean of squares."""
    if snapshot is None or snapshot.stats is None:
        return None
    stats = snapshot.stats
    if stats.nan or stats.inf:
        return math.nan
    return float(stats.rms) * math.sqrt(math.prod(snapshot.shape))
