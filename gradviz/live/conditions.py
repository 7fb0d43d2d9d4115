"""Conditions of breakpoints on a running script: the events that each concerns, and whether it stops at the
present one."""

from __future__ import annotations

from typing import Any, Protocol

from gradviz.events.kinds import Kind
from gradviz.live.present import Present
from gradviz.query.predicate import Predicate
from gradviz.query.predicate_columns import EVERYWHERE, where
from gradviz.step.breakpoints import Breakpoint
from gradviz.words.stop import Subject


class Condition(Protocol):
    """The condition of a breakpoint. `kinds` are the kinds of events that it concerns, `fields` the fields that it
    uses, and `ops` the only ops that it concerns (None: all ops)."""

    kinds: frozenset[Any]
    fields: frozenset[str]
    ops: frozenset[str] | None

    def holds(self, present: Present) -> bool:
        """Whether to stop at the present event."""


def condition_of(stop: Breakpoint) -> Condition:
    """Make the condition of a breakpoint."""
    if stop.watched is not None:
        return Changes(stop.watched)
    assert stop.predicate is not None
    return Arrives(stop.predicate) if stop.at_line else Holds(stop.predicate)


class Holds:
    """Stops where a predicate is true."""

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate
        self.kinds = predicate.possible(where)
        self.fields = predicate.fields
        self.ops = predicate.only("op")

    def holds(self, present: Present) -> bool:
        return self.predicate.holds(present.values_of)


class Arrives:
    """Stops where a line is reached, from another line or again. `breakpoints.arrivals` does the same for a trace."""

    kinds = EVERYWHERE
    ops: frozenset[str] | None = None

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate
        self.fields = predicate.fields
        self.here = False
        self.began: tuple[Any, ...] = ()
        self._known: dict[int, bool] = {0: False}  # by site: whether the predicate is true there

    def holds(self, present: Present) -> bool:
        place = present.place
        held = self._known.get(place)
        if held is None:
            held = self._known[place] = self.predicate.holds(present.values_of)
        if not place:
            return False
        if not held:
            self.here = False
            return False
        mark = (present.kind, present.text("op", Kind.OP), place)
        again = bool(self.here and mark == self.began[:3] and present.depth <= self.began[3])
        if self.here and not again:
            return False
        if not self.here:
            self.began = (*mark, present.depth)
        self.here = True
        return True


class Changes:
    """Stops where a tensor changes: its value, its `.grad`, or either."""

    kinds = frozenset((Kind.OP, Kind.MUTATED, Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED))
    fields = frozenset(("memory",))
    ops: frozenset[str] | None = None

    def __init__(self, about: Subject) -> None:
        self.about = about

    def holds(self, present: Present) -> bool:
        watched, part = self.about.tensor, self.about.part
        written = [present.home(tensor) for tensor in present.written()]
        if part != "grad" and present.home(watched) in written:
            return True
        if part == "value":
            return False
        if present.kind not in (Kind.OP, Kind.MUTATED) and present.field("tensor") == watched:
            return bool(present.field("grad") or present.grad_before)
        grad = present.grads.get(watched, 0)
        return bool(grad and present.home(grad) in written)
