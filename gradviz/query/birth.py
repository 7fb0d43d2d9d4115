"""Finds the origin of a NaN or an infinity: an input of the event, or the event itself."""

from typing import NamedTuple

from gradviz.events.kinds import OpRan, Produced
from gradviz.query.moment import Moment
from gradviz.query.query import Query

NAN, INF = "nan", "inf"


class Birth(NamedTuple):
    """A NaN or an infinity (`what`) in `tensor`, an output of the event. `took` are the inputs of the event;
    `carriers` are those inputs that explain it, and `infinite` those with an infinity. Without carriers it first
    appears at this event."""

    what: str
    tensor: int
    carriers: tuple[int, ...]
    took: tuple[int, ...]
    infinite: tuple[int, ...]


def birth(query: Query, moment: Moment) -> Birth | None:
    """The origin of a NaN, or else of an infinity, in the outputs of the event of a moment; None if they have neither.

    A NaN is explained only by an input with NaN: a NaN computed from infinities is new. An infinity is explained by
    either."""
    took, gave = taken_and_given(query, moment)
    before = Moment(query, moment.k - 1) if moment.k and query.tensors.is_op(moment.k) else moment
    for what, carried_by in ((NAN, (NAN,)), (INF, (INF, NAN))):
        tensor = next((tensor for tensor in gave if _holds(moment, tensor, what)), 0)
        if tensor:
            inputs = tuple(dict.fromkeys(took))
            carriers = tuple(t for t in inputs if any(_holds(before, t, bad) for bad in carried_by))
            return Birth(what, tensor, carriers, inputs, tuple(t for t in inputs if _holds(before, t, INF)))
    return None


def taken_and_given(query: Query, moment: Moment) -> tuple[list[int], list[int]]:
    """The inputs and the outputs of the event of a moment, if it is an op or a node that produced gradients; else
    empty."""
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
