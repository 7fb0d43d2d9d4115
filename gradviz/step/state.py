"""The state of a stepper session: its position in the trace, and its settings. It does not depend on a
terminal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradviz.query.bad_numbers import BadNumbers, bad_numbers
from gradviz.query.predicate import Predicate
from gradviz.query.predicate_columns import TraceFields
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.step import CommandError
from gradviz.step.breakpoints import Breakpoints
from gradviz.step.leaves import PLAIN, View
from gradviz.tracefile import Trace
from gradviz.words.stop import Stop
from gradviz.words.words import Words


class Resume(NamedTuple):
    """The extent of a continued script: a number of events, or until a predicate is true, or otherwise until a
    breakpoint."""

    events: int = 0
    predicate: Predicate | None = None


@dataclass
class Settings:
    """Settings that several sessions on one running script share: breakpoints, bookmarks, the last search,
    the typed keys and commands."""

    breakpoints: Breakpoints = field(default_factory=Breakpoints)
    marks: dict[str, int] = field(default_factory=dict)
    searched: str = ""
    leaves: View = PLAIN  # the view of the table of leaves
    ahead: list[str] = field(default_factory=list)  # keys typed ahead
    history: list[str] = field(default_factory=list)  # the commands that the user typed


class Session:
    """`position` counts from 0, as `trace.event` does; texts for the user count from 1. `over` is true once the session
    has ended. `message` is the message of the last command, and `page` the page that it shows instead of the stop.
    `live` means that the script is paused at the last event of the trace. To continue it, a command sets `resume` and
    ends the session. `exporter` writes the graph of a trace up to an event into a file. `fill` adds to the events
    around an event the elements that a replay computes, and returns whether it could; `fill_in_where_bad` adds them to
    the first pass with a NaN, in which the first event with a NaN is looked for. `what_if` returns the results of a
    pass with other values. The caller provides these functions. Raises CommandError if the trace has no events."""

    def __init__(
        self,
        trace: Trace,
        position: int = 0,
        settings: Settings | None = None,
        live: bool = False,
        exporter: Callable[[Trace, int, Path], None] | None = None,
        fill: Callable[[Query, int], bool] = lambda query, event: False,
        fill_in_where_bad: Callable[[Trace], object] = lambda trace: None,
        what_if: Callable[[Words, int | None, Sequence[str]], list[str]] | None = None,
    ) -> None:
        if not trace.count:
            raise CommandError(f"{trace.path} has no events: there is nothing to step through")
        self.trace = trace
        self.words = Words(trace)
        self.query = self.words.query
        self.settings = settings or Settings()
        self.live = live
        # a paused script (`gradviz.live.debugger.PausedScript`), if expressions can be evaluated in it
        self.script: Any = None
        self.exporter, self.fill, self.what_if = exporter, fill, what_if
        self.fill_in_where_bad = fill_in_where_bad
        self.tried: dict[str, str] = {}  # values that the user set, by the names of their tensors
        self.exercise: Any = None  # a lesson under way (`gradviz.learn.lesson.Exercise`)
        self.group: Any = None  # the sessions that are moved together (`gradviz.step.group.Group`)
        self.resume: Resume | None = None
        self.position = 0
        self.came_from = 0
        self.message = ""
        self.page: list[str] = []
        self.page_keys: dict[str, str] = {}  # keys of the page, and the command of each
        self.scrolled = 0  # screens of the page
        self.over = False
        self.announce: Callable[[str], None] = lambda text: None  # shows a text before a slow command
        self._stop = lru_cache(maxsize=64)(lambda k: Stop(self.words, k))
        self.go(position)

    def reach_all(self) -> None:
        """Read the whole run, for a command that looks at all of it."""
        if not self.trace.is_whole:
            self.announce(self.say("reading all {events} events …", events=f"{self.trace.count:,}"))
            self.trace.reach_all()

    @property
    def stop(self) -> Stop:
        """The stop at the present position."""
        return self._stop(self.position)

    @property
    def last(self) -> int:
        """The position of the last event."""
        return self.trace.count - 1

    @cached_property
    def columns(self) -> TraceFields:
        """The fields of predicates, as columns over all events."""
        self._fill_in_where_bad()
        return TraceFields(self.query)

    @property
    def odd(self) -> np.ndarray:
        """The events with a NaN or an infinity, in order. For a long run that has not been read whole, the first
        event with a NaN in each of its chunks."""
        return self.bad.events if self.trace.is_whole else self.trace.nans_told

    @cached_property
    def bad(self) -> BadNumbers:
        """The events with a NaN or an infinity."""
        self._fill_in_where_bad()
        return self.query.of(bad_numbers)

    def _fill_in_where_bad(self) -> None:
        """Add to the trace, once, what a replay computes of the first pass with a NaN."""
        if self.trace.is_whole:
            fill, self.fill_in_where_bad = self.fill_in_where_bad, lambda trace: None
            fill(self.trace)

    @cached_property
    def errors(self) -> np.ndarray:
        """The events of errors, in order."""
        return np.array([error.event for error in self.trace.errors], np.int64)

    @property
    def writes(self) -> np.ndarray:
        """The events that change a tensor in place, in order; empty for a long run that has not been read whole."""
        return self._writes if self.trace.is_whole else np.zeros(0, np.int64)

    @cached_property
    def _writes(self) -> np.ndarray:
        return distinct(self.query.tensors.all_writes[0])

    @property
    def breakpoints(self) -> Breakpoints:
        """The breakpoints, which `continue` stops at."""
        return self.settings.breakpoints

    def prepare(self) -> None:
        """Compute the tables of the whole trace now, so that later commands answer at once. Nothing is read ahead for
        a long run."""
        if not self.trace.is_whole:
            return
        self.words.prepare()
        assert self.columns.sites is not None

    def go(self, position: int) -> None:
        """Go to an event. Raises CommandError if the trace has no such event."""
        if not 0 <= position <= self.last:
            raise CommandError(
                "there is no event {event}: the trace has {count}, from 1", event=position + 1, count=self.trace.count
            )
        position = position if self.exercise is None else self.exercise.held(position)
        if position != self.position:
            self.came_from = self.position
        self.position = position

    def move(self, steps: int) -> None:
        """Move by a number of events, forwards or backwards. At an end of the trace, stay there and set a message."""
        wanted = self.position + steps
        if wanted > self.last and self.live:
            self.go_on(Resume(events=wanted - self.last))
            return
        self.go(min(max(wanted, 0), self.last))
        if wanted > self.last == self.position:
            self.message = self.say("this is the last event")
        elif wanted < 0:
            self.message = self.say("this is the first event")

    def say(self, text: str, /, **parts: object) -> str:
        """An English text in the language of the session, with its `{parts}` filled in."""
        return self.words.say(text, **parts)

    def events_told(self, number: int) -> str:
        """`1 event`, `2 events`, in the language of the session."""
        return self.say("{count} event" if number == 1 else "{count} events", count=f"{number:,}")

    def go_on(self, resume: Resume) -> None:
        """End the session and let the script continue."""
        self.resume = resume
        self.over = True
