"""`ranks-start`: parameters differ between the ranks before the first pass, though the ranks average their gradients.

Why it is bad: the ranks train different models with the mean of all gradients, which is the gradient of no model.

Example:

    torch.manual_seed(rank)
    model = nn.Linear(4, 1)  # <- ranks-start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(7 + rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: seed all ranks alike before the model is made, or send the values of rank 0 to all ranks:
`dist.broadcast(p.data, 0)` for each parameter. DistributedDataParallel does this when it is made; later writes to the
parameters have to happen on all ranks.

Not reported: ranks that do not average their gradients, because each has a part of the model.
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
    site_of_tensor,
    values_of_each,
)
from gradviz.query.replicas import Replicas
from gradviz.query.writes import Writes
from gradviz.words.numbers import called_ranks

_SEED = "torch.manual_seed(0)  # before the model is made; or dist.broadcast(p.data, 0) for each parameter"


def _search(ranks: Replicas) -> Iterator[RankFound]:
    found = ranks.starts_apart
    if not found:
        return
    first = found[0]
    names = [one.name for one in found]
    values = values_of_each(ranks, first.values)
    apart = odd_ranks(ranks, first.values)
    where = "each rank" if len(apart) == len(ranks.ranks) else called_ranks(apart)
    begins = f"{named(names)} begin{'s' * (len(found) == 1)} with other values on {where}"
    writes = [
        _last_write(ranks, rank, tensor) for rank, tensor in zip(ranks.ranks, first.tensors, strict=True)
    ]
    writing = [rank for rank, event in zip(ranks.ranks, writes, strict=True) if event]
    if writing and len(writing) < len(writes):
        rank = writing[0]
        event = writes[[*ranks.ranks].index(rank)]
        yield RankFound(
            f"{begins}, though the gradients are averaged: this line writes to {named(names[:1])} on "
            f"{called_ranks(writing)} alone, and it is {values}",
            "dist.broadcast(p.data, 0)  # for each parameter, on each rank, after this line",
            tuple(writing),
            (event,),
        )
        return
    yield RankFound(
        f"{begins}, though the gradients are averaged: {named(names[:1])} is {values}",
        _SEED,
        apart,
        site=site_of_tensor(ranks.ranks[apart[0]], first.tensors[[*ranks.ranks].index(apart[0])]),
    )


def _last_write(ranks: Replicas, rank: int, tensor: int) -> int:
    """The last write of a rank to a parameter before the first pass, by the program's own lines; 0 if there is none."""
    query = ranks.ranks[rank]
    writes = query.of(Writes)
    made = query.tensors.made(tensor)
    early = (writes.leaves == tensor) & (writes.events < query.trace.passes[0].first)
    later = [event for event in writes.events[early].tolist() if made is None or event > made.index]
    later = [event for event in later if query.tensors.writer(event) != "broadcast"]
    return later[-1] if later else 0


RULE = RankRule(
    "ranks-start", WARNING, "replicas that differ before the first step", _search, needs=(ARE_AVERAGED,)
)
