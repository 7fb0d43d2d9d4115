"""The rules about gradients that the ranks should average, and average not at all, not everywhere, or not as a mean."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.rank_rule import (
    ARE_AVERAGED,
    ARE_REPLICAS,
    AVERAGE,
    RankFound,
    RankRule,
    named,
    site_of_step,
    values_of_each,
)
from gradviz.events.kinds import Kind
from gradviz.query.collective_calls import (
    HandedOver,
    changes_between,
    handed_over,
    is_reduced_in_groups,
    reduced_otherwise,
    sums,
)
from gradviz.query.flow import root_is_mean
from gradviz.query.query import Query
from gradviz.query.ranks import are_apart, are_same
from gradviz.query.replicas import Replicas, frozen_on_some
from gradviz.query.writes import grad_changes
from gradviz.tracefile import PassInfo, Snapshot
from gradviz.words.numbers import called_ranks, plural

_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"
_PASSES = 4  # the most passes whose hooks are compared
_LEAST = 2  # the fewest: in one pass the effect of a hook may come from its data
_KEPT = {"MAX": "the largest", "MIN": "the smallest", "PRODUCT": "the product"}


# --- none is averaged


@RankRule("ranks-unreduced", WARNING, "gradients that no rank averages")
def unreduced(ranks: Replicas) -> Iterator[RankFound]:
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
    if names := ranks.names_of_parts_without_gradient:
        yield RankFound(
            f"no gradient is reduced to the parts of {named(names)} that lie on the ranks: none of them has one at "
            "step 1, though the passes before it give gradients to the whole parameters",
            f"{names[0].partition('.')[0]}.set_requires_gradient_sync(True)  # before the last pass of a step",
            site=site_of_step(ranks.queries[0]),
        )
    if any(map(len, ranks.reduced)) or not ranks.are_replicas or ranks.are_averaged_parameters:
        return
    if any(query.of(is_reduced_in_groups) for query in ranks.queries):
        return
    handed = _handed_over(ranks) or _taken_from_one(ranks)
    if handed is not None:
        yield handed
    elif ranks.gradients_apart:
        first = ranks.gradients_apart[0]
        wrapped = first.name.partition(".module.")[0]  # a wrapped model shows in the names of its parameters
        yield RankFound(
            "no gradient is averaged over the ranks, though they begin with the same parameters: at step "
            f"{first.step} the gradient of {first.name} is {values_of_each(ranks, first.gradients)}",
            f"{_WRAP}; or, before the step: {AVERAGE}"
            if wrapped == first.name
            else f"call {wrapped} and not {wrapped}.module, and the pass before a step outside of {wrapped}.no_sync()",
            site=site_of_step(ranks.queries[0]),
        )


def _handed_over(ranks: Replicas) -> RankFound | None:
    """The finding for the first collective that gives gradients to some ranks, if a rank's own gradients are lost."""
    calls = [query.of(handed_over) for query in ranks.queries]
    if not ranks.steps or not all(calls):
        return None
    first = ranks.by_rank([own[0] for own in calls])
    names = {call.name for call in first.values()}
    if names == {"broadcast"}:
        shots = {
            rank: [ranks.ranks[rank].trace.snapshot(one.gradient, at) for at in (one.event - 1, one.event)]
            for rank, one in first.items()
        }
        lost = tuple(rank for rank in first if are_apart(shots[rank]))  # whose gradient the broadcast changes
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


def _is_as_computed(query: Query, call: HandedOver) -> bool:
    """Whether a rank sends the gradient that its pass left, and not one that it computed from those of all ranks."""
    changes = grad_changes(query, query.at(call.event).owner(call.gradient))
    earlier = changes[changes < call.event]
    return bool(len(earlier)) and query.trace.kinds[earlier[-1]] == Kind.ACCUMULATED


def _taken_from_one(ranks: Replicas) -> RankFound | None:
    """The finding for a line after which all ranks step, at the first step, with the gradients that a single rank
    computed in its only pass before, although the other ranks had computed different gradients."""
    if not ranks.steps or not ranks.are_replicas:
        return None
    at = [step.index for step in ranks.steps[0]]
    before = zip(ranks.queries, at, strict=True)
    if any(sum(one.first < event for one in query.trace.passes) != 1 for query, event in before):
        return None
    givers = {_giver(ranks, name, at) for name in ranks.common}
    giver = next(iter(givers), None)
    if len(givers) != 1 or giver is None:
        return None
    lost = tuple(rank for rank in ranks.ranks if rank != giver)
    place = ranks.place(lost[0])
    changes = grad_changes(ranks.queries[place], ranks.parameters[place][ranks.common[0]])
    return RankFound(
        f"no gradient is averaged over the ranks: all step with those of {called_ranks([giver])}, and those that "
        f"{called_ranks(lost)} computed are lost",
        f"{AVERAGE}, in the place of this line",
        lost,
        (int(changes[changes < at[place]].max(initial=0)),),
    )


