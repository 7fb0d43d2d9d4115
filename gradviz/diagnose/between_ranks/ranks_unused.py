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

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, named, site_of_event
from gradviz.query.replicas import Replicas
from gradviz.query.unused_on_ranks import unused_on_some
from gradviz.words.rank_names import called_ranks


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
        site_of_event(ranks.ranks[lacking[0]], found.events[0]),
        lacking,
        (found.events[0],),
        pass_number=found.pass_number,
    )


RULE = RankRule(
    "ranks-unused", WARNING, "parameters that ranks do not all use, where all wait for them", _search
)
