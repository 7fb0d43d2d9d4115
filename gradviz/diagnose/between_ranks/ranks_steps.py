"""`ranks-steps`: a rank makes fewer steps than the others, though the ranks average their gradients.

Why it is bad: the other ranks wait for this rank in the next all_reduce, or go on alone, and the models part.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3 - rank):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        if step < 2:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
        optimizer.step()  # <- ranks-steps

Cure: give each rank the same number of batches: `DistributedSampler(dataset, drop_last=True)`, or `model.join()` of
DistributedDataParallel around the loop.

Not reported: ranks that train models of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import ARE_AVERAGED, RankFound, RankRule, each_rank, site_of_step
from gradviz.events.kinds import Kind
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import plural


def _search(ranks: Replicas) -> Iterator[RankFound]:
    counts = [len(query.trace.table(Kind.STEPPED).events) for query in ranks.queries]
    if len(set(counts)) < 2:
        return
    rank = min((count, rank) for count, rank in zip(counts, ranks.ranks, strict=True) if count)[1]
    yield RankFound(
        "the ranks do not make the same number of steps: "
        f"{each_rank(ranks, [plural(count, 'step') for count in counts])}",
        _cure(ranks),
        tuple(own for own, count in zip(ranks.ranks, counts, strict=True) if count == min(counts)),
        site=site_of_step(ranks.ranks[rank]),
    )


def _cure(ranks: Replicas) -> str:
    if len({len(query.trace.passes) for query in ranks.queries}) == 1:
        return "optimizer.step()  # on all ranks, after each pass that it follows on any"
    return "give each rank the same number of batches: DistributedSampler(dataset, drop_last=True), or model.join()"


RULE = RankRule(
    "ranks-steps", WARNING, "ranks that make fewer steps than others", _search, needs=(ARE_AVERAGED,)
)
