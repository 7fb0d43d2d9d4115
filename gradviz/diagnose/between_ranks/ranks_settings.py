"""`ranks-settings`: an optimizer steps with other settings on one rank than on another: another learning rate, another
weight decay.

Why it is bad: the same gradient makes another step on each rank, and the replicas part.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + rank))  # <- ranks-settings
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: give the optimizer the same settings on all ranks. A scheduler that follows a loss (ReduceLROnPlateau) needs the
same loss on all ranks: `dist.all_reduce(loss)` before its step.

Not reported: ranks that train different models, or different parts of a model.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import (
    ARE_AVERAGED,
    ARE_REPLICAS,
    RankFound,
    RankRule,
    each_rank,
    odd_among,
    site_of_optimizer,
    site_of_step,
)
from gradviz.query.replicas import Replicas


def _search(ranks: Replicas) -> Iterator[RankFound]:
    for found in ranks.other_settings:
        values = each_rank(ranks, [f"{found.name}={value!s}" for value in found.values])
        apart = odd_among(ranks, [repr(value) for value in found.values])
        query = ranks.ranks[apart[-1]]
        yield RankFound(
            f"the optimizer's settings are not the same on all ranks at step {found.step}: {values}",
            "make the same optimizer on all ranks"
            if found.name == "optimizer"
            else f"give {found.name} the same value on all ranks",
            apart,
            site=site_of_optimizer(query) if found.step == 1 else site_of_step(query, found.step),
        )


RULE = RankRule(
    "ranks-settings",
    WARNING,
    "optimizers with other settings on some ranks",
    _search,
    needs=(ARE_AVERAGED, ARE_REPLICAS),
)
