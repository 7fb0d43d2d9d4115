"""`ranks-unreduced`: the model begins with the same parameters on all ranks, but the ranks average no gradient.

Why it is bad: each rank trains its own model with a part of the data, and all models but one are thrown away.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()  # <- ranks-unreduced

Cure: wrap the model in DistributedDataParallel, and call the wrapped model; use `no_sync()` for all passes before a
step but the last. Or average by hand, before the step.

Also reported: gradients that `broadcast` or `reduce` gives to some ranks, or that all ranks take from one rank in
another way, so that the gradients of the other ranks are lost.

Under `fully_shard` with `set_requires_gradient_sync(False)` around all passes no part has a gradient at all.

Not reported: ranks that average their parameters in place of the gradients (local SGD), gradients that one rank
averages and sends to the others, groups of ranks that average among themselves, ranks with parts of one model (a
pipeline, shards), and ranks that begin with different parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import AVERAGE, RankFound, RankRule, named, site_of_step, values_of_each
from gradviz.events.kinds import Kind
from gradviz.query.changes import grad_changes
from gradviz.query.collective_calls import HandedOver, handed_over, is_reduced_in_groups
from gradviz.query.query import Query
from gradviz.query.ranks import are_apart, are_same
from gradviz.query.replicas import Replicas
from gradviz.tracefile import Snapshot
from gradviz.words.numbers import called_ranks


class TakenFromOne(NamedTuple):
    """The parameters that all ranks step, at the first step, with the gradient of one rank (its `place` among the
    ranks); and for each rank the last event that changed the `.grad` of the first parameter."""

    names: tuple[str, ...]
    place: int
    events: tuple[int, ...]


def taken_from_one(ranks: Replicas) -> TakenFromOne | None:
    """The parameters of replicas whose first step uses the gradients of one rank, as its only pass before gave them,
    although the other ranks had computed different gradients. None unless this is so of all parameters."""
    if not ranks.steps or not ranks.are_replicas:
        return None
    at = [step.index for step in ranks.steps[0]]
    if any(
        sum(one.first < event for one in query.trace.passes) != 1
        for query, event in zip(ranks.queries, at, strict=True)
    ):
        return None
    places: dict[str, int | None] = {name: _giver(ranks, name, at) for name in ranks.common}
    givers = set(places.values())
    place = next(iter(givers), None)
    if len(givers) != 1 or place is None:
        return None
    first = ranks.common[0]
    of_ranks = zip(ranks.queries, ranks.parameters, at, strict=True)
    events = tuple(_last_change(query, known[first], event) for query, known, event in of_ranks)
    return TakenFromOne(tuple(ranks.common), place, events)


def _giver(ranks: Replicas, name: str, at: list[int]) -> int | None:
    """The place of the only rank whose gradient of a parameter all ranks step with; None if there is none."""
    of_ranks = list(zip(ranks.queries, ranks.parameters, at, strict=True))
    computed = [_computed(query, known[name], event) for query, known, event in of_ranks]
    stepped = [query.tensors.gradient(known[name], event) for query, known, event in of_ranks]
    if not are_same(stepped) or not all(map(_is_some, computed)):
        return None
    givers = [place for place, value in enumerate(computed) if are_same([value, stepped[0]])]
    others = [place for place, value in enumerate(computed) if are_apart([value, stepped[0]])]
    return givers[0] if len(givers) == 1 and len(others) == len(of_ranks) - 1 else None


def _is_some(value: Snapshot | None) -> bool:
    """Whether a gradient is known and not 0."""
    return value is not None and value.stats is not None and value.stats.rms > 0


def _computed(query: Query, tensor: int, until: int) -> Snapshot | None:
    """The gradient that the last pass before an event gave a leaf."""
    came = query.trace.table(Kind.ACCUMULATED)
    rows = np.flatnonzero((came["tensor"] == tensor) & (came.events < until))
    return (
        query.trace.snapshot(int(came["gradient"][rows[-1]]), int(came.events[rows[-1]]))
        if len(rows)
        else None
    )


def _last_change(query: Query, tensor: int, until: int) -> int:
    changes = grad_changes(query, tensor)
    return int(changes[changes < until].max(initial=0))


_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"


def _search(ranks: Replicas) -> Iterator[RankFound]:
    yield from _never_reduced_to_parts(ranks)
    if any(map(len, ranks.reduced)) or not ranks.are_replicas or ranks.are_averaged_parameters:
        return
    if any(query.of(is_reduced_in_groups) for query in ranks.queries):
        return
    handed = _handed_over(ranks) or _taken_from_one(ranks)
    if handed is not None:
        yield handed
    if handed is not None or not ranks.gradients_apart:
        return
    first = ranks.gradients_apart[0]
    yield RankFound(
        "no gradient is averaged over the ranks, though they begin with the same parameters: at step "
        f"{first.step} the gradient of {first.name} is {values_of_each(ranks, first.gradients)}",
        _cure(first.name),
        tuple(ranks.ranks),
        site=site_of_step(ranks.queries[0]),
    )


def _never_reduced_to_parts(ranks: Replicas) -> Iterator[RankFound]:
    """The finding for parts of parameters without a gradient at step 1, though passes gave gradients to the wholes."""
    names = ranks.names_of_parts_without_gradient
    if names:
        yield RankFound(
            f"no gradient is reduced to the parts of {named(names)} that lie on the ranks: none of them has one at "
            "step 1, though the passes before it give gradients to the whole parameters",
            f"{names[0].partition('.')[0]}.set_requires_gradient_sync(True)  # before the last pass of a step",
            tuple(ranks.ranks),
            site=site_of_step(ranks.queries[0]),
        )


def _handed_over(ranks: Replicas) -> RankFound | None:
    """The finding for the first collective that gives gradients to some ranks, if a rank's own gradients are lost."""
    calls = [query.of(handed_over) for query in ranks.queries]
    if not ranks.steps or not all(calls):
        return None
    first = {rank: own[0] for rank, own in zip(ranks.ranks, calls, strict=True)}
    names = {call.name for call in first.values()}
    if names == {"broadcast"}:
        lost = tuple(rank for rank, call in first.items() if _is_lost(ranks.ranks[rank], call))
        givers = [(ranks.ranks[rank], call) for rank, call in first.items() if rank not in lost]
        if not lost or not givers or not all(_is_as_computed(query, call) for query, call in givers):
            return None
        message = f"broadcast() puts the gradients of one rank in the place of those that {called_ranks(lost)} computed"
    elif names == {"reduce"} and ranks.gradients_apart:
        lost = tuple(ranks.ranks)
        message = "reduce() gives its result to one rank alone, and the ranks step with different gradients"
    else:
        return None
    call = first[lost[0]]
    return RankFound(
        f"no gradient is averaged over the ranks: {message}",
        f"{AVERAGE}, in the place of this {call.name}",
        lost,
        (call.event,),
    )


