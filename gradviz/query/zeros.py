"""The reason why a gradient is 0: the event that set it to 0, or the node that gave 0 for a gradient that is not 0."""

from collections import deque
from typing import NamedTuple

from gradviz.events.kinds import Accumulated, Kind, Produced
from gradviz.events.values import OF_ZEROS
from gradviz.query.moment import Moment
from gradviz.query.query import Query
from gradviz.query.writes import grad_changes
from gradviz.tracefile import Snapshot

_MOST = 2_000  # the most nodes that are walked back


class Zero(NamedTuple):
    """The reason why a `.grad` is 0: the `event` that wrote it; else the `node` that gave 0 for a gradient that is not
    0; else a pass that began with 0 (`from_start`), or the node `cancelled`, to which gradients came that cancel."""

    event: int = -1
    node: int = 0
    from_start: bool = False
    cancelled: int = 0


def is_zero(snapshot: Snapshot | None) -> bool:
    """Whether all elements of a tensor are known to be 0."""
    stats = None if snapshot is None else snapshot.stats
    return stats is not None and not any(tuple(stats)[column] for column in OF_ZEROS)


def why_zero(query: Query, tensor: int, moment: Moment) -> Zero | None:
    """The reason why the `.grad` of a leaf is 0 at a moment; None if it is not 0, or if the reason is not known."""
    grad = moment.grad(tensor)
    if not grad or not is_zero(moment.value(grad)):
        return None
    events = grad_changes(query, tensor)
    events = events[events <= moment.k]
    if not len(events):
        return None
    last = int(events[-1])
    if query.trace.kinds[last] != Kind.ACCUMULATED:
        return Zero(event=last)
    accumulated = query.trace.event(last)
    assert isinstance(accumulated, Accumulated)
    if not is_zero(query.at(last).value(accumulated.gradient)):
        return None
    return behind_zero(query, accumulated)


def behind_zero(query: Query, accumulated: Accumulated) -> Zero | None:
    """The reason why a gradient of 0 came to a leaf. Walks back from the leaf over gradients that are 0, to the nearest
    node that received a gradient that is not 0."""
    backward_pass = query.passes.at(accumulated.index)
    if backward_pass is None:
        return None
    flow = query.deliveries(backward_pass.number)
    waiting, seen = deque([accumulated.node]), {accumulated.node}
    from_start = False
    while waiting and len(seen) < _MOST:
        to = waiting.popleft()
        for delivery in flow.arrivals(to, accumulated.index):
            event = query.trace.event(delivery.event)
            if not is_zero(query.at(delivery.event).value(delivery.gradient)):
                return Zero(cancelled=to)
            if not isinstance(event, Produced):
                from_start = True
            elif event.node not in seen:
                seen.add(event.node)
                received = query.at(event.index).received(event.node)
                came = [gradient for gradient in received.gradients if gradient] if received is not None else []
                if received is None or not all(is_zero(query.at(received.index).value(one)) for one in came):
                    return Zero(node=event.node)
                waiting.append(event.node)
    return Zero(from_start=True) if from_start else None
