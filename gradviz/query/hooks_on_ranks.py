"""Hooks that change the gradient of a parameter on some ranks of a run, and not on others."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas

_PASSES = 4  # the most passes that are compared
_LEAST = 2  # the fewest: in one pass the effect of a hook may come from its data


class HookedOnSome(NamedTuple):
    """A parameter whose gradient hooks change on the ranks in `places` alone, in each of the first passes; for the
    first pass the events and the gradients that the hooks gave, on these ranks; and the number of passes."""

    name: str
    places: tuple[int, ...]
    events: tuple[int, ...]
    gradients: tuple[int, ...]
    passes: int


def hooked_on_some(ranks: Replicas) -> HookedOnSome | None:
    """The first parameter whose gradient hooks change on some ranks alone; None if there is none."""
    count = min(_PASSES, *(len(query.trace.passes) for query in ranks.queries))
    if count < _LEAST:
        return None
    of_ranks = [query.of(hooked) for query in ranks.queries]
    for name in ranks.common:
        does = {tuple(name in passes[at] for passes in of_ranks) for at in range(count)}
        if len(does) == 1 and len(set(*does)) > 1:
            places = tuple(place for place, it_does in enumerate(next(iter(does))) if it_does)
            first = [of_ranks[place][0][name] for place in places]
            events, gradients = zip(*first, strict=True)
            return HookedOnSome(name, places, events, gradients, count)
    return None


def hooked(query: Query) -> list[dict[str, tuple[int, int]]]:
    """The parameters whose gradients hooks changed in each of the first passes, by name: the event, and the gradient
    that the hook gave. Use `query.of(hooked)`."""
    table = query.trace.table(Kind.HOOKED)
    changed = []
    for one in query.trace.passes[:_PASSES]:
        rows = np.flatnonzero((table["in_pass"] == one.number) & (table["tensor"] > 0)).tolist()
        changed.append(
            {
                query.names.of(int(table["tensor"][row])) or "": (
                    int(table.events[row]),
                    int(table["after"][row]),
                )
                for row in rows
            }
        )
    return changed
