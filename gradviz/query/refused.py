"""Calls of backward() that were refused, because their root does not require grad or is no scalar: they begin no
pass."""

from __future__ import annotations

import re

from gradviz.events.kinds import ErrorRaised, Kind, OpRan, TensorMade
from gradviz.query.failures import Failure, failures
from gradviz.query.query import Query
from gradviz.tracefile import Site

_MESSAGE = "does not require grad and does not have a grad_fn"
_REFUSALS = (_MESSAGE, "grad can be implicitly created only", "Mismatch in shape: grad_output")
_CALL = re.compile(r"\s*([\w.]+)\.backward\(|.*\bgrad\(\s*(?:outputs\s*=\s*)?([\w.]+)\s*,")


def is_refusal(error: ErrorRaised) -> bool:
    """Whether an error refused a pass before it began."""
    return not error.in_pass and any(text in error.message for text in _REFUSALS)


def refused_root(query: Query, error: ErrorRaised) -> int:
    """The tensor that a refused backward() was called on: by its node, or by its name in the source; 0 if neither is
    known."""
    tensors = query.nodes.tensors(error.node) if error.node else []
    return tensors[0] if tensors else _named(query, error.index, query.places.site(error.site))


def refused(query: Query) -> list[tuple[Failure, int]]:
    """The calls that were refused because the root does not require grad, in order, each with the root; 0 if it is
    unknown."""
    return [(failure, _root(query, failure)) for failure in failures(query) if _MESSAGE in failure.message]


def _root(query: Query, failure: Failure) -> int:
    """The tensor that backward() was called on: by its name in the source, else the last one made."""
    named = _named(query, failure.event, failure.site)
    if named:
        return named
    made = query.trace.indices(Kind.OP, Kind.TENSOR)
    made = made[made <= failure.event]
    event = query.trace.event(int(made[-1])) if len(made) else None
    if isinstance(event, OpRan):
        return event.outputs[0] if event.outputs else 0
    return event.tensor if isinstance(event, TensorMade) else 0


def _named(query: Query, event: int, site: Site | None) -> int:
    """The tensor that a line calls backward() on, or grad() with, by its name there; 0 if there is none."""
    lines = query.trace.source(site.place.file) if site is not None else []
    line = lines[site.place.line - 1] if site is not None and 0 < site.place.line <= len(lines) else ""
    call = _CALL.match(line)
    return query.names.tensor_called(call[1] or call[2], event) if call is not None else 0
