"""The rules about numbers that scale gradients, losses and biases on each rank by itself."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import isfinite, sqrt
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import (
    ARE_AVERAGED,
    LONGEST,
    RankFound,
    RankRule,
    each_rank,
    expression_at,
    named,
    odd_among,
)
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.collective_calls import ALL_REDUCE, all_reduced, is_of_some_ranks
from gradviz.query.flow import Downstream, op_behind, op_of, transposed_of
from gradviz.query.loss_factors import ScaledLoss, number_of, scaled_losses
from gradviz.query.ops import ADDING, COPYING, PRODUCTS, RESHAPING
from gradviz.query.query import Query
from gradviz.query.ranks import are_apart, are_close, are_same
from gradviz.query.reduced_gradients import norm_of, one_factor, scaled_parts
from gradviz.query.replicas import Replicas
from gradviz.query.writes import writes_by_any_name
from gradviz.tracefile import Snapshot
from gradviz.words.numbers import number, plural

# --- gradients that lie on the ranks in parts


@RankRule("ranks-clip", WARNING, "parts of a gradient that each rank scales by another factor")
def clip(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-clip`: a gradient that lies on the ranks in parts (`fully_shard`, `DTensor`) is scaled by another factor
    on each rank: each part is clipped by its own norm, and not by the norm of the whole gradient.

    Why it is bad: the step does not follow the gradient, and its size grows with the number of ranks.

    Example:

        from torch.distributed.fsdp import fully_shard
        torch.manual_seed(0)
        model = nn.Linear(6, 4)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 6)).pow(2).mean().backward()
            parts = [p.grad.to_local() for p in model.parameters()]
            norm = torch.stack([part.norm() for part in parts]).norm()
            for part in parts:
                part.mul_(0.01 / norm)  # <- ranks-clip
            optimizer.step()

    Cure: `torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)` knows the norm of the whole. By hand: sum the
    squares of the norms over the ranks before the root.

    Not reported: parts that all ranks scale by one factor, and clipping of each element.
    """
    scaled = {
        rank: {query.names.of(part.parameter) or "": part for part in query.of(scaled_parts)}
        for rank, query in ranks.ranks.items()
    }
    names = [name for name in ranks.common if sum(name in parts for parts in scaled.values()) > 1]
    by_name = {name: [own[name].factor for own in scaled.values() if name in own] for name in names}
    apart = [name for name in names if not are_close(by_name[name])]
    if not apart:
        return
    name = apart[0]
    norms = {rank: sqrt(sum(part.norm**2 for part in parts.values())) for rank, parts in scaled.items()}
    scaling = {rank: parts[name] for rank, parts in scaled.items() if name in parts}
    factors = [number(scaling[rank].factor, 4) if rank in scaling else "nothing" for rank in scaled]
    told = f"The norm of what a rank scales is {each_rank(ranks, [number(norm, 4) for norm in norms.values()])}"
    here: Counter[str] = Counter()
    whole: dict[str, int] = {}
    for one, part in (pair for parts in scaled.values() for pair in parts.items()):
        here[one] += part.elements[0]
        whole[one] = part.elements[1]
    if dict(here) == whole:  # each element lies on exactly one rank
        told = f"{told}, that of the whole {number(sqrt(sum(norm**2 for norm in norms.values())), 4)}"
    # the norms to which the ranks scale
    bounds = [part.factor * norms[rank] for rank, part in scaling.items()]
    parameters = f"torch.nn.utils.clip_grad_norm_({_parameters(names)}, {number(bounds[0], 3)})"
    many = len(apart) > 1
    yield RankFound(
        f"the gradient{'s' * many} of {named(apart)} {'lie' if many else 'lies'} on the ranks in parts, which the "
        f"ranks scale by different factors: that of {named([name])} by {each_rank(ranks, factors)}. {told}",
        f"{parameters}  # in the place of what scales the parts"
        if are_close(bounds)
        else "scale the parts by the same number on all ranks",
        tuple(scaling),
        (next(iter(scaling.values())).event,),
    )


def _parameters(names: Sequence[str]) -> str:
    """The expression for parameters with these names: `model.parameters()`, or `[w]` for a parameter of no model."""
    models = dict.fromkeys(f"{name.partition('.')[0]}.parameters()" for name in names if "." in name)
    alone = [name for name in names if "." not in name]
    if len(models) == 1 and not alone:
        return next(iter(models))
    return f"[{', '.join([*(f'*{model}' for model in models), *alone])}]"


# --- gradients before they are averaged

_MOST_STEPS = 32
_Line = tuple[str, int]


class Scaling(NamedTuple):
    """The effect of one line on gradients before they are all-reduced: the number of optimizer steps before it, its
    first event, the parameters, the factor (NaN if the elements have no common one), the norm of the gradients before,
    the first event that all-reduces one of them, and whether the line calls a function that clips."""

    step: int
    event: int
    parameters: tuple[int, ...]
    factor: float
    norm: float
    reduced: int
    is_clip: bool


