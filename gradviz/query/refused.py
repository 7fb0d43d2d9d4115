"""Calls of backward() that were refused because their root does not require grad: they begin no pass."""

from __future__ import annotations

import re

from gradviz.events.kinds import Kind, OpRan, TensorMade
from gradviz.query.failures import Failure, failures
from gradviz.query.query import Query

_MESSAGE = "does not require grad and does not have a grad_fn"
_CALL = re.compile(r"\s*([\w.]+)\.backward\(|.*\bgrad\(\s*(?:outputs\s*=\s*)?([\w.]+)\s*,")


def refused(query: Query) -> list[tuple[Failure, int]]:
    """The refused calls, in order, each with the root; 0 if it is unknown."""
    return [(failure, _root(query, failure)) for failure in failures(query) if _MESSAGE in failure.message]


def _root(query: Query, failure: Failure) -> int:
    """The tensor that backward() was called on: by its name in the source, else the last one made."""
    call = _CALL.match(_line(query, failure))
    named = query.names.tensor_called(call[1] or call[2], failure.event) if call is not None else 0
    if named:
        return named
    made = query.trace.indices(Kind.OP, Kind.TENSOR)
    made = made[made <= failure.event]
    event = query.trace.event(int(made[-1])) if len(made) else None
    if isinstance(event, OpRan):
        return event.outputs[0] if event.outputs else 0
    return event.tensor if isinstance(event, TensorMade) else 0


def _line(query: Query, failure: Failure) -> str:
    """The source line of a failure; empty if it was not kept."""
    place = failure.site.place if failure.site is not None else None
    lines = query.trace.source(place.file) if place is not None else []
    return lines[place.line - 1] if place is not None and 0 < place.line <= len(lines) else ""
