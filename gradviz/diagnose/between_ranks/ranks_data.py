"""`ranks-data`: the ranks compute the same losses, pass by pass: all of them have the same data.

Why it is bad: the ranks do the same work. The mean of their gradients is the gradient of a single rank. A part of the
data is never used, or the batch is smaller than it was meant to be.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-data
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: give each rank its own part of the data: `DataLoader(dataset, sampler=DistributedSampler(dataset))`, with
`sampler.set_epoch(epoch)`; or seed random data with the rank.

Not reported: ranks that hold parts of one model and so need the same data; losses that the ranks have averaged.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import ARE_AVERAGED, ARE_REPLICAS, RankFound, RankRule
from gradviz.query.replicas import Replicas

_FEWEST = 2  # passes with the same loss


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if ranks.same_roots < _FEWEST:
        return
    first = ranks.queries[0].trace.passes[0]
    yield RankFound(
        f"the loss is the same on all ranks, in each of {ranks.same_roots} passes: the ranks compute with the same "
        "data",
        "DataLoader(dataset, sampler=torch.utils.data.DistributedSampler(dataset))",
        tuple(ranks.ranks),
        (first.first,),
        pass_number=first.number,
    )


RULE = RankRule(
    "ranks-data", WARNING, "ranks that have the same data", _search, needs=(ARE_AVERAGED, ARE_REPLICAS)
)
