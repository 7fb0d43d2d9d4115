"""`ranks-sum`: a gradient is summed over the ranks, and nothing divides it by their number before the step, though the
loss is a mean; or it is reduced twice.

Why it is bad: the step is as many times as large as there are ranks, and grows when ranks are added.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)  # <- ranks-sum
        optimizer.step()

Cure: divide by the number of ranks after the sum.

Not reported: gradients that anything changes between the sum and the step; losses that are sums, or that the number of
ranks divides.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, named, site_of_event
from gradviz.query.replicas import Replicas, Sum


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if not ranks.are_averaged or not ranks.sums:
        return
    first = ranks.sums[0]
    again = first.averaged or first.summed
    yield RankFound(
        f"the gradient of {named([one.name for one in ranks.sums])} is {_how(first, len(ranks.ranks))} before step 1",
        "leave this all_reduce out" if again else "p.grad /= dist.get_world_size()  # after this all_reduce",
        site_of_event(ranks.queries[0], first.event),
        tuple(ranks.ranks),
        (first.event,),
        severity=WARNING if again else NOTE,
    )


def _how(found: Sum, count: int) -> str:
    if found.averaged:
        return f"averaged over the {count} ranks, and then summed over them: it is {count} times the mean"
    if found.summed:
        return f"summed over the {count} ranks twice, and not divided"
    return (
        f"the sum over {count} ranks of the gradients of means, and not divided: it is {count} times the mean"
    )


RULE = RankRule("ranks-sum", NOTE, "gradients that are summed over the ranks, and not divided", _search)
