"""The traces of several processes that train one model, compared: gradients that should be the same on all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind, Stepped
from gradviz.query.query import Query
from gradviz.sets import contained, distinct
from gradviz.tracefile import Snapshot, Trace

ALL_REDUCE = "all_reduce"
_MOST_STEPS = 1000


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
    if not all(map(len, averaged)):
        return []
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
