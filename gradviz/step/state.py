"""The session: where in a trace the reader stands, and what they have set up. It knows no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.fields import TraceFields
from gradviz.query.predicate import Predicate
from gradviz.step.breakpoints import Breakpoints
from gradviz.step.errors import CommandError
from gradviz.tracefile import Trace
from gradviz.words.stop import Stop
from gradviz.words.words import Words

__all__ = ["CommandError", "Resume", "Session"]


@dataclass(frozen=True, slots=True)
class Resume:
    """How far a running script is to go on: so many events, or to where a predicate holds; else to a breakpoint."""

    events: int = 0
    predicate: Predicate | None = None


@dataclass
class Settings:
    """What outlives a session on a running script: breakpoints, bookmarks, the last search, what was typed."""

    breakpoints: Breakpoints = field(default_factory=Breakpoints)
    marks: dict[str, int] = field(default_factory=dict)
    searched: str = ""
    ahead: list[str] = field(default_factory=list)  # keys typed ahead
    history: list[str] = field(default_factory=list)  # the commands that were typed


class Session:
    """A position in a trace, and whether the reader has had enough.

    `position` counts from 0, as `trace.event` does; what a reader says and sees counts from 1. `message` is
    what the last command has to say besides where it led, `page` what it shows instead of the stop. `live` says that
    the script is paused at the trace's last event: going on from there sets `resume` and ends the session.
    `exporter` writes the graph of a trace into a file; whoever makes the session knows how."""

    def __init__(
        self,
        trace: Trace,
        position: int = 0,
        settings: Settings | None = None,
        live: bool = False,
        exporter: Callable[[Trace, int, Path], None] | None = None,
    ) -> None:
        if not trace.count:
            raise CommandError(f"{trace.path} holds no events: there is nothing to step through")
        self.trace = trace
        self.words = Words(trace)
        self.query = self.words.query
        self.settings = settings or Settings()
        self.live = live
        self.exporter = exporter
        self.resume: Resume | None = None
        self.position = 0
        self.came_from = 0
        self.message = ""
        self.page: list[str] = []
        self.scrolled = 0  # screens of the page
        self.help = ""
        self.over = False
        self._stop = lru_cache(maxsize=64)(lambda k: Stop(self.words, k))
        self.go(position)

    @property
    def stop(self) -> Stop:
        """Where the session stands."""
        return self._stop(self.position)

    @property
    def last(self) -> int:
        """The position of the last event."""
        return self.trace.count - 1

    @cached_property
    def columns(self) -> TraceFields:
        """The fields of predicates, for every event."""
        return TraceFields(self.query)

    @cached_property
    def odd(self) -> np.ndarray:
        """The events that have a NaN or an infinity, in order."""
        return np.flatnonzero(self.columns.column("nan").values | self.columns.column("inf").values)

    @cached_property
    def errors(self) -> np.ndarray:
        """The errors, in order."""
        return self.trace.indices(Kind.ERROR)

    @cached_property
    def writes(self) -> np.ndarray:
        """The events that write over a tensor, in order."""
        return np.unique(self.query.tensors.all_writes[0])

    @property
    def breakpoints(self) -> Breakpoints:
        """What `continue` stops at."""
        return self.settings.breakpoints

    def prepare(self) -> None:
        """Look over the trace once, so that no later answer has to wait for it."""
        self.words.prepare()
        assert self.columns.sites is not None

    def go(self, position: int) -> None:
        """Stand at an event. Raises CommandError where there is none."""
        if not 0 <= position <= self.last:
            raise CommandError(f"there is no event {position + 1}: the trace has {self.trace.count}, from 1")
        if position != self.position:
            self.came_from = self.position
        self.position = position

    def move(self, steps: int) -> None:
        """Go some events on, or back; stay at the ends, and say so."""
        wanted = self.position + steps
        if wanted > self.last and self.live:
            self.go_on(Resume(events=wanted - self.last))
            return
        self.go(min(max(wanted, 0), self.last))
        if wanted > self.last:
            self.message = "this is the last event"
        elif wanted < 0:
            self.message = "this is the first event"

    def go_on(self, resume: Resume) -> None:
        """Let the script run on."""
        self.resume = resume
        self.over = True
