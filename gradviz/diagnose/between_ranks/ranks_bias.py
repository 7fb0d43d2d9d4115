"""`ranks-bias`: each rank adds the same bias to its part of a product, before the ranks sum these parts.

Why it is bad: the bias counts as many times as there are ranks, and so does each change of it.

Example:

    from torch.distributed.nn.functional import all_reduce
    torch.manual_seed(rank)
    part = nn.Parameter(torch.randn(3, 2))
    bias = nn.Parameter(torch.full((3,), 0.5))
    optimizer = torch.optim.SGD([part, bias], lr=0.1)
    torch.manual_seed(7)
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(8, 2 * world)[:, 2 * rank : 2 * rank + 2]
        y = all_reduce(nn.functional.linear(x, part, bias))  # <- ranks-bias
        y.pow(2).mean().backward()
        optimizer.step()

Cure: add the bias after the sum: `y = all_reduce(nn.functional.linear(x, part)) + bias`.

Not reported: a sum that is divided by the number of ranks, weights that are the same on all ranks, and a bias that is 0
or differs between the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, named, site_of_event
from gradviz.query.replicas import Replicas
from gradviz.query.summed_biases import summed_biases
from gradviz.words.escape import clean


def _search(ranks: Replicas) -> Iterator[RankFound]:
    together = summed_biases(ranks)
    if together is None:
        return
    first, query = together[0], ranks.queries[0]
    name = query.names.of(first.bias) or "the bias"
    weights = [query.names.of(weight) or "a weight" for weight in first.weights]
    summed = site_of_event(query, first.summed)
    where = "" if summed is None else f" (line {summed.place.line})"
    yield RankFound(
        f"{named([name])} is added on each rank to its part of the product with {named(weights)}, before all_reduce "
        f"sums the parts{where}: it counts {len(ranks.ranks)} times",
        f"+ {clean(name)}  # to the result of the all_reduce, and not before",
        site_of_event(query, first.event),
        tuple(ranks.ranks),
        (first.event, first.summed),
    )


RULE = RankRule("ranks-bias", WARNING, "biases that each rank adds before the ranks sum", _search)
