"""`ranks-frozen`: all ranks have the same model, but on some ranks a parameter is frozen (`requires_grad` is False).

Why it is bad: the ranks do not reduce the same gradients. DistributedDataParallel refuses such a model when it is made.
If the parameter is frozen later, or the program reduces by hand, ranks wait for one another for ever, or step apart.

Example:

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))
    if rank == 1:
        model[0].requires_grad_(False)  # <- ranks-frozen
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        for p in model.parameters():
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: freeze the parameter on all ranks, or on none.

Not reported: ranks with models of their own, as in a pipeline, and ranks that reduce nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, named, site_of_event, site_of_tensor
from gradviz.query.collective_calls import all_reduced, collectives
from gradviz.query.failures import failures
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas, frozen_on_some
from gradviz.words.numbers import called_ranks

_LONGEST = 80  # characters of an expression
_OF_ANOTHER_MODEL = (
    "DDP expects same model across all ranks"  # how DistributedDataParallel begins its refusal
)


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if not all(_comes_together(query) for query in ranks.queries):
        return
    found = frozen_on_some(ranks)
    if found is None:
        return
    frozen_ranks = tuple([*ranks.ranks][place] for place in found.places)
    place, event = found.places[0], found.events[0]
    query = ranks.queries[place]
    when = f"when pass {found.pass_number} begins" if found.pass_number else "when the run ends"
    refused = any(map(_is_refused, ranks.queries))
    many = len(found.names) > 1
    yield RankFound(
        f"{named(found.names)} {'do' if many else 'does'} not require a gradient on "
        f"{called_ranks(frozen_ranks)} {when}, and {'do' if many else 'does'} on the others"
        f"{', for which DistributedDataParallel refuses the model' if refused else ''}",
        f"{_expression(query, event)}  # on all ranks, or on none",
        frozen_ranks,
        (event,) if event else (),
        site=site_of_event(query, event) if event else site_of_tensor(query, found.tensors[0]),
    )


def _expression(query: Query, event: int) -> str:
    """The call or assignment that freezes a parameter, to be typed."""
    site = site_of_event(query, event) if event else None
    text = query.places.expression(site.number) if site is not None else ""
    if text.endswith(".requires_grad"):
        text = f"{text} = False"
    return text if 0 < len(text) <= _LONGEST else "p.requires_grad_(False)"


def _comes_together(query: Query) -> bool:
    """Whether a rank calls collectives or averages gradients, or DistributedDataParallel refused its model."""
    return bool(query.of(collectives)) or len(query.of(all_reduced)) > 0 or _is_refused(query)


def _is_refused(query: Query) -> bool:
    """Whether DistributedDataParallel has refused the model of a rank because it differs from that of the others."""
    return any(_OF_ANOTHER_MODEL in failure.message for failure in failures(query))


RULE = RankRule(
    "ranks-frozen", WARNING, "parameters that some ranks have frozen, and others have not", _search
)