class _Write(NamedTuple):
    """The effect of a line on one gradient: `factor` is 1 if it changes nothing, NaN if it does not scale."""

    parameter: int
    event: int
    factor: float
    norm: float
    reduced: int


_Scaled = dict[int, Scaling | None]  # by rank


@RankRule("ranks-early-clip", WARNING, "gradients that are clipped before the ranks average them")
def early_clip(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-early-clip`: gradients are clipped on each rank before the ranks average them: each rank scales its
    gradients by another factor.

    Why it is bad: the limit applies to the gradients of one rank, and not to their mean, which has a smaller norm. A
    rank with large gradients counts less in the mean, and the step changes with the number of ranks.

    Example:

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.randn(8, 4)).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <- ranks-early-clip
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: clip between the average and the step.

    Not reported: gradients that all ranks scale by the same factor, as when no norm is above the limit; gradients that
    a rank weights by the size of its batch.
    """
    if not all(map(len, ranks.reduced)):
        return
    every = {rank: query.of(early_scalings) for rank, query in ranks.ranks.items()}
    for step in sorted({scaling.step for scalings in every.values() for scaling in scalings}):
        by_rank = {rank: [scaling for scaling in scalings if scaling.step == step] for rank, scalings in every.items()}
        scaled = _by_function(by_rank) or _by_hand(by_rank)
        if scaled is not None:
            yield _clipped(ranks, scaled)
            return


def early_scalings(query: Query) -> list[Scaling]:
    """The effects of lines on gradients before these are all-reduced, in order, for the first steps. Use
    `query.of(early_scalings)`."""
    steps = query.trace.table(Kind.STEPPED).events[:_MOST_STEPS].tolist()
    by_line: dict[tuple[int, _Line], list[_Write]] = {}
    since: dict[int, int] = {}
    for gradient, reduced in sorted(query.of(all_reduced).tolist(), key=lambda pair: pair[1]):
        step = bisect_left(steps, reduced)
        begin = max(since.get(gradient, 0), steps[step - 1] if step else 0)
        since[gradient] = reduced
        if step < _MOST_STEPS:
            for line, write in _writes(query, gradient, begin, reduced):
                by_line.setdefault((step, line), []).append(write)
    clips = {query.places.line(site) for site in query.trace.table(Kind.CLIPPED).sites.tolist()}
    scalings = [_scaling(step, writes, line in clips) for (step, line), writes in by_line.items()]
    return sorted(scalings, key=lambda one: one.event)


def _writes(query: Query, gradient: int, since: int, reduced: int) -> Iterable[tuple[_Line, _Write]]:
    """The effect of each line on a gradient between two events."""
    by_line: dict[_Line, list[int]] = {}
    for event in writes_by_any_name(query, gradient):
        if since < event < reduced and query.tensors.writer(event) != ALL_REDUCE:
            by_line.setdefault(query.places.line(int(query.trace.events["site"][event])), []).append(event)
    parameter = query.at(reduced).owner(gradient)
    for line, events in by_line.items() if parameter else ():
        before = query.trace.snapshot(gradient, events[0] - 1)
        after = query.trace.snapshot(gradient, events[-1])
        if (known := _factor(before, after)) is not None:
            yield line, _Write(parameter, events[0], *known, reduced)


def _factor(before: Snapshot | None, after: Snapshot | None) -> tuple[float, float] | None:
    """The factor by which a tensor was scaled, NaN if there is none, and its norm before; None if its values are not
    known."""
    if before is None or after is None or before.stats is None or after.stats is None:
        return None
    if not np.isfinite([before.stats.rms, after.stats.rms]).all():
        return None
    factor = 1.0 if before.stats == after.stats else one_factor(before, after)
    return (float("nan") if factor is None else factor), norm_of(before)


def _scaling(step: int, writes: Sequence[_Write], is_clip: bool) -> Scaling:
    factors = [write.factor for write in writes]
    return Scaling(
        step,
        min(write.event for write in writes),
        tuple(write.parameter for write in writes),
        factors[0] if are_close(factors) else float("nan"),
        float(np.sqrt(sum(write.norm**2 for write in writes))),
        min(write.reduced for write in writes),
        is_clip,
    )


def _by_function(by_rank: dict[int, list[Scaling]]) -> _Scaled | None:
    """The first call on each rank of a function that clips, if its factor is not the same on all ranks; else None."""
    scaled = {
        rank: next((scaling for scaling in scalings if scaling.is_clip), None) for rank, scalings in by_rank.items()
    }
    factors = [1.0 if scaling is None else scaling.factor for scaling in scaled.values()]
    return None if are_close(factors) else scaled


def _by_hand(by_rank: dict[int, list[Scaling]]) -> _Scaled | None:
    """The first line that gives the gradients of all ranks the same norm, by different factors; None if none does."""
    for together in zip(*by_rank.values(), strict=False):
        norms = [scaling.factor * scaling.norm for scaling in together]
        if not are_close([scaling.factor for scaling in together]) and are_close(norms) and min(norms):
            return dict(zip(by_rank, together, strict=True))
    return None


def _clipped(ranks: Replicas, scaled: _Scaled) -> RankFound:
    changed = {rank: scaling for rank, scaling in scaled.items() if scaling is not None and scaling.factor != 1}
    rank, first = next(iter(changed.items()))
    query = ranks.ranks[rank]
    names = [query.names.of(parameter) or "a parameter" for parameter in first.parameters]
    clips, follows = expression_at(query, first.event), query.places.at(first.reduced)
    if not 0 < len(clips) <= LONGEST:
        clips = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    many = len(names) > 1
    return RankFound(
        f"the gradient{'s' * many} of {named(names)} {'are' if many else 'is'} clipped before the ranks average "
        f"{'them' if many else 'it'}: each rank scales its own, "
        f"{each_rank(ranks, [_scaled_by(scaling) for scaling in scaled.values()])}, and the all_reduce"
        f"{'' if follows is None else f' at line {follows.place.line}'} follows",
        f"{clips}  # between the average and the step",
        tuple(changed),
        (first.event, first.reduced),
    )


def _scaled_by(scaling: Scaling | None) -> str:
    """The words for the scaling of a rank's gradients: `by 0.5`, `not at all`, `element by element`."""
    if scaling is None or scaling.factor == 1:
        return "not at all"
    return f"by {number(scaling.factor, 4)}" if isfinite(scaling.factor) else "element by element"


# --- losses

_LEAST = 2  # passes: in a single pass the number may depend on its data


@RankRule("ranks-loss", WARNING, "losses that ranks multiply by different numbers", needs=(ARE_AVERAGED,))
def loss(ranks: Replicas) -> Iterator[RankFound]:
    """`ranks-loss`: the loss is multiplied by a number that is not the same on all ranks, though the ranks average
    their gradients.

    Why it is bad: the samples of one rank count more than those of the others, and the size of the step changes. The
    mean of the gradients belongs to no loss in the program.

    Example:

        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(rank)
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).pow(2).mean()
            loss = loss * (1 + rank)  # <- ranks-loss
            loss.backward()
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= world
            optimizer.step()

    Cure: multiply by the same number on all ranks, or leave the factor out.

    Not reported: weights that add up to 1 over the ranks or are 1 on average, as weights by the sizes of batches are;
    numbers that differ from pass to pass; losses that are computed from other shapes on each rank.
    """
    losses = _of_one_loss(ranks)
    first_steps = zip(ranks.queries, ranks.steps[0] if ranks.steps else (), strict=False)
    counts = {sum(one.first < step.index for one in query.trace.passes) for query, step in first_steps}
    if len(losses) < _LEAST or len(counts) != 1:  # each rank may divide its loss by the number of its passes
        return
    factors = [loss.factor for loss in losses[0]]
    are_weights = min(factors) > 0 and any(are_close([sum(factors), one]) for one in (1.0, len(factors)))
    if are_close(factors) or are_weights:
        return
    odd = odd_among(ranks, [number(factor, 6) for factor in factors])
    # the first odd rank that multiplies its loss; if none does, the first rank that multiplies its loss
    multiplying = ranks.where([loss.numbers for loss in losses[0]])
    rank = next((rank for rank in odd if rank in multiplying), multiplying[0])
    yield RankFound(
        f"the loss is multiplied by another number on each rank, in each of the first "
        f"{plural(len(losses), 'pass', 'passes')}, and the gradients are averaged: "
        f"by {each_rank(ranks, [number(factor, 4) for factor in factors])}",
        "multiply the loss by the same number on all ranks, or by none",
        (rank, *(other for other in odd if other != rank)),
        (_event_apart(losses[0], ranks.place(rank)),),
    )


def _of_one_loss(ranks: Replicas) -> list[tuple[ScaledLoss, ...]]:
    """The losses of the first passes on all ranks, as long as all ranks compute the same loss from the same shapes, and
    each multiplies it by the same number as in the first pass."""
    known: list[tuple[ScaledLoss, ...]] = []
    for together in ranks.together(scaled_losses):
        losses = tuple(loss for loss in together if loss is not None)
        if len(losses) < len(together) or len({(loss.op, loss.shapes) for loss in losses}) > 1:
            break
        before = known[0] if known else losses
        if not all(are_close([own.factor, loss.factor]) for own, loss in zip(before, losses, strict=True)):
            break
        known.append(losses)
    return known


def _event_apart(losses: Sequence[ScaledLoss], place: int) -> int:
    """The first op of a rank, counted from the loss, whose number another rank does not have in the same place."""
    numbers = losses[place].numbers[::-1]
    for at, (event, factor) in enumerate(numbers):
        others = [loss.numbers[::-1][at : at + 1] for loss in losses]
        if any(not other or not are_close([factor, other[0][1]]) for other in others):
            return event
    return numbers[-1][0]


# --- biases

_MOST = 32  # the most collectives that are examined
_NEAR = 40  # the most results that are searched


class Added(NamedTuple):
    """A bias that is added to a product before an all_reduce sums it: the bias, the weights of the product, the event
    that adds it, and the event of the sum."""

    bias: int
    weights: tuple[int, ...]
    event: int
    summed: int


@RankRule("ranks-bias", WARNING, "biases that each rank adds before the ranks sum")
def bias(ranks: Replicas) -> Iterator[RankFound]:
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

    Not reported: a sum that is divided by the number of ranks, weights that are the same on all ranks, and a bias that
    is 0 or differs between the ranks.
    """
    together = _summed_biases(ranks)
    if together is None:
        return
    first, query = together[0], ranks.queries[0]
    name = query.names.of(first.bias) or "the bias"
    weights = [query.names.of(weight) or "a weight" for weight in first.weights]
    summed = query.places.at(first.summed)
    where = "" if summed is None else f" (line {summed.place.line})"
    yield RankFound(
        f"{named([name])} is added on each rank to its part of the product with {named(weights)}, before all_reduce "
        f"sums the parts{where}: it counts {len(ranks.ranks)} times",
        f"+ {name}  # to the result of the all_reduce, and not before",
        events=(first.event, first.summed),
    )


def _summed_biases(ranks: Replicas) -> tuple[Added, ...] | None:
    """The first bias, by rank, that is the same on all ranks and not 0, and that each rank adds to its own part of a
    product before the parts are summed; None if there is none."""
    for together in ranks.together(added_before_sums):
        of_ranks = list(zip(ranks.queries, together, strict=True))
        values = [query.memory.value(added.bias, added.event) for query, added in of_ranks]
        is_some = values[0] is not None and values[0].stats is not None and values[0].stats.rms > 0
        if len({query.names.of(added.bias) for query, added in of_ranks}) > 1 or not is_some or not are_same(values):
            continue
        parts = [[query.memory.value(weight, added.event) for weight in added.weights] for query, added in of_ranks]
        if len(set(map(len, parts))) == 1 and all(are_apart(weights) for weights in zip(*parts, strict=True)):
            return together
    return None


def added_before_sums(query: Query) -> list[Added]:
    """The biases that a rank adds before the first sums over all ranks, in order; without sums that are divided by the
    number of ranks. Use `query.of(added_before_sums)`."""
    ops = query.trace.table(Kind.OP)
    is_sum = query.trace.named(ops["op"], (ALL_REDUCE,)) & (ops["in_pass"] == 0)
    biases = []
    for event in ops.events[is_sum][:_MOST].tolist():
        call = query.tensors.op(event)
        if is_of_some_ranks(call.args) or call.args.split(", ")[0] not in ("", "SUM"):
            continue
        made = op_behind(query, call.outputs[0], COPYING | RESHAPING) if call.outputs else None
        added = None if made is None else _added(query, made, event)
        if made is not None and added is not None and not _is_divided(query, made):
            biases.append(added)
    return biases


def _added(query: Query, made: OpRan, summed: int) -> Added | None:
    """The bias that an op adds to a product; None if it adds none, or several."""
    leaves = [tensor for tensor in made.inputs if tensor and _is_leaf(query, tensor, made.index)]
    biases = [tensor for tensor in leaves if len(query.tensors.shape(tensor) or ()) == 1]
    product = made
    if made.op in ADDING:
        others = [op_of(query, tensor) for tensor in made.inputs if tensor and tensor not in biases]
        product = next((op for op in others if op is not None), made)
    if len(biases) != 1 or product.op not in PRODUCTS:
        return None
    sources = [transposed_of(query, tensor) for tensor in product.inputs if tensor and tensor not in biases]
    weights = tuple(tensor for tensor in sources if _is_leaf(query, tensor, made.index))
    return Added(biases[0], weights, made.index, summed) if weights else None


def _is_leaf(query: Query, tensor: int, event: int) -> bool:
    return query.tensors.is_leaf_that_requires_grad(tensor, event)


def _is_divided(query: Query, made: OpRan) -> bool:
    """Whether the sum is divided by the number of ranks, and so is a mean."""
    share = 1 / float(query.trace.meta.get("world", "1") or 1)
    readers = {event for events in query.of(Downstream).results(made.outputs[0], _NEAR).values() for event in events}
    return any(np.isclose(number_of(query, query.tensors.op(event)), share) for event in readers)
