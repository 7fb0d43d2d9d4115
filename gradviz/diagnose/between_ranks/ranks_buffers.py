"""`ranks-buffers`: the running statistics of a normalisation differ between the ranks when they are used again.

Why it is bad: in evaluation mode each rank computes other results, and a saved model has the statistics of one rank.

Example:

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-buffers
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: `model = nn.SyncBatchNorm.convert_sync_batchnorm(model)`, or send the buffers of rank 0 to all ranks before each
call, as DistributedDataParallel does by itself: `dist.broadcast(buffer, 0)` for each of `model.buffers()`.

Not reported: statistics that are the same again before the next call.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import NOTE
from gradviz.diagnose.rank_rule import ARE_AVERAGED, ARE_REPLICAS, RankFound, RankRule, values_of_each
from gradviz.query.replicas import Replicas


def _search(ranks: Replicas) -> Iterator[RankFound]:
    found = ranks.buffer_apart
    if found is None:
        return
    model = found.name.partition(".")[0]
    yield RankFound(
        f"{found.name} differs between the ranks when it is used again: {values_of_each(ranks, found.values)}",
        f"for buffer in {model}.buffers(): dist.broadcast(buffer, 0)  # on each rank, before this call",
        tuple(ranks.ranks),
        found.events[:1],
    )


RULE = RankRule(
    "ranks-buffers",
    NOTE,
    "running statistics that differ between the ranks",
    _search,
    needs=(ARE_AVERAGED, ARE_REPLICAS),
)
