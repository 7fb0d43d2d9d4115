"""`ranks-sum`: a gradient is summed over the ranks, and nothing divides it by the number of ranks before the step,
though the loss is a mean. Or it is reduced twice, or divided by another number, or reduced to another result than the
mean, as the largest (`ReduceOp.MAX`).

Why it is bad: on n ranks the gradient is n times as large, so the step grows when ranks are added.

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

Not reported: gradients that the program changes between the sum and the step; losses that are sums, or that are divided
by the number of ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.rank_rule import AVERAGE, RankFound, RankRule, named, site_of_event
from gradviz.query.collective_calls import reduced_otherwise
from gradviz.query.replicas import Replicas
from gradviz.query.sums_over_ranks import Sum, other_shares, undivided_sums

_KEPT = {"MAX": "the largest", "MIN": "the smallest", "PRODUCT": "the product"}


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if not ranks.are_averaged:
        return
    yield from _not_summed(ranks)
    yield from _divided(ranks)
    found = undivided_sums(ranks)
    if not found:
        return
    first = found[0]
    again = first.averaged or first.summed
    names = [one.name for one in found if (one.averaged, one.summed) == (first.averaged, first.summed)]
    yield RankFound(
        f"the gradient of {named(names)} is {_how(first, len(ranks.ranks))} before step 1",
        "leave this all_reduce out" if again else "p.grad /= dist.get_world_size()  # after this all_reduce",
        site_of_event(ranks.queries[0], first.event),
        tuple(ranks.ranks),
        (first.event,),
        severity=WARNING if again else NOTE,
    )


def _not_summed(ranks: Replicas) -> Iterator[RankFound]:
    """The finding for gradients that all_reduce reduces to the largest, for example, and not to the mean or sum."""
    query = ranks.queries[0]
    first = next(iter(query.of(reduced_otherwise)), None)
    if first is None or not all(other.of(reduced_otherwise) for other in ranks.queries):
        return
    gradient, event, how = first
    name = query.names.of(query.at(event).owner(gradient))
    yield RankFound(
        f"the gradient of {named([name or 'a parameter'])} is {_KEPT.get(how, how)} of those of the ranks, element by "
        "element, and not their mean",
        AVERAGE,
        site_of_event(query, event),
        tuple(ranks.ranks),
        (event,),
        severity=WARNING,
    )


def _divided(ranks: Replicas) -> Iterator[RankFound]:
    """The finding for gradients that are divided by a number that is not the number of ranks."""
    found, count = other_shares(ranks), len(ranks.ranks)
    if not found:
        return
    first = found[0]
    names = [one.name for one in found if one.divisor == first.divisor]
    yield RankFound(
        f"the gradient of {named(names)} is summed over the {count} ranks and "
        f"divided by {first.divisor} before step 1: it is {count / first.divisor:.4g} times the mean",
        "p.grad /= dist.get_world_size()  # in the place of this division",
        site_of_event(ranks.queries[0], first.event),
        tuple(ranks.ranks),
        (first.event,),
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
