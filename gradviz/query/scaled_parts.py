"""The scalings of the parts of gradients that lie on several ranks, as by a clip that is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.replicas import parameters_by_name
from gradviz.tracefile import Snapshot

_TO_PART = "_ToTorchTensor"  # the name of `DTensor.to_local()` in a trace


class ScaledPart(NamedTuple):
    """The part of a gradient that a rank scales: the parameter, the event, the factor, the norm of the part before, the
    number of elements of the part and that of the whole."""

    parameter: int
    event: int
    factor: float
    norm: float
    elements: tuple[int, int]


def scaled_parts(query: Query) -> list[ScaledPart]:
    """The first scaling of the part of each parameter's gradient, in order, before the first step of an optimizer. Use
    `query.of(scaled_parts)`."""
    steps = query.trace.table(Kind.STEPPED).events
    until = int(steps[0]) if len(steps) else query.trace.count
    first_of: dict[int, ScaledPart] = {}
    for parameter, part, since, elements in [*_gradients(query, until), *_parts(query, until)]:
        for event in query.tensors.writes(part):
            if (
                since < event < until
                and parameter not in first_of
                and (scaled := _scaling(query, part, event))
            ):
                first_of[parameter] = ScaledPart(parameter, event, *scaled, elements)
    return sorted(first_of.values(), key=lambda one: one.event)


def _gradients(query: Query, until: int) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """The gradients that lie on several ranks in parts: the parameter, the gradient, the event since which it is the
    `.grad`, and the numbers of elements here and in the whole."""
    for parameter in parameters_by_name(query).values():
        for event, gradient in zip(
            *(column.tolist() for column in query.tensors.grads.of(parameter)), strict=True
        ):
            value = query.trace.snapshot(gradient, event) if gradient and event < until else None
            if value is not None and value.part is not None:
                yield parameter, gradient, event, value.part


def _parts(query: Query, until: int) -> Iterator[tuple[int, int, int, tuple[int, int]]]:
    """The tensors that `to_local()` makes of gradients that lie on several ranks in parts: the parameter, the tensor,
    the event, and the numbers of elements here and in the whole."""
    ops = query.trace.table(Kind.OP)
    for event in ops.events[query.trace.named(ops["op"], (_TO_PART,)) & (ops.events < until)].tolist():
        op = query.tensors.op(event)
        gradient = op.inputs[0] if op.inputs else 0
        value = query.trace.snapshot(gradient, event) if gradient else None
        parameter = query.at(event).owner(gradient) if gradient else 0
        if parameter and op.outputs and value is not None and value.part is not None:
            yield parameter, op.outputs[0], event, value.part


def _scaling(query: Query, part: int, event: int) -> tuple[float, float] | None:
    """The factor by which an event scales a tensor, and the norm before; None if it changes nothing, or if the elements
    have no common factor."""
    before, after = (query.trace.snapshot(part, at) for at in (event - 1, event))
    factor = one_factor(before, after)
    return None if factor is None else (factor, norm_of(before))


def one_factor(before: Snapshot | None, after: Snapshot | None) -> float | None:
    """The factor by which all elements of a tensor were multiplied; None if nothing changed, if there is no such
    factor, or if it is not known."""
    norms = norm_of(before), norm_of(after)
    if before is None or after is None or not norms[0] or norms[0] == norms[1]:
        return None
    if before.stats is None or after.stats is None:
        return None
    factor = norms[1] / norms[0]
    if before.array is not None and after.array is not None:
        is_one_factor = bool(np.allclose(before.array * factor, after.array, rtol=1e-3))
    else:
        is_one_factor = bool(np.isclose(before.stats.mean * factor, after.stats.mean, rtol=1e-3))
    return factor if is_one_factor else None


def norm_of(value: Snapshot | None) -> float:
    """The norm of a tensor by its statistics; 0 if it is not known."""
    if value is None or value.stats is None or not np.isfinite(value.stats.rms):
        return 0.0
    elements = value.part[0] if value.part is not None else np.prod(value.shape)
    return float(value.stats.rms * np.sqrt(elements))
