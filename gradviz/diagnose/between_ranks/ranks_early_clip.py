"""`ranks-early-clip`: gradients are clipped on each rank before the ranks average them: each rank scales its gradients
by another factor.

Why it is bad: the limit applies to the gradients of one rank, and not to their mean, which has a smaller norm. A rank
with large gradients counts less in the mean, and the step changes with the number of ranks.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <- ranks-early-clip
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: clip between the average and the step.

Not reported: gradients that all ranks scale by the same factor, as when no norm is above the limit; gradients that a
rank weights by the size of its batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, each_rank, named, site_of_event
from gradviz.events.kinds import Kind
from gradviz.query.changes import writes_by_any_name
from gradviz.query.collective_calls import ALL_REDUCE, all_reduced
from gradviz.query.query import Query
from gradviz.query.ranks import are_close
from gradviz.query.reduced_gradients import norm_of, one_factor
from gradviz.query.replicas import Replicas
from gradviz.tracefile import Snapshot
from gradviz.words.numbers import number

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


_LONGEST = 80  # characters of an expression
_Scaled = dict[int, Scaling | None]  # by rank


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if not all(map(len, ranks.reduced)):
        return
    every = {rank: query.of(early_scalings) for rank, query in ranks.ranks.items()}
    for step in sorted({scaling.step for scalings in every.values() for scaling in scalings}):
        by_rank = {
            rank: [scaling for scaling in scalings if scaling.step == step]
            for rank, scalings in every.items()
        }
        scaled = _by_function(by_rank) or _by_hand(by_rank)
        if scaled is not None:
            yield _found(ranks, scaled)
            return


def _by_function(by_rank: dict[int, list[Scaling]]) -> _Scaled | None:
    """The first call on each rank of a function that clips, if its factor is not the same on all ranks; else None."""
    scaled = {
        rank: next((scaling for scaling in scalings if scaling.is_clip), None)
        for rank, scalings in by_rank.items()
    }
    factors = [1.0 if scaling is None else scaling.factor for scaling in scaled.values()]
    return None if are_close(factors) else scaled


def _by_hand(by_rank: dict[int, list[Scaling]]) -> _Scaled | None:
    """The first line that gives the gradients of all ranks the same norm, by different factors; None if none does."""
    for together in zip(*by_rank.values(), strict=False):
        norms = [scaling.factor * scaling.norm for scaling in together]
        if not are_close([scaling.factor for scaling in together]) and are_close(norms) and min(norms):
            return dict(zip(by_rank, together, strict=True))
    return None


def _found(ranks: Replicas, scaled: _Scaled) -> RankFound:
    changed = {
        rank: scaling for rank, scaling in scaled.items() if scaling is not None and scaling.factor != 1
    }
    rank, first = next(iter(changed.items()))
    query = ranks.ranks[rank]
    names = [query.names.of(parameter) or "a parameter" for parameter in first.parameters]
    clips = _expression(query, first.event)
    many = len(names) > 1
    return RankFound(
        f"the gradient{'s' * many} of {named(names)} {'are' if many else 'is'} clipped before the ranks average "
        f"{'them' if many else 'it'}: each rank scales its own, "
        f"{each_rank(ranks, [_scaled_by(scaling) for scaling in scaled.values()])}, and {_then(query, first)} follows",
        f"{clips}  # between the average and the step",
        tuple(changed),
        (first.event, first.reduced),
    )


def _scaled_by(scaling: Scaling | None) -> str:
    """The words for the scaling of a rank's gradients: `by 0.5`, `not at all`, `element by element`."""
    if scaling is None or scaling.factor == 1:
        return "not at all"
    return f"by {number(scaling.factor, 4)}" if isfinite(scaling.factor) else "element by element"


def _expression(query: Query, event: int) -> str:
    """The call that clips, to be typed."""
    site = site_of_event(query, event)
    text = query.places.expression(site.number) if site is not None else ""
    return text if 0 < len(text) <= _LONGEST else "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def _then(query: Query, scaling: Scaling) -> str:
    site = site_of_event(query, scaling.reduced)
    return "the all_reduce" if site is None else f"the all_reduce at line {site.place.line}"


RULE = RankRule(
    "ranks-early-clip", WARNING, "gradients that are clipped before the ranks average them", _search
)
