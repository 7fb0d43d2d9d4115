"""`ranks-hooks`: a hook changes the gradient of a parameter on some ranks alone, before the ranks average it.

Why it is bad: the ranks average changed and unchanged gradients. No rank sees a difference: all ranks step with the
same mean.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    if rank == 1:
        model.weight.register_hook(lambda grad: grad * 2)  # <- ranks-hooks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: register the hook on all ranks, or on none.

Not reported: hooks that change a gradient on all ranks, and hooks that change it in some passes only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import (
    ARE_AVERAGED,
    ARE_REPLICAS,
    RankFound,
    RankRule,
    named,
    site_of_event,
    site_of_tensor,
)
from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import called_ranks, plural

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


def _search(ranks: Replicas) -> Iterator[RankFound]:
    found = hooked_on_some(ranks)
    if found is None:
        return
    hooked = tuple([*ranks.ranks][place] for place in found.places)
    query = ranks.ranks[hooked[0]]
    yield RankFound(
        f"a hook changes the gradient of {named([found.name])} on {called_ranks(hooked)} alone, in each of the first "
        f"{plural(found.passes, 'pass', 'passes')}, and the ranks average it",
        "register the hook on all ranks, or on none",
        hooked,
        (found.events[0],),
        site=site_of_tensor(query, found.gradients[0]) or site_of_event(query, found.events[0]),
    )


RULE = RankRule(
    "ranks-hooks",
    WARNING,
    "gradients that hooks change on some ranks alone",
    _search,
    needs=(ARE_AVERAGED, ARE_REPLICAS),
)
