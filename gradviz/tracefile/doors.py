"""The doors of a trace: who asks about a tensor, node or event says so first, because a part of a trace (part.py) reads
only then what is asked about. A whole trace has read everything, and its doors stand open."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, Self

from gradviz.tracefile.pass_info import PassInfo


class Watcher(Protocol):
    """Who has computed something from what had been read."""

    def forget(self) -> None:
        """More has been read."""


class Doors:
    """The doors of a whole trace. Times (`at`) are events, and include them."""

    is_whole = True  # whether all events have been read

    def watch(self, watcher: Watcher) -> None:
        """Tell someone when more has been read."""

    def apart(self: Self) -> Self:
        """The same trace for looks far away from what else is asked about."""
        return self

    def reach(self, first: int, end: int | None = None) -> None:
        """An event, or the events from one to before another, with the ops and nodes around them and the scopes that
        they are in."""

    def reach_all(self) -> None:
        """All events."""

    def reach_pass(self, backward_pass: PassInfo) -> None:
        """The events of a pass, and those that made its nodes."""

    def reach_node(self, node: int) -> None:
        """The event that made a node. For a node that no event made (an AccumulateGrad): the first event that made one
        with an edge to it, most likely."""

    def reach_tensors(self, tensors: Iterable[int], at: int = -1) -> None:
        """What tensors were at an event: where each was first told of, its last value, flags, `.grad` and tangent up to
        then, and likewise for the tensors whose memory it shares."""

    def reach_history(self, tensor: int, at: int, since: int = 0) -> None:
        """All events from `since` up to `at` that told a tensor's value or flags, or gave it its `.grad`."""

    def leaves_to_reach(self, at: int) -> Collection[int]:
        """The tensors that have to be reached before one asks which leaves there are at an event: the leaves that
        require grad, the newest that do not of each site, and other tensors with a `.grad`."""
        return ()
