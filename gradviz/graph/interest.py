"""Chooses the pass that a picture shows when nobody has chosen one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradviz.graph.model import Graph
from gradviz.query import Query
from gradviz.tracefile import PassInfo

_MOST_STATES = 3_000_000  # in a longer run no NaN is looked for
_MOST_SHAPES = 4  # different passes in which a cut is looked for
_MOST_NODES = 5_000  # of a pass in which a cut is looked for
_NAN = 4  # the column of the count of NaN in the statistics


def pass_of_interest(query: Query, build: Callable[[PassInfo], Graph]) -> tuple[PassInfo, str]:
    """The pass of the first NaN, else of the first error, else the first with a cut, else the first pass; and which of
    these it is, empty if there is only one pass. `build` makes the graph of a pass.

    Raises ValueError if the trace has no passes."""
    passes = query.trace.passes
    if len(passes) < 2:
        return passes[0], ""
    searches = {"with the first NaN": _with_nan, "with the error": _with_error}
    for what, search in searches.items():
        found = search(query)
        if found is not None:
            return found, what
    cut = _with_cut(query, build)
    return (cut, "with the first cut") if cut is not None else (passes[0], "the first")


def _with_nan(query: Query) -> PassInfo | None:
    states = query.trace.states
    if len(states) > _MOST_STATES:
        return None
    events = states.events[states.stats[:, _NAN] > 0]
    return _around(query, int(events.min())) if len(events) else None


def _with_error(query: Query) -> PassInfo | None:
    errors = [error.event for error in query.trace.errors if error.node]
    return _around(query, errors[0]) if errors else None


def _around(query: Query, event: int) -> PassInfo | None:
    """The first pass that ended at an event or later: the event is in it, or in the forward before it."""
    lasts = np.array([query.passes.last(run) for run in query.trace.passes])
    later = np.flatnonzero(lasts >= event)
    return query.trace.passes[int(later[0])] if len(later) else None


def _with_cut(query: Query, build: Callable[[PassInfo], Graph]) -> PassInfo | None:
    """The first pass in which a gradient stops where one might be expected."""
    shapes: dict[str, PassInfo] = {}
    for run in query.trace.passes:
        shapes.setdefault(run.digest or "", run)
    for run in list(shapes.values())[:_MOST_SHAPES]:
        if (run.nodes or 0) <= _MOST_NODES and any(edge.cut for edge in build(run).edges):
            return run
    return None
