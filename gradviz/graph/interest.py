"""Chooses the pass that a picture shows when nobody has chosen one."""

from __future__ import annotations

from collections.abc import Callable

from gradviz.events.kinds import ErrorRaised
from gradviz.graph.model import Graph
from gradviz.query import Query
from gradviz.tracefile import PassInfo, Trace

_MOST_SHAPES = 4  # different passes in which a cut is looked for
_MOST_NODES = 5_000  # of a pass in which a cut is looked for


def pass_of_interest(query: Query, build: Callable[[PassInfo], Graph]) -> tuple[PassInfo, str]:
    """The pass of the first NaN, else of the first error, else the first with a cut, else the first with nodes; and
    which of these it is, empty if there is only one pass. `build` makes the graph of a pass.

    Raises ValueError if the trace has no passes."""
    trace = query.trace
    numbers = trace.pass_numbers
    if len(numbers) < 2:
        return _first(trace), ""
    faulty = pass_with_fault(trace)
    if faulty is not None:
        return faulty
    cut = _with_cut(trace, build)
    if cut is not None:
        return cut, "with the first cut"
    first = _first(trace)
    return first, "the first" if first.number == numbers[0] else "the first recorded in detail"


def pass_with_fault(trace: Trace) -> tuple[PassInfo, str] | None:
    """Of several passes that of the first NaN, else of the first error, and which of these it is."""
    if len(trace.pass_numbers) < 2:
        return None
    for what, event in (("with the first NaN", trace.first_nan), ("with the error", _first_error(trace))):
        found = None if event is None else trace.pass_ending_from(event)
        if found is not None:
            return found, what
    return None


def _first(trace: Trace) -> PassInfo:
    """The first pass with nodes, if there is one."""
    with_nodes = trace.passes_by_shape(1)
    found = with_nodes[0] if with_nodes else trace.find_pass(trace.pass_numbers[0])
    assert found is not None
    return found


def _first_error(trace: Trace) -> int | None:
    """The first error that left a pass."""
    events = (trace.event(error.event) for error in trace.errors)
    return next((event.index for event in events if isinstance(event, ErrorRaised) and event.in_pass), None)


def _with_cut(trace: Trace, build: Callable[[PassInfo], Graph]) -> PassInfo | None:
    """The first pass in which a gradient stops where one might be expected."""
    for run in trace.passes_by_shape(_MOST_SHAPES):
        if (run.nodes or 0) <= _MOST_NODES and any(edge.cut for edge in build(run).edges):
            return run
    return None
