"""`ranks-unused`: a parameter gets a gradient on some ranks alone. DistributedDataParallel waits for the gradient on
all ranks, and refuses to go on.

Why it is bad: the rank that does not use the parameter raises an error at its next forward, and the other ranks wait
for it or lose their connection.

Example:

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.main, self.extra = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x, with_extra):
            return self.main(x) + (self.extra(x) if with_extra else 0)

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4), rank == 0).pow(2).mean().backward()  # <- ranks-unused
        optimizer.step()

Cure: `DistributedDataParallel(Net(), find_unused_parameters=True)`, or use all parameters in each pass on each rank.

Not reported: parameters that all ranks leave out (see `unused-parameter`), and models with
`find_unused_parameters=True`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, named
from gradviz.events.kinds import Kind
from gradviz.query.failures import failures
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import called_ranks

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


def _search(ranks: Replicas) -> Iterator[RankFound]:
    found = unused_on_some(ranks)
    if found is None:
        return
    lacking = tuple([*ranks.ranks][place] for place in found.places)
    others = [rank for rank in ranks.ranks if rank not in lacking]
    many = len(found.names) > 1
    yield RankFound(
        f"{named(found.names)} get{'s' * (not many)} no gradient on {called_ranks(lacking)} in pass "
        f"{found.pass_number}, and {'do' if many else 'does'} on {called_ranks(others)}: DistributedDataParallel waits "
        f"for {'them' if many else 'it'} on all, and refuses to go on",
        "torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)  # where the model is wrapped",
        lacking,
        (found.events[0],),
        pass_number=found.pass_number,
    )


RULE = RankRule(
    "ranks-unused", WARNING, "parameters that ranks do not all use, where all wait for them", _search
)
