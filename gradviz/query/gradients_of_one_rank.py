"""Steps that all ranks make with the gradients that one rank computed: the gradients of the other ranks are lost."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.changes import grad_changes
from gradviz.query.query import Query
from gradviz.query.rank_values import are_apart, are_same
from gradviz.query.replicas import Replicas
from gradviz.tracefile import Snapshot


class TakenFromOne(NamedTuple):
    """The parameters that all ranks step, at the first step, with the gradient of one rank (its `place` among the
    ranks); and for each rank the last event that changed the `.grad` of the first parameter."""

    names: tuple[str, ...]
    place: int
    events: tuple[int, ...]


def taken_from_one(ranks: Replicas) -> TakenFromOne | None:
    """The parameters of replicas whose first step uses the gradients of one rank, as its only pass before gave them,
    although the other ranks had computed different gradients. None unless this is so of all parameters."""
    if not ranks.steps or not ranks.are_replicas:
        return None
    at = [step.index for step in ranks.steps[0]]
    if any(
        sum(one.first < event for one in query.trace.passes) != 1
        for query, event in zip(ranks.queries, at, strict=True)
    ):
        return None
    places: dict[str, int | None] = {name: _giver(ranks, name, at) for name in ranks.common}
    givers = set(places.values())
    place = next(iter(givers), None)
    if len(givers) != 1 or place is None:
        return None
    first = ranks.common[0]
    of_ranks = zip(ranks.queries, ranks.parameters, at, strict=True)
    events = tuple(_last_change(query, known[first], event) for query, known, event in of_ranks)
    return TakenFromOne(tuple(ranks.common), place, events)


def _giver(ranks: Replicas, name: str, at: list[int]) -> int | None:
    """The place of the only rank whose gradient of a parameter all ranks step with; None if there is none."""
    of_ranks = list(zip(ranks.queries, ranks.parameters, at, strict=True))
    computed = [_computed(query, known[name], event) for query, known, event in of_ranks]
    stepped = [query.tensors.gradient(known[name], event) for query, known, event in of_ranks]
    if not are_same(stepped) or not all(map(_is_some, computed)):
        return None
    givers = [place for place, value in enumerate(computed) if are_same([value, stepped[0]])]
    others = [place for place, value in enumerate(computed) if are_apart([value, stepped[0]])]
    return givers[0] if len(givers) == 1 and len(others) == len(of_ranks) - 1 else None


def _is_some(value: Snapshot | None) -> bool:
    """Whether a gradient is known and not 0."""
    return value is not None and value.stats is not None and value.stats.rms > 0


def _computed(query: Query, tensor: int, until: int) -> Snapshot | None:
    """The gradient that the last pass before an event gave a leaf."""
    came = query.trace.table(Kind.ACCUMULATED)
    rows = np.flatnonzero((came["tensor"] == tensor) & (came.events < until))
    return (
        query.trace.snapshot(int(came["gradient"][rows[-1]]), int(came.events[rows[-1]]))
        if len(rows)
        else None
    )


def _last_change(query: Query, tensor: int, until: int) -> int:
    changes = grad_changes(query, tensor)
    return int(changes[changes < until].max(initial=0))
