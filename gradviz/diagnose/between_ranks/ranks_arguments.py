"""`ranks-arguments`: an op is called with other numbers on some ranks: another probability of a dropout, another
reduction of the loss, another slope.

Why it is bad: the ranks average the gradients of different functions. The mean is the gradient of none of them.

Example:

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1 + 0.4 * rank), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()  # <- ranks-arguments
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: give the op the same numbers on all ranks.

Not reported: numbers that differ from pass to pass, as numbers from the data do; ranks that call other ops or ops at
other lines; ranks that average nothing. `ranks-loss` reports a number that multiplies the loss.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, each_rank, odd_among, site_of_event
from gradviz.query.other_arguments import other_arguments
from gradviz.query.replicas import Replicas
from gradviz.words.escape import clean
from gradviz.words.numbers import plural


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if not ranks.are_replicas or not ranks.are_averaged or ranks.other_mode is not None:
        return  # ranks-mode reports another mode
    found = other_arguments(ranks)
    if found is None:
        return
    arguments = [clean(call.args) or "nothing" for call in found.calls]
    odd = odd_among(ranks, arguments)
    place = [*ranks.ranks].index(odd[0])
    call = found.calls[place]
    yield RankFound(
        f"{clean(call.op)}() is called with other numbers on some ranks, in each of the first "
        f"{plural(found.passes, 'pass', 'passes')}, and the gradients are averaged: {each_rank(ranks, arguments)}",
        f"give {clean(call.op)}() the same numbers on all ranks",
        site_of_event(ranks.queries[place], call.event),
        odd,
        (call.event,),
    )


RULE = RankRule("ranks-arguments", WARNING, "ops that ranks call with different numbers", _search)
