"""`ranks-apart`: a gradient differs between the ranks when the optimizer steps, though the ranks average others.

Why it is bad: each rank makes a step of its own there, and the replicas part.

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

Not reported: ranks that average nothing (see `ranks-unreduced`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import (
    AVERAGE,
    RankFound,
    RankRule,
    named,
    site_of_step,
    values_of_each,
)
from gradviz.query.replicas import Difference, Replicas
from gradviz.words.rank_names import called_ranks


def _search(ranks: Replicas) -> Iterator[RankFound]:
    found = ranks.differences
    if not found:
        return
    first = found[0]
    lacking = [rank for rank, was in zip(ranks.ranks, first.averaged, strict=True) if not was]
    yield RankFound(
        f"the gradient{'s' * (len(found) > 1)} of {named([one.name for one in found])} "
        f"differ{'s' * (len(found) == 1)} between the ranks at step {first.step}, {_why(first, lacking)}: "
        f"{named([first.name])} has {values_of_each(ranks, first.gradients)}",
        _cure(first, lacking),
        site_of_step(ranks.ranks[lacking[0]] if lacking else ranks.queries[0], first.step),
        tuple(lacking or ranks.ranks),
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
