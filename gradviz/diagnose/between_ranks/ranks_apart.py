"""`ranks-apart`: a gradient differs between the ranks when the optimizer steps, though the ranks average other
gradients.

Why it is bad: each rank steps in its own direction, and the replicas part.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        dist.all_reduce(model.weight.grad)
        model.weight.grad /= world
        optimizer.step()  # <- ranks-apart

Cure: average the gradient of each parameter before the step.

Not reported: ranks that average nothing (see `ranks-unreduced`); a parameter that is frozen on some ranks alone (see
`ranks-frozen`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import AVERAGE, RankFound, RankRule, named, site_of_step, values_of_each
from gradviz.query.replicas import Difference, Replicas, frozen_on_some
from gradviz.words.numbers import called_ranks


def _search(ranks: Replicas) -> Iterator[RankFound]:
    found = [one for one in ranks.differences if one.name not in _frozen(ranks, one)]
    if not found or ranks.mixed_up is not None:  # ranks-collectives reports the mix-up
        return
    first = found[0]
    if any(first.changed):
        yield _changed(ranks, first, [one.name for one in found])
        return
    lacking = [rank for rank, was in zip(ranks.ranks, first.averaged, strict=True) if not was]
    yield RankFound(
        f"the gradient{'s' * (len(found) > 1)} of {named([one.name for one in found])} "
        f"differ{'s' * (len(found) == 1)} between the ranks at step {first.step}, {_why(first, lacking)}: "
        f"{named([first.name])} has {values_of_each(ranks, first.gradients)}",
        _cure(first, lacking),
        tuple(lacking or ranks.ranks),
        site=site_of_step(ranks.ranks[lacking[0]] if lacking else ranks.queries[0], first.step),
    )


def _frozen(ranks: Replicas, difference: Difference) -> tuple[str, ...]:
    """The parameters that have no gradient on some ranks because they are frozen there: ranks-frozen reports them."""
    if all(gradient is not None for gradient in difference.gradients):
        return ()
    frozen = frozen_on_some(ranks)
    return frozen.names if frozen is not None else ()


def _changed(ranks: Replicas, first: Difference, names: list[str]) -> RankFound:
    """The finding for a line that changes gradients which were the same on all ranks."""
    events = {rank: event for rank, event in zip(ranks.ranks, first.changed, strict=True) if event}
    event = next(iter(events.values()))
    where = (
        "not alike on all ranks" if len(events) == len(ranks.ranks) else f"on {called_ranks([*events])} alone"
    )
    return RankFound(
        f"the gradient{'s' * (len(names) > 1)} of {named(names)} differ{'s' * (len(names) == 1)} between the ranks at "
        f"step {first.step}: this line changes {'them' if len(names) > 1 else 'it'} after the all_reduce, {where}: "
        f"{named([first.name])} has {values_of_each(ranks, first.gradients)}",
        "do this on all ranks, with the same numbers, or before the all_reduce",
        tuple(events),
        (event,),
    )


def _why(first: Difference, lacking: list[int]) -> str:
    if not lacking:
        return "all-reduced before it was complete"
    if len(lacking) < len(first.averaged) and any(gradient is None for gradient in first.gradients):
        return "which some ranks do not have"
    return f"not all-reduced on {called_ranks(lacking)}"


def _cure(first: Difference, lacking: list[int]) -> str:
    wrapped, inside, _ = first.name.partition(".module.")
    if inside and len(lacking) == len(first.averaged):
        return f"leave {named([wrapped])}.no_sync() before the last pass of a step"
    return AVERAGE


RULE = RankRule(
    "ranks-apart", WARNING, "gradients that differ at a step, though others are averaged", _search
)
