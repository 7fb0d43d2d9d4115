"""`ranks-unreduced`: no gradient is averaged over the ranks, of a model that begins with the same parameters on all.

Why it is bad: each rank trains a model of its own with a part of the data, and all but one of them are thrown away.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()  # <- ranks-unreduced

Cure: wrap the model in DistributedDataParallel, and call the wrapped model; `no_sync()` belongs around all passes
before a step but the last. Or average by hand, before the step.

Also reported: gradients that `broadcast` or `reduce` gives to some ranks, so that what others computed is lost.

Not reported: ranks that average their parameters in place of the gradients (local SGD), groups of ranks that average
among themselves, ranks with parts of one model (a pipeline, shards), and ranks that begin with parameters of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import (
    AVERAGE,
    RankFound,
    RankRule,
    site_of_event,
    site_of_step,
    values_of_each,
)
from gradviz.query.collective_calls import HandedOver, handed_over, is_reduced_in_groups
from gradviz.query.replicas import Replicas, are_apart
from gradviz.words.escape import clean
from gradviz.words.rank_names import called_ranks

_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if any(map(len, ranks.reduced)) or not ranks.are_replicas or ranks.are_averaged_parameters:
        return
    if any(query.of(is_reduced_in_groups) for query in ranks.queries):
        return
    handed = _handed_over(ranks)
    if handed is not None:
        yield handed
    if handed is not None or not ranks.gradients_apart:
        return
    first = ranks.gradients_apart[0]
    yield RankFound(
        "no gradient is averaged over the ranks, though they begin with the same parameters: at step "
        f"{first.step} the gradient of {clean(first.name)} is {values_of_each(ranks, first.gradients)}",
        _cure(first.name),
        site_of_step(ranks.queries[0]),
        tuple(ranks.ranks),
    )


def _handed_over(ranks: Replicas) -> RankFound | None:
    """The first collective that gives gradients to some ranks, where a rank then steps with those of another alone."""
    calls = [query.of(handed_over) for query in ranks.queries]
    if not ranks.steps or not all(calls):
        return None
    first = [own[0] for own in calls]
    lost = tuple(rank for rank, call in zip(ranks.ranks, first, strict=True) if _is_lost(ranks, rank, call))
    if {call.name for call in first} == {"broadcast"} and lost:
        message = f"broadcast() puts the gradients of one rank in the place of those that {called_ranks(lost)} computed"
        fix = f"{AVERAGE}, in the place of this broadcast"
    elif {call.name for call in first} == {"reduce"} and ranks.gradients_apart:
        lost = tuple(ranks.ranks)
        message = "reduce() gives the sum of the gradients to one rank, and the others step with their own"
        fix = f"{AVERAGE}, in the place of this reduce"
    else:
        return None
    rank = lost[0]
    event = first[[*ranks.ranks].index(rank)].event
    return RankFound(
        f"no gradient is averaged over the ranks: {message}",
        fix,
        site_of_event(ranks.ranks[rank], event),
        lost,
        (event,),
    )


def _is_lost(ranks: Replicas, rank: int, call: HandedOver) -> bool:
    """Whether a broadcast changes the gradient of a rank."""
    trace = ranks.ranks[rank].trace
    return are_apart(
        (trace.snapshot(call.gradient, call.event - 1), trace.snapshot(call.gradient, call.event))
    )


def _cure(name: str) -> str:
    """What makes the ranks average their gradients. The name of a parameter says whether its model is wrapped."""
    wrapped = clean(name.partition(".module.")[0])
    if wrapped == clean(name):
        return f"{_WRAP}; or, before the step: {AVERAGE}"
    return (
        f"call {wrapped} and not {wrapped}.module, and the pass before a step outside of {wrapped}.no_sync()"
    )


RULE = RankRule("ranks-unreduced", WARNING, "gradients that no rank averages", _search)