def _giver(ranks: Replicas, name: str, at: list[int]) -> int | None:
    """The only rank whose gradient of a parameter all ranks step with; None if there is none."""
    of_ranks = list(zip(ranks.queries, ranks.tensors(name), at, strict=True))
    computed = [_computed(*of_rank) for of_rank in of_ranks]
    stepped = [query.tensors.gradient(tensor, event) for query, tensor, event in of_ranks]
    is_some = [value is not None and value.stats is not None and value.stats.rms > 0 for value in computed]
    if not are_same(stepped) or not all(is_some):
        return None
    givers = ranks.where([are_same([value, stepped[0]]) for value in computed])
    others = ranks.where([are_apart([value, stepped[0]]) for value in computed])
    return givers[0] if len(givers) == 1 and len(others) == len(of_ranks) - 1 else None


def _computed(query: Query, tensor: int, until: int) -> Snapshot | None:
    """The gradient that the last pass before an event gave a leaf."""
    came = query.trace.table(Kind.ACCUMULATED)
    rows = np.flatnonzero((came["tensor"] == tensor) & (came.events < until))[-1:].tolist()
    values = [query.trace.snapshot(int(came["gradient"][row]), int(came.events[row])) for row in rows]
    return values[0] if values else None


# --- some are averaged


@RankRule("ranks-apart", WARNING, "gradients that differ at a step, though others are averaged")
def apart(ranks: Replicas) -> Iterator[RankFound]:
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

    Not reported: ranks that average nothing (see `ranks-unreduced`); a parameter that is frozen on some ranks alone
    (see `ranks-frozen`).
    """
    frozen = frozen_on_some(ranks)
    names_of_frozen = frozen.names if frozen is not None else ()
    found = [one for one in ranks.differences if one.name not in names_of_frozen or None not in one.gradients]
    if not found or ranks.mixed_up is not None:  # ranks-collectives reports the mix-up
        return
    first, names = found[0], [one.name for one in found]
    lacking = ranks.where([not was for was in first.averaged])
    changed = {rank: event for rank, event in ranks.by_rank(first.changed).items() if event} if first.changed else {}
    if changed:  # a line changes gradients which were the same on all ranks
        alone = f"on {called_ranks([*changed])} alone"
        where = "not alike on all ranks" if len(changed) == len(ranks.ranks) else alone
        why = f": this line changes {'them' if len(names) > 1 else 'it'} after the all_reduce, {where}"
    elif not lacking:
        why = ", all-reduced before it was complete"
    elif len(lacking) < len(first.averaged) and any(gradient is None for gradient in first.gradients):
        why = ", which some ranks do not have"
    else:
        why = f", not all-reduced on {called_ranks(lacking)}"
    message = (
        f"the gradient{'s' * (len(names) > 1)} of {named(names)} differ{'s' * (len(names) == 1)} between the ranks at "
        f"step {first.step}{why}: {named([first.name])} has {values_of_each(ranks, first.gradients)}"
    )
    if changed:
        cure = "do this on all ranks, with the same numbers, or before the all_reduce"
        yield RankFound(message, cure, tuple(changed), (next(iter(changed.values())),))
        return
    wrapped, inside, _ = first.name.partition(".module.")
    cure = AVERAGE
    if inside and len(lacking) == len(first.averaged):
        cure = f"leave {named([wrapped])}.no_sync() before the last pass of a step"
    step_of = ranks.ranks[lacking[0]] if lacking else ranks.queries[0]
    yield RankFound(message, cure, lacking, site=site_of_step(step_of, first.step))


@RankRule("ranks-hooks", WARNING, "gradients that hooks change on some ranks alone", needs=(ARE_AVERAGED, ARE_REPLICAS))
def hooks(ranks: Replicas) -> Iterator[RankFound]:
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
    count = min(_PASSES, *(len(query.trace.passes) for query in ranks.queries))
    if count < _LEAST:
        return
    passes = list(ranks.together(hooked))[:count]
    for name in ranks.common:
        does = {tuple(name in changed for changed in together) for together in passes}
        if len(does) == 1 and len(set(*does)) > 1:  # the same in each pass, and not on each rank
            hooking = ranks.where(*does)
            event, gradient = passes[0][ranks.place(hooking[0])][name]
            query = ranks.ranks[hooking[0]]
            yield RankFound(
                f"a hook changes the gradient of {named([name])} on {called_ranks(hooking)} alone, in each of the "
                f"first {plural(count, 'pass', 'passes')}, and the ranks average it",
                "register the hook on all ranks, or on none",
                hooking,
                (event,),
                site=query.places.site(query.tensors.site(gradient)) or query.places.at(event),
            )
            return


def hooked(query: Query) -> list[dict[str, tuple[int, int]]]:
    """The parameters whose gradients hooks changed in each of the first passes, by name: the event, and the gradient
    that the hook gave. Use `query.of(hooked)`."""
    table = query.trace.table(Kind.HOOKED)
    changed = []
    for one in query.trace.passes[:_PASSES]:
        rows = np.flatnonzero((table["in_pass"] == one.number) & (table["tensor"] > 0)).tolist()
        names = [query.names.of(int(table["tensor"][row])) or "" for row in rows]
        given = [(int(table.events[row]), int(table["after"][row])) for row in rows]
        changed.append(dict(zip(names, given, strict=True)))
    return changed


# --- no mean


@RankRule("ranks-sum", NOTE, "gradients that are summed over the ranks, and not divided", needs=(ARE_AVERAGED,))
def sum_(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-sum`: a gradient is summed over the ranks, and nothing divides it by the number of ranks before the step,
    though the loss is a mean. Or it is reduced twice, or divided by another number, or reduced to another result than
    the mean, as the largest (`ReduceOp.MAX`).

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

    Not reported: gradients that the program changes between the sum and the step; losses that are sums, or that are
    divided by the number of ranks.
    """
    yield from _not_summed(ranks)
    step, count = _first_step(ranks), len(ranks.ranks)
    if step is None:
        return
    yield from _divided(ranks, step)
    found = undivided_sums(ranks, step)
    if not found:
        return
    first = found[0]
    again = first.averaged or first.summed
    if first.averaged:
        how = f"averaged over the {count} ranks, and then summed over them: it is {count} times the mean"
    elif first.summed:
        how = f"summed over the {count} ranks twice, and not divided"
    else:
        how = f"the sum over {count} ranks of the gradients of means, and not divided: it is {count} times the mean"
    names = [one.name for one in found if (one.averaged, one.summed) == (first.averaged, first.summed)]
    yield RankFound(
        f"the gradient of {named(names)} is {how} before step 1",
        "leave this all_reduce out" if again else "p.grad /= dist.get_world_size()  # after this all_reduce",
        events=(first.event,),
        severity=WARNING if again else NOTE,
    )


