"""The facts about one rank for the comparison with other ranks: its steps and parameters, the roots of its passes, the
calls of its modules, the statistics that its normalisations read, and the elements that its dropouts dropped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, Stepped
from gradviz.query.flow import Ways, op_of
from gradviz.query.ops import COPYING, DROPOUTS, RUNNING
from gradviz.query.optimizer_settings import settings_of
from gradviz.query.query import Query
from gradviz.query.training import Training
from gradviz.sets import distinct
from gradviz.tracefile import Snapshot

MOST_STEPS = 1000
MOST_ROOTS = 32  # the most passes whose roots are compared, and the most dropouts


def first_roots(query: Query, count: int) -> Iterator[Snapshot | None]:
    """The value of the first root of each of the first passes; None if it is not known, was reduced, or was computed
    from tensors that ranks put together."""
    not_own = {0, *query.tensors.outputs.firsts[query.tensors.are_collectives].tolist()}
    shared = _given_to_others(query)
    for backward_pass in query.trace.passes[:count]:
        roots = query.passes.began(backward_pass.number).roots
        is_own = bool(roots) and roots[0].tensor not in not_own
        if is_own and shared:
            is_own = shared.isdisjoint(Ways(query, roots[0].tensor, backward_pass.first).reached)
        yield query.memory.value(roots[0].tensor, backward_pass.first) if is_own else None


def _given_to_others(query: Query) -> set[int]:
    """The tensors that are given to collectives, such as the results of a network that ranks gather before the loss.
    Leaves that require grad are left out."""
    in_collectives = query.trace.table(Kind.COLLECTIVE).lists("tensors").values.tolist()
    last = query.trace.count - 1
    tensors = {
        *in_collectives,
        *(_copied(query, tensor) for tensor in in_collectives),
    }  # a function with a gradient gives a copy to the collective
    return {t for t in tensors if t and not query.tensors.is_leaf_that_requires_grad(t, last)}


def _copied(query: Query, tensor: int) -> int:
    """The tensor that a tensor is a copy of; 0 if it is no copy."""
    op = op_of(query, tensor) if tensor else None
    return op.inputs[0] if op is not None and op.op in COPYING and op.inputs else 0


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a module in order: the events, and whether it was in training mode at each of them."""

    events: np.ndarray
    training: np.ndarray

    def before(self, event: int) -> tuple[int, bool]:
        """The last call before an event, and whether it was in training mode; (-1, False) if there is none."""
        at = int(np.searchsorted(self.events, event)) - 1
        return (int(self.events[at]), bool(self.training[at])) if at >= 0 else (-1, False)


def module_calls(query: Query) -> dict[str, Calls]:
    """The calls of each module, by name."""
    entered = query.trace.table(Kind.SCOPE_ENTERED)
    is_module = query.trace.named(entered["kind"], ("module",))
    numbers, events, training = (
        entered["name"][is_module],
        entered.events[is_module],
        entered["training"][is_module],
    )
    calls = {}
    for number in distinct(numbers).tolist():
        rows = numbers == number
        if name := query.trace.text(number):
            calls[name] = Calls(events[rows], training[rows])
    return calls


class Read(NamedTuple):
    """A buffer, and the events of the ops that read it."""

    tensor: int
    events: list[int]


def running_statistics(query: Query) -> dict[str, Read]:
    """The running statistics that normalisations read while they train, by name."""
    ops = query.trace.table(Kind.OP)
    statistics: dict[str, Read] = {}
    for event in ops.events[query.trace.named(ops["op"], RUNNING)].tolist():
        op = query.tensors.op(event)
        for tensor in (op.inputs[1:3] if "training=True" in op.args else ())[:MOST_STEPS]:
            if tensor and (name := query.names.of(tensor)):
                statistics.setdefault(name, Read(tensor, [])).events.append(event)
    return statistics


def dropped(query: Query) -> list[tuple[int, np.ndarray]]:
    """The first dropouts whose elements are known: the event of each, and a mask of the elements that it dropped."""
    ops = query.trace.table(Kind.OP)
    dropouts = []
    for event in ops.events[query.trace.named(ops["op"], DROPOUTS)][:MOST_ROOTS].tolist():
        op = query.tensors.op(event)
        pair = [query.memory.value(t, event) for t in (*op.inputs[:1], *op.outputs[:1]) if t]
        arrays = [value.array for value in pair if value is not None and value.array is not None]
        if len(arrays) == 2 and "training=True" in op.args and np.all(arrays[0]):
            dropouts.append((event, arrays[1] == 0))
    return dropouts


def optimizer_steps(query: Query) -> list[Stepped]:
    """The first steps of optimizers. Use `query.of(optimizer_steps)`."""
    table = query.trace.table(Kind.STEPPED)
    return [table.object(event) for event in table.events[:MOST_STEPS].tolist()]


def parameters_by_name(query: Query) -> dict[str, int]:
    """The parameters of optimizers by name; a parameter without a name by its place."""
    held = query.trace.table(Kind.HOLDS).lists("parameters").values.tolist()
    stepped = query.trace.table(Kind.STEPPED).lists("parameters").values.tolist()
    tensors = dict.fromkeys([*held, *stepped])
    return {query.names.of(tensor) or f"parameter {place}": tensor for place, tensor in enumerate(tensors, 1)}


def settings_by_parameter(query: Query, step: Stepped) -> dict[str, Mapping[str, Any]]:
    """The settings with which an optimizer steps each parameter that has a gradient, by its name."""
    parameters = iter(step.parameters)
    return {
        query.names.of(tensor) or "": settings_of(group)
        for group in step.groups
        for tensor in islice(parameters, group.size)
    }


def holds(query: Query, step: Stepped, tensor: int) -> bool:
    """Whether the optimizer of a step holds a parameter, with or without a gradient."""
    return step.optimizer in query.of(Training).holders.get(tensor, ()) or tensor in step.parameters
