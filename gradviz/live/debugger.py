"""The debugger: pauses a running script and opens the stepper on the events so far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import walk_tb
from types import TracebackType
from typing import Protocol

from gradviz.errors import GradvizError, text_of
from gradviz.live.bad_values import BAD
from gradviz.live.pauses import Pauses
from gradviz.live.waiting_script import PausedScript, Recording
from gradviz.step.state import Resume, Session, Settings
from gradviz.tracefile import Recorder, Sites, Trace, open_trace
from gradviz.words.escape import clean

Exporter = Callable[[Trace, int, Path], None]


class Reader(Protocol):
    """Handles a stop: a user at a terminal, or a list of commands."""

    def read(self, session: Session) -> None:
        """Use the session until it is over. Raises CommandError if a command fails."""

    @property
    def wants_the_end(self) -> bool:
        """Whether to show the trace again after the script has ended."""


class Debugger:
    """Runs alongside a script and handles its stops. With `at_start` it stops at the first event."""

    def __init__(
        self,
        path: Path,
        reader: Reader,
        settings: Settings,
        at_start: bool = True,
        bad: Sequence[str] = BAD,
        exporter: Exporter | None = None,
    ) -> None:
        self.path = path.absolute()  # the script may change its directory
        self.reader = reader
        self.settings = settings
        self.at_start = at_start
        self.bad = bad
        self.exporter = exporter
        self.pauses: Pauses | None = None
        self.trace: Trace | None = None  # the trace at the last stop
        self.resume = Resume(events=1) if at_start else Resume()
        self.trouble = ""  # the reason why a stop could not be shown
        self.recording: Recording | None = None
        self.raised: TracebackType | None = None  # the traceback of the exception that has left the script

    # --- interface to the run of the script

    def began(self, recording: Recording) -> None:
        """The recording has begun."""
        self.recording = recording

    def listener(self, recorder: Recorder) -> Pauses:
        """The listener for the events of the engine."""
        self.pauses = Pauses(recorder, self._pause, self.settings.breakpoints, self.bad)
        self.pauses.prepare(self.resume, None)
        return self.pauses

    def failed(self, error: BaseException) -> None:
        """Stop once more at the place where an exception was raised that has left the script."""
        pauses = self.pauses
        kind, message = type(error).__name__, text_of(error)
        if pauses is None or pauses.quitting or not isinstance(error, Exception):
            return
        if (kind, message) == pauses.recorder.last_error:
            return
        if pauses.recorder.sites.number(error.__traceback__):
            self.raised = error.__traceback__
            with suppress(SystemExit):  # the script has ended already
                pauses.error(error.__traceback__, kind, message)

    def ended(self, how: str) -> None:
        """Handle the end of the script, whose trace is closed: show the trace, if it is wanted."""
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
        """Show the stop. Returns how to continue; None ends the script."""
        pauses = self.pauses
        assert pauses is not None
        self._close()
        try:
            pauses.recorder.flush()
            self.trace = open_trace(self.path)
        except (OSError, GradvizError) as error:  # the trace cannot be shown, but the script can continue
            self.trouble = str(error)
            pauses.let_go()
            return Resume()
        try:
            session = Session(self.trace, index, self.settings, live=True, exporter=self.exporter)
            session.script = self._script(pauses.recorder.sites)
            self._show(session, clean("; ".join(reasons)))
        except (OSError, GradvizError) as error:  # OSError: the terminal is gone
            self.trouble = str(error)
            return None
        if session.resume is not None:
            self.resume = session.resume
            pauses.prepare(session.resume, session.words)
        return session.resume

    def _script(self, sites: Sites) -> PausedScript | None:
        """The script in which expressions can be evaluated at this stop; None if none of its frames is known."""
        frame = sites.users_frame(sys._getframe())
        for entry, _ in walk_tb(self.raised):
            frame = sites.users_frame(entry) or frame
        return None if frame is None or self.recording is None else PausedScript(frame, self.recording)

    def _show(self, session: Session, message: str) -> None:
        session.message = message
        self.settings.breakpoints.forget_events()
        for stream in (sys.stdout, sys.stderr):
            with suppress(
                AttributeError, ValueError, OSError
            ):  # the script may have closed or replaced the stream
                stream.flush()
        self.reader.read(session)

    def _close(self) -> None:
        """Close the trace of the last stop."""
        if self.trace is not None:
            self.trace.close()
            self.trace = None
