"""`ranks-hooks`: a hook changes the gradient of a parameter on some ranks alone, before the ranks average it.

Why it is bad: the ranks average changed and unchanged gradients. No rank sees a difference: all ranks step with the
same mean.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    if rank == 1:
        model.weight.register_hook(lambda grad: grad * 2)  # <- ranks-hooks
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: register the hook on all ranks, or on none.

Not reported: hooks that change a gradient on all ranks, and hooks that change it in some passes only.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, named, site_of_event, site_of_tensor
from gradviz.query.hooks_on_ranks import hooked_on_some
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import plural
from gradviz.words.rank_names import called_ranks


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if not ranks.are_replicas or not ranks.are_averaged:
        return
    found = hooked_on_some(ranks)
    if found is None:
        return
    hooked = tuple([*ranks.ranks][place] for place in found.places)
    query = ranks.ranks[hooked[0]]
    yield RankFound(
        f"a hook changes the gradient of {named([found.name])} on {called_ranks(hooked)} alone, in each of the first "
        f"{plural(found.passes, 'pass', 'passes')}, and the ranks average it",
        "register the hook on all ranks, or on none",
        site_of_tensor(query, found.gradients[0]) or site_of_event(query, found.events[0]),
        hooked,
        (found.events[0],),
    )


RULE = RankRule("ranks-hooks", WARNING, "gradients that hooks change on some ranks alone", _search)
