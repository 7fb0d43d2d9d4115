"""The debugger: at each stop it opens what has been recorded so far, and lets the reader step through it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from gradviz.debug.pauses import BAD, Pauses
from gradviz.errors import GradvizError
from gradviz.step.state import Resume, Session, Settings
from gradviz.tracefile import Recorder, Trace, open_trace
from gradviz.words.escape import clean

Exporter = Callable[[Trace, int, Path], None]


class Reader(Protocol):
    """Who looks at the stops: somebody at a terminal, or a list of commands."""

    def read(self, session: Session) -> None:
        """Step about until the session is over. Raises CommandError where that cannot be."""

    @property
    def wants_the_end(self) -> bool:
        """Whether to be shown the run once more when it has ended."""


class Debugger:
    """Goes along with the run of a script. `at_start`: stop at the first event already."""

    def __init__(
        self,
        path: Path,
        reader: Reader,
        settings: Settings,
        at_start: bool = True,
        bad: Sequence[str] = BAD,
        exporter: Exporter | None = None,
    ) -> None:
        self.path = path
        self.reader = reader
        self.settings = settings
        self.at_start = at_start
        self.bad = bad
        self.exporter = exporter
        self.pauses: Pauses | None = None
        self.trace: Trace | None = None  # as of the last stop
        self.resume = Resume(events=1) if at_start else Resume()
        self.trouble = ""  # what kept a stop from being shown

    # --- what the run asks of its companion

    def listener(self, recorder: Recorder) -> Pauses:
        """Whom the engine is to tell."""
        self.pauses = Pauses(recorder, self._pause, self.settings.breakpoints, self.bad)
        self.pauses.prepare(self.resume, None)
        return self.pauses

    def failed(self, error: BaseException) -> None:
        """An exception has left the script: stop once more, where it was raised."""
        pauses = self.pauses
        kind, message = type(error).__name__, str(error)
        if pauses is None or pauses.quitting or not isinstance(error, Exception):
            return
        if (kind, message) == pauses.error_told:
            return
        if pauses.recorder.sites.number(error.__traceback__):
            with suppress(SystemExit):  # the script has ended already
                pauses.error(error.__traceback__, kind, message)

    def ended(self, how: str) -> None:
        """The script has ended and its trace is closed: show it, if there is more to be read."""
        self._close()
        stepping = self.resume.events or self.resume.predicate is not None
        if self.trouble or (self.pauses is not None and self.pauses.quitting):
            return
        if not self.reader.wants_the_end and not stepping:
            return
        try:
            with open_trace(self.path) as trace:
                if trace.count:
                    session = Session(trace, trace.count - 1, self.settings, exporter=self.exporter)
                    self._show(session, f"the script has ended ({how}): this is the last event")
        except GradvizError as error:
            self.trouble = str(error)

    # --- a stop

    def _pause(self, index: int, reasons: list[str]) -> Resume | None:
        """Let the reader look; returns how to go on, None to end the script."""
        pauses = self.pauses
        assert pauses is not None
        self._close()
        try:
            pauses.recorder.flush()
            self.trace = open_trace(self.path)
        except (OSError, GradvizError) as error:  # what there is cannot be looked at, but the script is sound
            self.trouble = str(error)
            pauses.let_go()
            return Resume()
        try:
            session = Session(self.trace, index, self.settings, live=True, exporter=self.exporter)
            self._show(session, clean("; ".join(reasons)))
        except (OSError, GradvizError) as error:  # OSError: the terminal is gone
            self.trouble = str(error)
            return None
        if session.resume is not None:
            self.resume = session.resume
            pauses.prepare(session.resume, session.words)
        return session.resume

    def _show(self, session: Session, message: str) -> None:
        session.message = message
        self.settings.breakpoints.forget_events()
        for stream in (sys.stdout, sys.stderr):
            with suppress(
                AttributeError, ValueError, OSError
            ):  # the script may have closed it, or put something there
                stream.flush()
        self.reader.read(session)

    def _close(self) -> None:
        """Close the trace of the last stop."""
        if self.trace is not None:
            self.trace.close()
            self.trace = None
