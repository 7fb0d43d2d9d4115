"""A replay for a command: the elements that a trace has not, of the passes that they are asked of."""

from __future__ import annotations

from gradviz.query.query import Query
from gradviz.replay.plan import ReplayError
from gradviz.replay.replayed_elements import can_fill, fill_in


def filled_in(query: Query, number: int) -> bool:
    """Give the states of pass `number` the elements that a replay computes. False where that cannot be done."""
    if not can_fill(query.trace):
        return False
    from gradviz.sources.torch_replay import TorchRunner

    try:
        fill_in(query, TorchRunner(), number)
    except ReplayError:
        return False
    return True


def filled_in_at(query: Query, event: int) -> bool:
    """The same of the pass that an event belongs to: with its forward it lies between the end of the last pass and its
    own."""
    found = query.trace.pass_ending_from(event)
    return found is not None and filled_in(query, found.number)
