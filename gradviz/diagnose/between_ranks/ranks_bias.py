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

Not reported: a sum that is divided by the number of ranks, weights that are the same on all ranks, and a bias that is 0
or differs between the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, named, site_of_event
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.collective_calls import ALL_REDUCE, is_of_some_ranks
from gradviz.query.flow import Downstream, op_behind, op_of, transposed_of
from gradviz.query.loss_factors import number_of
from gradviz.query.ops import ADDING, COPYING, PRODUCTS, RESHAPING
from gradviz.query.query import Query
from gradviz.query.ranks import are_apart, are_same
from gradviz.query.replicas import Replicas

_MOST = 32  # the most collectives that are examined
_NEAR = 40  # the most results that are searched


class Added(NamedTuple):
    """A bias that is added to a product before an all_reduce sums it: the bias, the weights of the product, the event
    that adds it, and the event of the sum."""

    bias: int
    weights: tuple[int, ...]
    event: int
    summed: int


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
        if added is not None and not _is_divided(query, made):
            biases.append(added)
    return biases


def summed_biases(ranks: Replicas) -> tuple[Added, ...] | None:
    """The first bias, by rank, that is the same on all ranks and that each rank adds to its own part of a product
    before the parts are summed; None if there is none."""
    for together in zip(*(query.of(added_before_sums) for query in ranks.queries), strict=False):
        names = {query.names.of(added.bias) for query, added in zip(ranks.queries, together, strict=True)}
        values = [
            query.memory.value(added.bias, added.event)
            for query, added in zip(ranks.queries, together, strict=True)
        ]
        if len(names) == 1 and are_same(values) and _is_some(values) and _have_own_weights(ranks, together):
            return together
    return None


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


def _is_divided(query: Query, made: OpRan | None) -> bool:
    """Whether the sum is divided by the number of ranks, and so is a mean."""
    share = 1 / float(query.trace.meta.get("world", "1") or 1)
    results = query.of(Downstream).results(made.outputs[0], _NEAR) if made is not None else {}
    readers = {event for events in results.values() for event in events}
    return any(np.isclose(number_of(query, query.tensors.op(event)), share) for event in readers)


def _is_some(values: Sequence[object]) -> bool:
    """Whether the value of the first rank is not 0."""
    stats = getattr(values[0], "stats", None)
    return stats is not None and stats.rms > 0


def _have_own_weights(ranks: Replicas, together: Sequence[Added]) -> bool:
    """Whether the weights of the products differ between the ranks."""
    if len({len(added.weights) for added in together}) != 1:
        return False
    weights = zip(*(added.weights for added in together), strict=True)
    events = [added.event for added in together]
    return all(
        are_apart(
            [
                query.memory.value(w, event)
                for query, w, event in zip(ranks.queries, of_ranks, events, strict=True)
            ]
        )
        for of_ranks in weights
    )


def _search(ranks: Replicas) -> Iterator[RankFound]:
    together = summed_biases(ranks)
    if together is None:
        return
    first, query = together[0], ranks.queries[0]
    name = query.names.of(first.bias) or "the bias"
    weights = [query.names.of(weight) or "a weight" for weight in first.weights]
    summed = site_of_event(query, first.summed)
    where = "" if summed is None else f" (line {summed.place.line})"
    yield RankFound(
        f"{named([name])} is added on each rank to its part of the product with {named(weights)}, before all_reduce "
        f"sums the parts{where}: it counts {len(ranks.ranks)} times",
        f"+ {name}  # to the result of the all_reduce, and not before",
        tuple(ranks.ranks),
        (first.event, first.summed),
    )


RULE = RankRule("ranks-bias", WARNING, "biases that each rank adds before the ranks sum", _search)
