"""The session: where in a trace the reader stands. It knows no terminal."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.step.facts import Facts
from gradviz.step.stop import Stop
from gradviz.tracefile import Trace


class CommandError(Exception):
    """A command cannot be obeyed; the message is one line for the user."""


class Session:
    """A position in a trace, and whether the reader has had enough.

    `position` counts from 0, as `trace.event` does; what a reader says and sees counts from 1. `message` is
    what the last command has to say besides where it led."""

    def __init__(self, trace: Trace, position: int = 0) -> None:
        if not trace.count:
            raise CommandError(f"{trace.path} holds no events: there is nothing to step through")
        self.trace = trace
        self.facts = Facts(trace)
        self.position = 0
        self.message = ""
        self.help = False
        self.over = False
        self._stop = lru_cache(maxsize=64)(lambda k: Stop(self.facts, k))
        self.go(position)

    @property
    def stop(self) -> Stop:
        """Where the session stands."""
        return self._stop(self.position)

    @property
    def last(self) -> int:
        """The position of the last event."""
        return self.trace.count - 1

    def go(self, position: int) -> None:
        """Stand at an event. Raises CommandError where there is none."""
        if not 0 <= position <= self.last:
            raise CommandError(f"there is no event {position + 1}: the trace has {self.trace.count}, from 1")
        self.position = position

    def move(self, steps: int) -> None:
        """Go some events on, or back; stay at the ends, and say so."""
        wanted = self.position + steps
        self.position = min(max(wanted, 0), self.last)
        if wanted > self.last:
            self.message = "this is the last event"
        elif wanted < 0:
            self.message = "this is the first event"

    def next_backward(self) -> None:
        """Go to where the next backward pass begins."""
        begins = self.trace.indices(Kind.PASS_BEGAN)
        at = int(np.searchsorted(begins, self.position, side="right"))
        if at < len(begins):
            self.position = int(begins[at])
        else:
            self.message = "no backward pass begins after this event"

    def next_forward(self) -> None:
        """Go to the next forward op: one that ran outside of any backward pass."""
        ops = self.trace.indices(Kind.OP)
        passes = self.facts.moments.passes
        at = int(np.searchsorted(ops, self.position, side="right"))
        while at < len(ops):
            index = int(ops[at])
            around = passes.around(index, int(self.trace.events["head"][index]) >> 16)
            if not around:
                self.position = index
                return
            at = max(at + 1, int(np.searchsorted(ops, self._end_of(around[0]), side="right")))
        self.message = "no forward op runs after this event"

    def _end_of(self, began: int) -> int:
        run = self.facts.moments.pass_at.get(began)
        return self.trace.count if run is None or run.last is None else run.last
