"""The doors of a trace. A look-up of a tensor, node or event first names it at a door, because a part of a trace
(part.py) reads only then what is needed. A whole trace has read everything: its doors do nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol, Self

from gradviz.tracefile.pass_info import PassInfo


class Watcher(Protocol):
    """An object with results computed from the part of a trace that had been read."""

    def forget(self) -> None:
        """Forget the results: more has been read."""


class Doors:
    """The doors of a whole trace. Times (`at`) are events, and include them."""

    is_whole = True  # whether all events have been read

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher.forget()` whenever more has been read."""

    def apart(self: Self) -> Self:
        """The same trace, for look-ups far away from the other look-ups."""
        return self

    def reach(self, first: int, end: int | None = None) -> None:
        """Read an event, or the events from `first` to before `end`, with the ops and nodes around them and the scopes
        that they are in."""

    def reach_all(self) -> None:
        """Read all events."""

    def reach_pass(self, backward_pass: PassInfo) -> None:
        """Read the events of a pass, and the events that made its nodes."""

    def reach_node(self, node: int) -> None:
        """Read the event that made a node. For a node that no event made (an AccumulateGrad), most likely the first
        event that made a node with an edge to it."""

    def reach_tensors(self, tensors: Iterable[int], at: int = -1) -> None:
        """Read the state of tensors at an event: the first event of each, its last value, flags, `.grad` and tangent up
        to then, and the same for the tensors whose memory it shares."""

    def reach_history(self, tensor: int, at: int, since: int = 0) -> None:
        """Read all events from `since` up to `at` that have a tensor's value or flags, or set its `.grad`."""

    def leaves_to_reach(self, at: int) -> Collection[int]:
        """The tensors that have to be read before a question about the leaves at an event: the leaves that require
        grad, the newest other leaf of each site, and other tensors with a `.grad`."""
        return ()
