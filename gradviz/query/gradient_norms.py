"""The way of a gradient by norms, for tensors of which a trace has statistics but no elements.

It leads from the tensor back to the root. Where gradients meet, it follows the one with the largest norm. The
contributions of the other gradients are not worked out, since norms do not add up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradviz.events.kinds import Produced
from gradviz.query.deliveries import Delivery
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot


@dataclass(frozen=True, slots=True)
class WayStep:
    """A gradient on its way. `source` is the node that produced it (0: it came from outside) at `event`. `norm` is the
    norm of its finite elements, NaN if none is finite; `odd` names the other elements: `NaN`, `inf` or nothing.
    `others` are the norms of the gradients that it met."""

    source: int
    event: int
    gradient: int
    norm: float
    odd: str
    others: tuple[float, ...]


def strongest_way(query: Query, number: int, node: int, nr: int) -> list[WayStep]:
    """The steps of pass `number` that lead to output `nr` of a node, from the root down; empty if the norm of a
    gradient on the way was not recorded."""
    flow = query.deliveries(number)
    steps: list[WayStep] = []
    end = query.trace.count
    while True:
        arrivals = flow.arrivals_at(node, nr, end) if nr >= 0 else flow.arrivals(node, end)
        known = [step for one in arrivals if (step := _step(query, one)) is not None]
        if not known or len(known) < len(arrivals):
            return []
        largest = max(known, key=_size)
        others = tuple(one.norm for one in known if one is not largest)
        steps.append(
            WayStep(largest.source, largest.event, largest.gradient, largest.norm, largest.odd, others)
        )
        if not largest.source or largest.event >= end:  # the latter only in a damaged trace
            return steps[::-1]
        node, nr, end = largest.source, -1, largest.event


def _step(query: Query, delivery: Delivery) -> WayStep | None:
    value = query.memory.value(delivery.gradient, delivery.event)
    if value is None or value.stats is None:
        return None
    event = query.trace.event(delivery.event)
    source = event.node if isinstance(event, Produced) else 0
    norm = norm_of(value)
    return WayStep(source, delivery.event, delivery.gradient, norm, odd_of(value), ())


def norm_of(value: Snapshot) -> float:
    """The Euclidean norm of the finite elements of a value; NaN if none is finite."""
    assert value.stats is not None
    finite = math.prod(value.shape) - value.stats.nan - value.stats.inf
    return value.stats.rms * math.sqrt(finite)


def odd_of(value: Snapshot) -> str:
    """`NaN` if a value has one, else `inf` if it has one, else nothing."""
    assert value.stats is not None
    return "NaN" if value.stats.nan else "inf" if value.stats.inf else ""


def _size(step: WayStep) -> float:
    return math.inf if step.odd or math.isnan(step.norm) else step.norm
