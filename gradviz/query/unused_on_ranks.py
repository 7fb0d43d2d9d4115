"""Parameters that a pass gives a gradient on some ranks alone, while DistributedDataParallel waits for all ranks."""

from __future__ import annotations

from typing import NamedTuple

from gradviz.events.kinds import Kind
from gradviz.query.failures import failures
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas

_WAITED = "Expected to have finished reduction in the prior iteration"  # DistributedDataParallel's message


class UnusedOnSome(NamedTuple):
    """Parameters that a pass gives no gradient on the ranks in `places`, but does on other ranks; and the first event
    of that pass on the ranks in `places`."""

    names: tuple[str, ...]
    pass_number: int
    places: tuple[int, ...]
    events: tuple[int, ...]


def unused_on_some(ranks: Replicas) -> UnusedOnSome | None:
    """The parameters that got a gradient on some ranks alone in the last pass before DistributedDataParallel raised.
    None if it did not raise, or if all ranks used the same parameters."""
    waiting = [
        query for query in ranks.queries if any(_WAITED in failure.message for failure in failures(query))
    ]
    number = min((len(query.trace.passes) for query in ranks.queries), default=0)
    if not waiting or not number:
        return None
    passes = [query.trace.passes[number - 1] for query in ranks.queries]
    used = [_reached(query, one.number) for query, one in zip(ranks.queries, passes, strict=True)]
    reached = dict.fromkeys(name for names in used for name in names)
    apart = [name for name in reached if not all(name in names for names in used)]
    if not apart:
        return None
    without = {name: tuple(place for place, names in enumerate(used) if name not in names) for name in apart}
    places = without[apart[0]]
    alike = tuple(name for name in apart if without[name] == places)
    return UnusedOnSome(alike, passes[0].number, places, tuple(passes[place].first for place in places))


def _reached(query: Query, pass_number: int) -> list[str]:
    """The names of the parameters that a pass gave a gradient, in the order in which they were made."""
    came = query.trace.table(Kind.ACCUMULATED)
    tensors = sorted(came["tensor"][came["in_pass"] == pass_number].tolist())
    return [name for tensor in tensors if (name := query.trace.parameters.get(tensor))]
