"""The doors of a trace: who asks about a tensor, node or event says so first, because a part of a trace (part.py) reads
only then what is asked about. A whole trace has read everything, and its doors stand open."""

from __future__ import annotations

from collections.abc import Sequence
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

    def reach(self, *events: int) -> None:
        """These events, with the ops and nodes around them and the scopes that they are in."""

    def reach_all(self) -> None:
        """All events."""

    def reach_pass(self, run: PassInfo) -> None:
        """The events of a pass, and those that made its nodes."""

    def reach_between(self, first: int, end: int) -> None:
        """The events from one to before another."""

    def reach_node(self, node: int) -> None:
        """The event that made a node."""

    def reach_leading_to(self, node: int) -> None:
        """For a node that no event made (an AccumulateGrad): the first event that made one with an edge to it, most
        likely."""

    def reach_passes(self, numbers: Sequence[int]) -> None:
        """The events of several passes."""

    def reach_memory(self, tensor: int, at: int) -> None:
        """What a tensor was at an event, and likewise the tensors whose memory it shares."""

    def reach_birth(self, tensor: int) -> None:
        """The event that first told of a tensor."""

    def reach_state(self, tensor: int, at: int) -> None:
        """What a tensor was at an event: the last that told its flags, and the last that told its value."""

    def reach_states(self, tensors: Sequence[int], at: int) -> None:
        """The same for many tensors at once."""

    def reach_leaves(self, at: int) -> None:
        """What all leaves that matter at an event were, with their `.grad`: those that require grad, the newest that do
        not of each site, and other tensors with a `.grad`."""

    def reach_value(self, tensor: int, at: int) -> None:
        """The last event up to `at` that gave a tensor a value."""

    def reach_next_value(self, tensor: int, after: int, at: int) -> None:
        """The first event after `after`, and after its birth, that gave a tensor a value, if it is not after `at`."""

    def reach_changes(self, tensor: int, at: int) -> None:
        """All events up to `at` that told a tensor's value or flags."""

    def reach_given(self, tensor: int, at: int) -> None:
        """The last event up to `at` that gave a tensor its `.grad`."""

    def reach_pushed(self, tensor: int, at: int) -> None:
        """The last event up to `at` that gave a tensor a tangent."""

    def reach_all_given(self, tensor: int, at: int) -> None:
        """All events up to `at` that gave a tensor its `.grad`."""