class _FirstStep(NamedTuple):
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


def _first_step(ranks: Replicas) -> _FirstStep | None:
    """The first step of the first rank; None unless the pass before it begins at a mean."""
    query = ranks.queries[0]
    if not ranks.steps:
        return None
    event = ranks.steps[0][0].index
    passes = [one for one in query.trace.passes if one.first < event]
    return _FirstStep(query, event, passes) if passes and root_is_mean(query, passes[-1].number) else None


class Sum(NamedTuple):
    """A gradient that is summed over the ranks at an event and not changed again before the first step, although the
    loss is a mean. `averaged` is whether the ranks had averaged it before, `summed` whether they had summed it."""

    name: str
    event: int
    averaged: bool
    summed: bool


def undivided_sums(ranks: Replicas, step: _FirstStep) -> list[Sum]:
    """The sums over the ranks that nothing divides, at the first step of the first rank."""
    query, undivided = step.query, []
    for name, gradient, event in step.summed(ranks.parameters[0]):
        if changes_between(query, gradient, event, step.event):
            continue
        earlier = _reductions(ranks, gradient, event)
        if earlier or not changes_between(query, gradient, step.passes[-1].last or 0, event):
            undivided.append(Sum(name, event, "average" in earlier, "sum" in earlier))
    return undivided


def _reductions(ranks: Replicas, gradient: int, until: int) -> set[str]:
    """The earlier reductions of a gradient on the first rank, before an event: `average`, `sum`."""
    query, pairs = ranks.queries[0], ranks.reduced[0]
    summed = {event for one, event in query.of(sums) if one == gradient}
    events = pairs[(pairs[:, 0] == gradient) & (pairs[:, 1] < until), 1].tolist()
    return {
        "sum" if event in summed and not changes_between(query, gradient, event, until) else "average"
        for event in events
    }


def _divided(ranks: Replicas, step: _FirstStep) -> Iterator[RankFound]:
    """The finding for sums over the ranks that one line divides by another whole number than that of the ranks, before
    the first step of the first rank. None unless one pass is before the step and all ranks are known."""
    count = len(ranks.ranks)
    if len(step.passes) != 1 or step.query.trace.meta.get("world") != str(count):
        return
    shares: dict[str, tuple[int, int]] = {}  # by name: the number, and the event that divides by it
    for name, gradient, event in step.summed(ranks.parameters[0]):
        changes = changes_between(step.query, gradient, event, step.event)
        if len(changes) == 1 and event > step.passes[0].first:
            divisor = _divisor(step.query, gradient, changes[0])
            if divisor not in (0, 1, count):
                shares[name] = divisor, changes[0]
    if not shares:
        return
    divisor, event = next(iter(shares.values()))
    yield RankFound(
        f"the gradient of {named([name for name, share in shares.items() if share[0] == divisor])} is summed over the "
        f"{count} ranks and divided by {divisor} before step 1: it is {count / divisor:.4g} times the mean",
        "p.grad /= dist.get_world_size()  # in the place of this division",
        events=(event,),
    )


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
        events=(event,),
        severity=WARNING,
    )
