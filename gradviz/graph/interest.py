"""The pass that a picture shows if nobody has chosen one."""

from __future__ import annotations

from collections.abc import Callable

from gradviz.events.kinds import ErrorRaised
from gradviz.graph.model import Graph
from gradviz.query import Query
from gradviz.query.bad_numbers import bad_numbers
from gradviz.tracefile import PassInfo, Trace

_MOST_SHAPES = 4  # the most different passes in which a cut is looked for
_MOST_NODES = 5_000  # the most nodes of a pass in which a cut is looked for


def pass_of_interest(query: Query, build: Callable[[PassInfo], Graph]) -> tuple[PassInfo, str]:
    """The pass of the first NaN, else of the first error, else the first pass with a cut (other than by no_grad), else
    the first with nodes that sets `.grad`, else the first. Also gives the reason for it; empty if there is only one
    pass. `build` makes the graph of a pass.

    Raises ValueError if the trace has no passes."""
    trace = query.trace
    numbers = trace.pass_numbers
    if len(numbers) < 2:
        return _first(query), ""
    faulty = pass_with_fault(trace)
    if faulty is not None:
        return faulty
    cut = _with_cut(query, build)
    if cut is not None:
        return cut, "with the first cut"
    first = _first(query)
    if first.number == numbers[0]:
        return first, "the first"
    earlier = query.trace.find_pass(numbers[0])
    is_told = earlier is not None and earlier.is_in_detail
    return first, "the first that sets .grad" if is_told else "the first recorded in detail"


def pass_with_fault(trace: Trace) -> tuple[PassInfo, str] | None:
    """The pass of the first NaN, else of the first error, and which of the two; None if the run has fewer than two
    passes, or neither of them."""
    if len(trace.pass_numbers) < 2:
        return None
    for what, event in (("with the first NaN", trace.first_nan), ("with the error", _first_error(trace))):
        faulty = None if event is None else trace.pass_ending_from(event)
        if faulty is not None:
            return faulty, what
    return None


def pass_with_infinity(query: Query) -> tuple[PassInfo, str] | None:
    """The pass of the first computed infinity, with this reason; None if the run has fewer than two passes or a NaN, or
    no computed infinity."""
    if len(query.trace.pass_numbers) < 2:
        return None
    bad = query.of(bad_numbers)
    faulty = (
        query.trace.pass_ending_from(int(bad.events[0])) if bad.inf and not (bad.nan or bad.written) else None
    )
    return None if faulty is None else (faulty, "with the first infinity")


def _first(query: Query) -> PassInfo:
    """The first pass with nodes that sets `.grad`, else the first with nodes, else the first."""
    trace = query.trace
    with_nodes = trace.passes_by_shape(_MOST_SHAPES)
    setting = (
        backward_pass for backward_pass in with_nodes if not query.passes.began(backward_pass.number).inputs
    )
    first = next(setting, with_nodes[0] if with_nodes else trace.find_pass(trace.pass_numbers[0]))
    assert first is not None
    return first


def _first_error(trace: Trace) -> int | None:
    """The first error that left a pass."""
    events = (trace.event(error.event) for error in trace.errors)
    return next((event.index for event in events if isinstance(event, ErrorRaised) and event.in_pass), None)


def _with_cut(query: Query, build: Callable[[PassInfo], Graph]) -> PassInfo | None:
    """The first pass in which a gradient stops where one might be expected; if some passes set `.grad`, the first of
    them. A penalty that `autograd.grad` differentiates is no training step. A cut by no_grad is mostly intended: a
    target network, a probe."""
    passes = query.trace.passes_by_shape(_MOST_SHAPES)
    setting = [
        backward_pass for backward_pass in passes if not query.passes.began(backward_pass.number).inputs
    ]
    for backward_pass in setting or passes:
        if (backward_pass.nodes or 0) <= _MOST_NODES and any(
            _is_odd(edge.cut) for edge in build(backward_pass).edges
        ):
            return backward_pass
    return None


def _is_odd(cut: str) -> bool:
    return cut not in ("", "no_grad")
