"""The debugger: pauses a running script and opens the stepper on the events so far, for a user at the terminal or for
commands given in advance."""

from __future__ import annotations

import io
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Protocol, TextIO

import numpy as np
from rich.console import Console

from gradviz.errors import GradvizError, text_of
from gradviz.events.kinds import OpRan
from gradviz.live.bad_values import BAD
from gradviz.live.pauses import Pauses
from gradviz.query.differences import Forward
from gradviz.step import CommandError
from gradviz.step.plain import script, told
from gradviz.step.state import Resume, Session, Settings
from gradviz.step.terminal import interact
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


class Commands:
    """Runs a list of commands, over all stops. When no command is left, the script is ended."""

    def __init__(self, lines: list[str], write: Callable[[str], None]) -> None:
        self.lines = lines
        self.write = write
        self.started = False

    @property
    def wants_the_end(self) -> bool:
        """Whether commands are left."""
        return bool(self.lines)

    def read(self, session: Session) -> None:
        """Run commands until a command continues the script."""
        if self.started or session.message:
            for piece in told(session, moved=True):
                self.write(piece)
            self.write("")
        if self.lines or not self.started:
            self.started = True
            for piece in script(session, self.lines):
                self.write(piece)


class AtTerminal:
    """A user with a screen and keys, separate from the script's standard streams."""

    wants_the_end = False

    def __init__(self, terminal: TextIO) -> None:
        self.terminal = terminal

    def read(self, session: Session) -> None:
        """Let the user step until they continue or quit."""
        with self._own_streams():
            interact(session, Console(file=self.terminal, highlight=False))

    @contextmanager
    def _own_streams(self) -> Iterator[None]:
        """Read keys from the process's own standard input, even if the script has replaced sys.stdin."""
        scripts = sys.stdin
        sys.stdin = sys.__stdin__
        try:
            yield
        finally:
            sys.stdin = scripts


_MOST_LINES = 400


class Recording(Protocol):
    """The methods of the script's recording that a stop uses."""

    def quiet(self) -> AbstractContextManager[None]:
        """A context in which this thread records nothing."""

    def forward_of(self, op: OpRan, node: int, alone: bool) -> Forward:
        """The function that an op computed; `alone` means that it made one node. Raises LookupError, with the reason,
        if it cannot run again."""


class PausedScript:
    """A script at a stop. `frame` is the innermost of the user's own frames."""

    def __init__(self, frame: FrameType, recording: Recording) -> None:
        self.frame, self.recording = frame, recording

    def evaluate(self, expression: str) -> list[str]:
        """Evaluate an expression in the script's frame, unrecorded. Returns the printed lines and the warnings, then
        the value; or the exception in one line. Names that the expression assigns do not change the script's."""
        # in one namespace, so that a comprehension finds local names
        names = {**self.frame.f_globals, **self.frame.f_locals}
        said = io.StringIO()
        with (
            self.recording.quiet(),
            warnings.catch_warnings(record=True) as warned,
            redirect_stdout(said),
            redirect_stderr(said),
        ):
            try:
                value = repr(eval(compile(expression.strip(), "<p>", "eval"), names))
            except BaseException as error:  # whatever the error is, the stop goes on
                value = traceback.format_exception_only(error)[-1].strip()
        warning_lines = [f"{one.category.__name__}: {one.message}" for one in warned]
        lines = [*said.getvalue().splitlines(), *warning_lines, *value.splitlines()]
        more = len(lines) - _MOST_LINES
        return lines if more <= 0 else [*lines[:_MOST_LINES], f"… and {more:,} more lines"]

    def forward_of(self, op: OpRan, node: int, alone: bool) -> Forward:
        """The function that an op computed, from its tensor inputs; it runs unrecorded. Raises CommandError if it
        cannot run again."""
        try:
            forward = self.recording.forward_of(op, node, alone)
        except LookupError as error:
            raise CommandError(str(error.args[0])) from None

        def again(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            states = random.getstate(), np.random.get_state()
            try:
                with self.recording.quiet(), warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    return forward(arrays)
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])

        return again


@contextmanager
def ctrl_c_pauses(pauses: Callable[[], Pauses | None], say: Callable[[str], None]) -> Iterator[None]:
    """A context in which SIGINT requests a pause at the next event. A second SIGINT before that event raises
    KeyboardInterrupt, as it does without a debugger, because the script may be waiting for something else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        running = pauses()
        if running is None or os.getpid() != process:
            raise KeyboardInterrupt
        if running.quitting:
            running.quit_here()
        elif running.paused:
            pass  # the stepper reads Ctrl-C as a key
        elif running.interrupted:
            raise KeyboardInterrupt
        else:
            running.interrupt()
            say("gradviz: pausing at the next event (Ctrl-C once more interrupts the script)\n")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
