"""`ranks-drift`: parameters that were the same on all ranks begin to differ, though their gradients are the same.

Why it is bad: the ranks average gradients of different models, and the models part more and more.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
        with torch.no_grad():
            model.weight.add_(0.01 * torch.randn(1, 4))  # <- ranks-drift

Cure: write the same values to parameters on all ranks, or send the values of rank 0 to all ranks afterwards:
`dist.broadcast(p.data, 0)`.

Not reported: parameters that part because their gradients do (see `ranks-apart`), or the settings of their optimizers
(see `ranks-settings`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import (
    ARE_AVERAGED,
    RankFound,
    RankRule,
    named,
    odd_ranks,
    site_of_step,
    values_of_each,
)
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas
from gradviz.query.writes import Author, Writes

_SHARE = "dist.broadcast(p.data, 0)  # for each parameter, on each rank, after this line"


def _search(ranks: Replicas) -> Iterator[RankFound]:
    drift = ranks.drift
    if drift is None or any(one.step <= drift.step for one in ranks.other_settings):
        return
    if any(one.step <= drift.step for one in ranks.gradients_apart):
        return
    spans = zip(ranks.ranks.items(), drift.tensors, drift.since, drift.until, strict=True)
    written = {rank: _written(query, t, since, until) for (rank, query), t, since, until in spans}
    writing = [rank for rank, event in written.items() if event]
    began = (
        f"{named(drift.names)} {'are' if len(drift.names) > 1 else 'is'} the same on all ranks before step "
        f"{drift.step}, and not after it: {named(drift.names[:1])} is {values_of_each(ranks, drift.values)}"
    )
    if writing:
        event = written[writing[0]]
        yield RankFound(
            f"{began}; this line writes to it in between",
            _SHARE,
            tuple(writing),
            (event,),
        )
        return
    apart = odd_ranks(ranks, drift.values)
    yield RankFound(
        began,
        _SHARE,
        apart,
        site=site_of_step(ranks.ranks[apart[0]], drift.step),
    )


_NOT_ITS_OWN = (Author.OPTIMIZER, Author.UNKNOWN)


def _written(query: Query, leaf: int, since: int, until: int) -> int:
    """The first write to a parameter between two events that no optimizer made; 0 if there is none."""
    writes = query.of(Writes)
    between = (writes.leaves == leaf) & (writes.events > since) & (writes.events < until)
    events = writes.events[between].tolist()
    return next((event for event in events if writes.author(event, leaf) not in _NOT_ITS_OWN), 0)


RULE = RankRule(
    "ranks-drift",
    WARNING,
    "replicas that part later, though their gradients are the same",
    _search,
    needs=(ARE_AVERAGED,),
)
