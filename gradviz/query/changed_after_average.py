"""The events that change gradients between the average over the ranks and the step that uses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.collective_calls import changes_between
from gradviz.query.query import Query
from gradviz.query.rank_values import are_apart, are_same
from gradviz.tracefile import Snapshot


class Averaged(NamedTuple):
    """The `.grad` of a parameter on one rank, all-reduced before a step: the parameter, the gradient, the event of the
    last all_reduce (`since`), and the event of the step (`until`)."""

    query: Query
    parameter: int
    gradient: int
    since: int
    until: int


def last_average(query: Query, pairs: np.ndarray, parameter: int, until: int) -> Averaged | None:
    """The last all_reduce of the `.grad` of a parameter up to the event `until`; None if there is none since the
    `.grad` was last None. `pairs` are all-reduced gradients with their events."""
    events, gradients = query.tensors.grads.of(parameter)
    before = events <= until
    events, gradients = events[before], gradients[before]
    since = int(events[gradients == 0].max(initial=-1))
    candidates = (
        np.isin(pairs[:, 0], gradients[events >= since]) & (pairs[:, 1] <= until) & (pairs[:, 1] >= since)
    )
    if not candidates.any():
        return None
    gradient, event = pairs[candidates][pairs[candidates][:, 1].argmax()].tolist()
    return Averaged(query, parameter, gradient, event, until)


def changed_since(averages: Sequence[Averaged]) -> tuple[int, ...]:
    """The events, one for each rank or 0, that made the `.grad` of a parameter differ between the ranks since it was
    all-reduced. Empty if there are none, or if it differed already then."""
    if not are_same([_value(one, one.since) for one in averages]):
        return ()
    changes = [_changes(one) for one in averages]
    alone = _at_own_lines(averages, changes)
    if any(alone):
        return alone
    for together in zip(*changes, strict=False):
        if are_apart([_value(one, event) for one, event in zip(averages, together, strict=True)]):
            return together
    return ()


def _value(one: Averaged, event: int) -> Snapshot | None:
    return one.query.tensors.gradient(one.parameter, event)


def _changes(one: Averaged) -> list[int]:
    """The events that write to the `.grad` since the average, or make it another tensor."""
    events, gradients = one.query.tensors.grads.of(one.parameter)
    other = gradients != np.append(0, gradients[:-1])[: len(gradients)]
    between = (events > one.since) & (events < one.until)
    held = [one.gradient, *gradients[between].tolist()]
    assigned = events[between & other & (one.query.trace.kinds[events] == Kind.GRAD_ASSIGNED)]
    written = {
        event
        for gradient in dict.fromkeys(held)
        for event in changes_between(one.query, gradient, one.since, one.until)
        if one.query.tensors.grad(one.parameter, event) == gradient
    }
    return sorted({*written, *assigned.tolist()})


def _at_own_lines(averages: Sequence[Averaged], changes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The first change of each rank at a line that not all ranks have a change at; 0 if a rank has none."""
    sites = [
        {event: one.query.places.at(event) for event in of_rank}
        for one, of_rank in zip(averages, changes, strict=True)
    ]
    on_all = set(sites[0].values()).intersection(*(of_rank.values() for of_rank in sites))
    return tuple(
        next((event for event, site in of_rank.items() if site not in on_all), 0) for of_rank in sites
    )