def _taken_from_one(ranks: Replicas) -> RankFound | None:
    """The finding for a line after which all ranks have the gradients that a single rank computed."""
    taken = taken_from_one(ranks)
    if taken is None:
        return None
    giver = [*ranks.ranks][taken.place]
    lost = tuple(rank for rank in ranks.ranks if rank != giver)
    event = taken.events[[*ranks.ranks].index(lost[0])]
    return RankFound(
        f"no gradient is averaged over the ranks: all step with those of {called_ranks([giver])}, and those that "
        f"{called_ranks(lost)} computed are lost",
        f"{AVERAGE}, in the place of this line",
        lost,
        (event,),
    )


def _is_lost(query: Query, call: HandedOver) -> bool:
    """Whether a broadcast changes the gradient of a rank."""
    before, after = (query.trace.snapshot(call.gradient, event) for event in (call.event - 1, call.event))
    return are_apart((before, after))


def _is_as_computed(query: Query, call: HandedOver) -> bool:
    """Whether a rank sends the gradient that its pass left, and not one that it computed from those of all ranks."""
    changes = grad_changes(query, query.at(call.event).owner(call.gradient))
    earlier = changes[changes < call.event]
    return bool(len(earlier)) and query.trace.kinds[earlier[-1]] == Kind.ACCUMULATED


def _cure(name: str) -> str:
    """The cure that makes the ranks average their gradients. A wrapped model shows in the name of its parameters."""
    wrapped = name.partition(".module.")[0]
    if wrapped == name:
        return f"{_WRAP}; or, before the step: {AVERAGE}"
    return (
        f"call {wrapped} and not {wrapped}.module, and the pass before a step outside of {wrapped}.no_sync()"
    )


RULE = RankRule("ranks-unreduced", WARNING, "gradients that no rank averages", _search)
