"""A replay for a command: the elements that a trace has not, of the passes that they are asked of."""

from __future__ import annotations

from gradviz.events.values import INPUTS
from gradviz.query.query import Query
from gradviz.tracefile import Trace


def filled_in(query: Query, number: int | None) -> bool:
    """Give the states of a pass (None: the last) the elements that a replay computes. False where that cannot be
    done."""
    if not _can_fill(query.trace):
        return False
    from gradviz.replay.plan import ReplayError  # here, since most traces need no replay
    from gradviz.replay.replayed_elements import fill_in
    from gradviz.sources.torch_replay import runner_of

    try:
        fill_in(query, runner_of(query), number)
    except ReplayError:
        return False
    return True


def filled_in_at(query: Query, event: int) -> bool:
    """The same of the pass that an event belongs to: with its forward it lies between the end of the last pass and its
    own."""
    found = query.trace.pass_ending_from(event)
    return found is not None and filled_in(query, found.number)


def _can_fill(trace: Trace) -> bool:
    """Whether a replay may know elements that a trace has not."""
    return trace.meta.get("values") == INPUTS and "redacted" not in trace.meta
