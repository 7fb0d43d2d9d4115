"""The traces of several processes that train one model, compared: gradients that should be the same on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, Stepped
from gradviz.query.query import Query
from gradviz.sets import contained, distinct
from gradviz.tracefile import Snapshot, Trace

ALL_REDUCE = "all_reduce"
# Those in which every rank of a group takes part.
COLLECTIVES = frozenset({
    ALL_REDUCE, "broadcast", "reduce", "scatter", "all_gather", "gather", "all_gather_into_tensor", "reduce_scatter",
    "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "all_gather_single", "reduce_scatter_single",
})  # fmt: skip
_MOST_STEPS = 1000


class Collective(NamedTuple):
    """A collective that a rank took part in: its name, the shape of its first tensor, and the event."""

    name: str
    shape: tuple[int, ...]
    event: int


class Parting(NamedTuple):
    """Where the collectives of the ranks part: the number of the first that is not the same on all, from 1, and what
    each rank called there, None if it called no more."""

    number: int
    calls: tuple[Collective | None, ...]


@dataclass(frozen=True, slots=True)
class Start:
    """A parameter that did not begin with the same values on all ranks. `tensors` are by rank."""

    name: str
    tensors: tuple[int, ...]
    values: tuple[Snapshot | None, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A parameter whose gradient is not the same on all ranks at an optimizer's step. `step` counts from 1; `gradients`
    are those of the ranks, None where there is none; `averaged` says of each rank whether it had been all-reduced."""

    name: str
    step: int
    gradients: tuple[Snapshot | None, ...]
    averaged: tuple[bool, ...]


def label_of(trace: Trace) -> str:
    """What one of several traces is called: `rank 0`, or the name of its file."""
    rank = trace.meta.get("rank", "")
    return f"rank {rank}" if rank else trace.path.stem


def ranked_traces(traces: Sequence[Trace]) -> dict[int, Trace]:
    """Traces by their ranks; by their places where a rank is missing or there twice."""
    ranks = [trace.meta.get("rank", "") for trace in traces]
    if not all(map(str.isdigit, ranks)) or len(set(ranks)) < len(ranks):
        return dict(enumerate(traces))
    return dict(zip(map(int, ranks), traces, strict=True))


def differences(queries: Sequence[Query]) -> list[Difference]:
    """For each parameter the first step at which its gradient differs between the ranks; none where no gradient is ever
    all-reduced: then each rank has its own part."""
    averaged = [all_reduced(query) for query in queries]
    return _differences(queries, averaged) if all(map(len, averaged)) else []


_NONE = np.zeros((0, 2), np.int64)


def _differences(queries: Sequence[Query], averaged: Sequence[np.ndarray]) -> list[Difference]:
    steps = [_steps(query) for query in queries]
    found: dict[str, Difference] = {}
    for number, together in enumerate(zip(*steps, strict=False), 1):
        parameters = [_by_name(query, step) for query, step in zip(queries, together, strict=True)]
        for name in parameters[0]:
            if name in found or not all(name in known for known in parameters):
                continue
            grads = [
                query.tensors.grads.last(known[name], step.index) or 0
                for query, known, step in zip(queries, parameters, together, strict=True)
            ]
            snapshots = tuple(
                query.trace.snapshot(grad, step.index) if grad else None
                for query, grad, step in zip(queries, grads, together, strict=True)
            )
            if not all(_same(snapshots[0], other) for other in snapshots[1:]):
                reduced = tuple(
                    _was_averaged(events, grad, step.index)
                    for events, grad, step in zip(averaged, grads, together, strict=True)
                )
                found[name] = Difference(name, number, snapshots, reduced)
    return list(found.values())


def starts_apart(queries: Sequence[Query]) -> list[Start]:
    """The parameters of the first step that had other values on some ranks before the first pass."""
    steps = [_steps(query)[:1] for query in queries]
    if not all(steps) or not all(query.trace.passes for query in queries):
        return []
    own = [_by_name(query, step) for query, (step,) in zip(queries, steps, strict=True)]
    found = []
    for name in own[0]:
        if all(name in known for known in own):
            tensors = tuple(known[name] for known in own)
            values = tuple(
                query.memory.value(tensor, query.trace.passes[0].first)
                for query, tensor in zip(queries, tensors, strict=True)
            )
            if not all(_same(values[0], other) for other in values[1:]):
                found.append(Start(name, tensors, values))
    return found


def unreduced(queries: Sequence[Query]) -> list[Difference]:
    """For each parameter the first step at which its gradient differs between the ranks, where no rank all-reduces any
    gradient."""
    return (
        []
        if any(len(all_reduced(query)) for query in queries)
        else _differences(queries, [_NONE] * len(queries))
    )


def partings(queries: Sequence[Query]) -> Parting | None:
    """Where the collectives of the ranks part; None if they do not. The n-th of each rank is the same."""
    called = [collectives(query) for query in queries]
    for number, calls in enumerate(zip_longest(*called), 1):
        if len({None if call is None else (call.name, call.shape) for call in calls}) > 1:
            return Parting(number, calls)
    return None


def collectives(query: Query) -> list[Collective]:
    """The collectives of all ranks that a rank called itself, in order; not those of DistributedDataParallel, nor of a
    group of some ranks."""
    ops = query.trace.table(Kind.OP)
    events = ops.events[query.trace.named(ops["op"], COLLECTIVES)].tolist()
    return [
        Collective(op.op, _shape(query, op.inputs[0] if op.inputs else 0), op.index)
        for op in map(query.tensors.op, events)
        if "group" not in op.args.split(", ")
    ]


def _shape(query: Query, tensor: int) -> tuple[int, ...]:
    form = query.trace.shape(tensor) if tensor else None
    return form[0] if form is not None else ()


def _steps(query: Query) -> list[Stepped]:
    table = query.trace.table(Kind.STEPPED)
    return [table.object(event) for event in table.events[:_MOST_STEPS].tolist()]


def _by_name(query: Query, step: Stepped) -> dict[str, int]:
    """The parameters of a step by name; those without one by their place."""
    return {
        query.names.of(tensor) or f"parameter {place}": tensor
        for place, tensor in enumerate(step.parameters, 1)
    }


def all_reduced(query: Query) -> np.ndarray:
    """Pairs of gradient and event: which gradients were all-reduced, and when."""
    trace = query.trace
    grads = distinct(query.tensors.grads.values)
    pairs = [np.zeros((0, 2), np.int64)]
    written = trace.table(Kind.MUTATED)
    own = trace.named(written["how"], (ALL_REDUCE,))
    pairs.append(np.stack([written["tensor"][own], written.events[own]], axis=1))
    ops = trace.table(Kind.OP)
    outputs = ops.lists("outputs")
    told = trace.named(ops["op"], (ALL_REDUCE,))[outputs.owners]
    pairs.append(np.stack([outputs.values[told], ops.events[outputs.owners[told]]], axis=1))
    found = np.concatenate(pairs)
    return found[contained(found[:, 0], grads)]


def _was_averaged(pairs: np.ndarray, grad: int, until: int) -> bool:
    return bool(np.any((pairs[:, 0] == grad) & (pairs[:, 1] <= until)))


def _same(one: Snapshot | None, other: Snapshot | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.array is not None and other.array is not None:
        return np.array_equal(one.array, other.array, equal_nan=one.array.dtype.kind in "fc")
    return repr(one.stats) == repr(other.stats)
