"""`ranks-dropout`: dropout drops the same elements of different data on all ranks: their random numbers are the same.

Why it is bad: the ranks should sample independently. With equal masks the mean over the ranks is as noisy as a single
rank.

Example:

    torch.manual_seed(rank)
    data = torch.randn(3, 4, 4)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(data[step]).pow(2).mean().backward()  # <- ranks-dropout
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: `torch.manual_seed(seed + rank)` after the model is made.

Not reported: masks of tensors whose elements were not recorded; ranks that have the same data (see `ranks-data`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import NOTE
from gradviz.diagnose.rank_rule import ARE_AVERAGED, ARE_REPLICAS, RankFound, RankRule
from gradviz.query.replicas import Replicas


def _search(ranks: Replicas) -> Iterator[RankFound]:
    event = ranks.same_dropout
    if event < 0 or ranks.same_roots:
        return
    yield RankFound(
        "dropout drops the same elements on all ranks, though their data differ",
        "torch.manual_seed(dist.get_rank())  # after the model is made",
        tuple(ranks.ranks),
        (event,),
    )


RULE = RankRule(
    "ranks-dropout",
    NOTE,
    "dropout that drops the same elements on all ranks",
    _search,
    needs=(ARE_AVERAGED, ARE_REPLICAS),
)
