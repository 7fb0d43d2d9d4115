"""The scalings of gradients on a rank before the ranks reduce them, as by a clip that comes too early."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.changes import writes_by_any_name
from gradviz.query.collective_calls import ALL_REDUCE, all_reduced
from gradviz.query.query import Query
from gradviz.query.rank_values import are_close
from gradviz.query.scaled_parts import norm_of, one_factor
from gradviz.tracefile import Snapshot

_MOST_STEPS = 32
_Line = tuple[str, int]


class Scaling(NamedTuple):
    """The effect of one line on gradients before they are all-reduced: the number of optimizer steps before it, its
    first event, the parameters, the factor (NaN if the elements have no common one), the norm of the gradients before,
    the first event that all-reduces one of them, and whether the line calls a function that clips."""

    step: int
    event: int
    parameters: tuple[int, ...]
    factor: float
    norm: float
    reduced: int
    is_clip: bool


class _Write(NamedTuple):
    """The effect of a line on one gradient: `factor` is 1 if it changes nothing, NaN if it does not scale."""

    parameter: int
    event: int
    factor: float
    norm: float
    reduced: int


def early_scalings(query: Query) -> list[Scaling]:
    """The effects of lines on gradients before these are all-reduced, in order, for the first steps. Use
    `query.of(early_scalings)`."""
    steps = query.trace.table(Kind.STEPPED).events[:_MOST_STEPS].tolist()
    by_line: dict[tuple[int, _Line], list[_Write]] = {}
    since: dict[int, int] = {}
    for gradient, reduced in sorted(query.of(all_reduced).tolist(), key=lambda pair: pair[1]):
        step = bisect_left(steps, reduced)
        begin = max(since.get(gradient, 0), steps[step - 1] if step else 0)
        since[gradient] = reduced
        if step < _MOST_STEPS:
            for line, write in _writes(query, gradient, begin, reduced):
                by_line.setdefault((step, line), []).append(write)
    clips = {query.places.line(site) for site in query.trace.table(Kind.CLIPPED).sites.tolist()}
    scalings = [_scaling(step, writes, line in clips) for (step, line), writes in by_line.items()]
    return sorted(scalings, key=lambda one: one.event)


def _writes(query: Query, gradient: int, since: int, reduced: int) -> Iterable[tuple[_Line, _Write]]:
    """The effect of each line on a gradient between two events."""
    by_line: dict[_Line, list[int]] = {}
    for event in writes_by_any_name(query, gradient):
        if since < event < reduced and query.tensors.writer(event) != ALL_REDUCE:
            by_line.setdefault(query.places.line(int(query.trace.events["site"][event])), []).append(event)
    parameter = query.at(reduced).owner(gradient)
    for line, events in by_line.items() if parameter else ():
        before = query.trace.snapshot(gradient, events[0] - 1)
        after = query.trace.snapshot(gradient, events[-1])
        if (known := _factor(before, after)) is not None:
            yield line, _Write(parameter, events[0], *known, reduced)


def _factor(before: Snapshot | None, after: Snapshot | None) -> tuple[float, float] | None:
    """The factor by which a tensor was scaled, NaN if there is none, and its norm before; None if its values are not
    known."""
    if before is None or after is None or before.stats is None or after.stats is None:
        return None
    if not np.isfinite([before.stats.rms, after.stats.rms]).all():
        return None
    factor = 1.0 if before.stats == after.stats else one_factor(before, after)
    return (float("nan") if factor is None else factor), norm_of(before)


def _scaling(step: int, writes: Sequence[_Write], is_clip: bool) -> Scaling:
    factors = [write.factor for write in writes]
    return Scaling(
        step,
        min(write.event for write in writes),
        tuple(write.parameter for write in writes),
        factors[0] if are_close(factors) else float("nan"),
        float(np.sqrt(sum(write.norm**2 for write in writes))),
        min(write.reduced for write in writes),
        is_clip,
    )
