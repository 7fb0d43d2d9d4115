"""Ops that the ranks of a run call with different numbers, in the same place of the same program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gradviz.events.kinds import Kind
from gradviz.query.loss_factors import scaled_losses
from gradviz.query.ops import WITH_NUMBERS
from gradviz.query.query import Query
from gradviz.query.replicas import Replicas

_PASSES = 4  # the most passes that are compared
_LEAST = 2  # the fewest: in one pass, the numbers may come from its data


class Called(NamedTuple):
    """An op before a pass: its name, line, arguments that are no tensors, the shape of its result, and the event."""

    op: str
    line: int
    args: str
    shape: object
    event: int


class OtherArguments(NamedTuple):
    """An op that ranks call with different arguments in each of `passes` passes: its calls by rank in the first."""

    calls: tuple[Called, ...]
    passes: int


def other_arguments(ranks: Replicas) -> OtherArguments | None:
    """The first op whose arguments differ between ranks, while each rank has the same in each of the first passes.
    None if there is none, or if the ranks do not call the same ops."""
    called = [query.of(called_before_passes) for query in ranks.queries]
    passes = list(zip(*called, strict=False))
    if len(passes) < _LEAST or not all(_are_alike(together) for together in passes):
        return None
    for place in range(min(len(calls) for together in passes for calls in together)):
        calls = [tuple(calls[place] for calls in together) for together in passes]
        arguments = {tuple(call.args for call in together) for together in calls}
        if len(arguments) == 1 and len(set(*arguments)) > 1:
            return OtherArguments(calls[0], len(passes))
    return None


def called_before_passes(query: Query) -> list[list[Called]]:
    """The ops with numbers of their own that run before each of the first passes; without the ops that only multiply
    its loss. Use `query.of(called_before_passes)`."""
    ops = query.trace.table(Kind.OP)
    named = ops.events[query.trace.named(ops["op"], WITH_NUMBERS) & (ops["in_pass"] == 0)]
    losses = query.of(scaled_losses)
    called, since = [], -1
    for number, one in enumerate(query.trace.passes[:_PASSES]):
        loss = losses[number] if number < len(losses) else None
        apart = {event for event, _ in loss.numbers} if loss is not None else set()
        events = named[(named > since) & (named < one.first)].tolist()
        called.append(
            [_called(query, event) for event in events if event not in apart and query.nodes.of_op(event)]
        )
        since = one.first
    return called


def _called(query: Query, event: int) -> Called:
    op = query.tensors.op(event)
    _, line = query.places.line(op.site)  # not the file: machines have it in different folders
    return Called(op.op, line, op.args, query.trace.shape(op.outputs[0]) if op.outputs else None, event)


def _are_alike(together: Sequence[list[Called]]) -> bool:
    """Whether ranks call the same ops at the same lines, with results of the same shapes."""
    return len({tuple((call.op, call.line, call.shape) for call in calls) for calls in together}) == 1
