"""Where a NaN or an infinity was born: whether it came in with what an event took, or is new in what it gave."""

from __future__ import annotations

from dataclasses import dataclass

from gradviz.events.kinds import OpRan, Produced
from gradviz.query.moment import Moment
from gradviz.query.query import Query

NAN, INF = "nan", "inf"


@dataclass(frozen=True, slots=True)
class Birth:
    """A NaN or an infinity (`what`) in `tensor`, which an event gave. `carriers` are what it took that held one as
    well, so that it came in; where there are none it was born here, of what it `took`."""

    what: str
    tensor: int
    carriers: tuple[int, ...]
    took: tuple[int, ...]


def birth(query: Query, moment: Moment) -> Birth | None:
    """What can be said of the first NaN, or else infinity, that the event of a moment gave; None where it gave none.

    A NaN comes in with a NaN only: one made of infinities is born here. An infinity comes in with either."""
    took, gave = taken_and_given(query, moment)
    before = Moment(query, moment.k - 1) if moment.k and query.tensors.is_op[moment.k] else moment
    for what, carried_by in ((NAN, (NAN,)), (INF, (INF, NAN))):
        tensor = next((tensor for tensor in gave if _holds(moment, tensor, what)), 0)
        if tensor:
            carriers = [t for t in dict.fromkeys(took) if any(_holds(before, t, bad) for bad in carried_by)]
            return Birth(what, tensor, tuple(carriers), tuple(dict.fromkeys(took)))
    return None


def taken_and_given(query: Query, moment: Moment) -> tuple[list[int], list[int]]:
    """The tensors that the event of a moment computed with, and those that it made: of an op, and of a node."""
    event = query.trace.event(moment.k)
    if isinstance(event, OpRan):
        return [tensor for tensor in event.inputs if tensor], list(event.outputs)
    if isinstance(event, Produced):
        received = moment.received(event.node)
        saved = [saved.tensor for saved in query.nodes.saved(event.node) if saved.tensor]
        came = [gradient for gradient in received.gradients if gradient] if received is not None else []
        return came + saved, [flow.gradient for flow in event.flows if flow.gradient]
    return [], []


def _holds(moment: Moment, tensor: int, what: str) -> bool:
    snapshot = moment.value(tensor)
    return snapshot is not None and snapshot.stats is not None and bool(getattr(snapshot.stats, what))
