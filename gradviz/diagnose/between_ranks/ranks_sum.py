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
from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.rank_rule import ARE_AVERAGED, AVERAGE, RankFound, RankRule, named
from gradviz.query.collective_calls import changes_between, reduced_otherwise, sums
from gradviz.query.flow import root_is_mean
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas
from gradviz.tracefile import PassInfo


@dataclass(frozen=True, slots=True)
class Sum:
    """A gradient that is summed over the ranks at an event and not changed again before the first step, although the
    loss is a mean. `averaged` is whether the ranks had averaged it before, `summed` whether they had summed it."""

    name: str
    event: int
    averaged: bool
    summed: bool


@dataclass(frozen=True, slots=True)
class OtherShare:
    """A gradient that is summed over the ranks, and then divided, at an event, by another number than theirs."""

    name: str
    event: int
    divisor: int


@dataclass(frozen=True, slots=True)
class _FirstStep:
    """The first step of the first rank, and the passes before it. The last of them begins at a mean."""

    query: Query
    event: int
    passes: list[PassInfo]

    def summed(self, parameters: dict[str, int]) -> Iterator[tuple[str, int, int]]:
        """The parameters whose gradients are summed over the ranks before the step: the name, the gradient, and the
        event of the last sum."""
        last = {gradient: event for gradient, event in self.query.of(sums) if event < self.event}
        for name, tensor in parameters.items():
            gradient = self.query.tensors.grad(tensor, self.event)
            if gradient in last:
                yield name, gradient, last[gradient]


def undivided_sums(ranks: Replicas) -> list[Sum]:
    """The sums over the ranks that nothing divides, at the first step of the first rank."""
    step = _first_step(ranks)
    if step is None:
        return []
    query, undivided = step.query, []
    for name, gradient, event in step.summed(ranks.parameters[0]):
        if changes_between(query, gradient, event, step.event):
            continue
        earlier = _reductions(ranks, gradient, event)
        if earlier or not changes_between(query, gradient, step.passes[-1].last or 0, event):
            undivided.append(Sum(name, event, "average" in earlier, "sum" in earlier))
    return undivided


def other_shares(ranks: Replicas) -> list[OtherShare]:
    """The sums over the ranks that one line divides by another whole number than that of the ranks, before the first
    step of the first rank. Empty unless one pass is before the step and all ranks are known."""
    step, world = _first_step(ranks), len(ranks.queries)
    if step is None or len(step.passes) != 1 or step.query.trace.meta.get("world") != str(world):
        return []
    shares = []
    for name, gradient, event in step.summed(ranks.parameters[0]):
        changes = changes_between(step.query, gradient, event, step.event)
        if len(changes) != 1 or event <= step.passes[0].first:
            continue
        divisor = _divisor(step.query, gradient, changes[0])
        if divisor not in (0, 1, world):
            shares.append(OtherShare(name, changes[0], divisor))
    return shares


def _first_step(ranks: Replicas) -> _FirstStep | None:
    """The first step of the first rank; None unless the pass before it begins at a mean."""
    query = ranks.queries[0]
    if not ranks.steps:
        return None
    event = ranks.steps[0][0].index
    passes = [one for one in query.trace.passes if one.first < event]
    return _FirstStep(query, event, passes) if passes and root_is_mean(query, passes[-1].number) else None


def _reductions(ranks: Replicas, gradient: int, until: int) -> set[str]:
    """The earlier reductions of a gradient on the first rank, before an event: `average`, `sum`."""
    query, pairs = ranks.queries[0], ranks.reduced[0]
    summed = {event for one, event in query.of(sums) if one == gradient}
    events = pairs[(pairs[:, 0] == gradient) & (pairs[:, 1] < until), 1].tolist()
    return {
        "sum" if event in summed and not changes_between(query, gradient, event, until) else "average"
        for event in events
    }


def _divisor(query: Query, tensor: int, event: int) -> int:
    """The whole number by which an event divides a tensor whose elements are known; 0 if there is none."""
    before, after = (query.trace.snapshot(tensor, at) for at in (event - 1, event))
    if before is None or after is None or before.array is None or after.array is None:
        return 0
    size = np.abs(after.array).sum()
    if not np.isfinite(size) or not size:
        return 0
    divisor = round(float(np.abs(before.array).sum() / size))
    return divisor if np.allclose(before.array, after.array * divisor, rtol=1e-3) else 0


_KEPT = {"MAX": "the largest", "MIN": "the smallest", "PRODUCT": "the product"}


def _search(ranks: Replicas) -> Iterator[RankFound]:
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


RULE = RankRule(
    "ranks-sum",
    NOTE,
    "gradients that are summed over the ranks, and not divided",
    _search,
    needs=(ARE_AVERAGED,),
)
