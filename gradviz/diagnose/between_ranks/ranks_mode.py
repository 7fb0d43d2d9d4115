"""`ranks-mode`: a module is in evaluation mode on some ranks when it is called for a pass, and in training mode on
others.

Why it is bad: dropout is off on some ranks, and batch norm uses other statistics: the ranks compute gradients of
different functions.

Example:

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        if rank == 0 and step == 1:
            model.eval()
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-mode
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: call `model.train()` before the pass on each rank, also on the rank that evaluates in between.

Not reported: calls in evaluation mode that no pass follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import ARE_AVERAGED, RankFound, RankRule
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import called_ranks


def _search(ranks: Replicas) -> Iterator[RankFound]:
    found = ranks.other_mode
    if found is None:
        return
    name = found.name
    modes = dict(zip(ranks.ranks, found.modes, strict=True))
    off = [rank for rank, is_training in modes.items() if not is_training]
    on = [rank for rank, is_training in modes.items() if is_training]
    event = found.events[[*ranks.ranks].index(off[0])]
    yield RankFound(
        f"{name} is in evaluation mode on {called_ranks(off)} for pass {found.pass_number}, and in training mode on "
        f"{called_ranks(on)}",
        f"{name}.train()  # before this call, on each rank",
        tuple(off),
        (event,),
        pass_number=found.pass_number,
    )


RULE = RankRule(
    "ranks-mode", WARNING, "modules in evaluation mode on some ranks alone", _search, needs=(ARE_AVERAGED,)
)
