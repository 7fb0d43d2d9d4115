"""Paths from one tensor to another through the ops between them, and the places where no gradient flows back
along them."""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from enum import Enum

from gradviz.events.kinds import WHOLE, OpRan
from gradviz.query.ops import LOSSES, MEANS, MULTIPLYING, SHAPED_BY_SECOND, TRANSPOSING
from gradviz.query.query import Query

MOST = 200_000  # the most ops that a search visits


class Reason(Enum):
    """Reasons why an op made no node."""

    NOTHING_REQUIRES_GRAD = "no input requires grad"
    GRAD_MODE_OFF = "grad mode was off"
    DETACHED = "it shares the memory of its input, outside of the graph"
    NOT_DIFFERENTIABLE = "its result is not differentiable"


def why_no_node(query: Query, op: OpRan) -> Reason:
    """The reason why an op made no node."""
    before = op.index - 1
    if not any(query.tensors.requires_grad(tensor, before) for tensor in op.inputs if tensor):
        return Reason.NOTHING_REQUIRES_GRAD
    if not op.grad_enabled:
        return Reason.GRAD_MODE_OFF
    if op.outputs and query.tensors.flags(op.outputs[0], op.index) & WHOLE:
        return Reason.DETACHED
    return Reason.NOT_DIFFERENTIABLE


def computed_from(op: OpRan) -> tuple[int, ...]:
    """The inputs of an op whose elements go into its result; without an input that gives only a shape or a dtype."""
    return op.inputs[:1] if op.op in SHAPED_BY_SECOND else op.inputs


def op_of(query: Query, tensor: int) -> OpRan | None:
    """The op that made a tensor; None if no op did."""
    maker = query.tensors.made(tensor)
    return maker if isinstance(maker, OpRan) else None


def is_square(op: OpRan) -> bool:
    """Whether an op multiplies a tensor with itself."""
    return op.op in MULTIPLYING and len(op.inputs) > 1 and len(set(op.inputs)) == 1


def transposed_of(query: Query, tensor: int) -> int:
    """The tensor that a tensor is the transpose of; the tensor itself if it is no transpose."""
    made = op_of(query, tensor)
    return made.inputs[0] if made is not None and made.op in TRANSPOSING and made.inputs else tensor


def root_is_mean(query: Query, pass_number: int) -> bool:
    """Whether the only root of a pass is a mean: made by a mean, or by a loss that is no sum."""
    roots = query.passes.began(pass_number).roots
    op = op_of(query, roots[0].tensor) if len(roots) == 1 else None
    return op is not None and (op.op in MEANS or (op.op in LOSSES and "reduction='sum'" not in op.args))


def op_behind(query: Query, tensor: int, passing: Container[str]) -> OpRan | None:
    """The op that made a tensor. An op named in `passing` is skipped: its first input is followed instead. None if no
    op made it."""
    op = op_of(query, tensor) if tensor else None
    while op is not None and op.op in passing and op.inputs and op.inputs[0]:
        before = op_of(query, op.inputs[0])
        op = before if before is None or before.index < op.index else None
    return op


def shortest_way(query: Query, start: int, end: int) -> list[int]:
    """The tensors on a shortest path of ops from `start` to `end`, in order; empty if there is no path."""
    key = end, query.trace.count  # the count: a run that is under way grows
    if key not in query.searches:
        query.searches.clear()
        query.searches[key] = _Search({end: 0}, deque([end]))
    return query.searches[key].way_from(query, start)


@dataclass(slots=True)
class _Search:
    """A search backwards from a tensor. It continues where it stopped, since many leaves are looked for from one root.
    `came` has for each tensor that was reached the next tensor on the way to the end."""

    came: dict[int, int]
    waiting: deque[int]

    def way_from(self, query: Query, start: int) -> list[int]:
        came, waiting = self.came, self.waiting
        while start not in came and waiting and len(came) < MOST:
            tensor = waiting.popleft()
            for source in sources(query, tensor, through_memory=False):
                if source and source not in came:
                    came[source] = tensor
                    waiting.append(source)
        way = [start] if start in came else []
        while way and came[way[-1]]:
            way.append(came[way[-1]])
        return way


def sources(query: Query, tensor: int, through_memory: bool) -> tuple[int, ...]:
    """The tensors that a tensor was computed from: the inputs of the op that made it, and of the ops that
    changed it in place."""
    maker = query.tensors.made(tensor)
    origins: tuple[int, ...] = ()
    if isinstance(maker, OpRan):
        origins = computed_from(maker)
    elif through_memory and maker is not None:
        base = query.tensors.base(query.tensors.before(tensor, maker.index))
        origins = (base.tensor if base is not None else maker.source,)
    for event in query.tensors.writes(tensor):
        if query.tensors.is_op(event):
            origins += computed_from(query.tensors.op(event))
        elif through_memory:
            origins += (query.tensors.mutation(event).source,)
    return origins


def count_ways(query: Query, start: int, end: int) -> int:
    """The number of paths from `start` to `end`. Inputs have lower numbers than results, so descending
    numbers are a topological order."""
    ways = {end: 1}
    total = 0
    pending = {end}
    looked = 0
    while pending and looked < MOST:
        tensor = max(pending)
        pending.discard(tensor)
        looked += 1
        if tensor == start:
            total += ways[tensor]
            continue
        op = op_of(query, tensor)
        for source in computed_from(op) if op is not None else ():
            if start <= source < tensor:
                ways[source] = ways.get(source, 0) + ways[tensor]
                pending.add(source)
    return total
