"""The debugger: pauses a running script and opens the stepper on the events so far, for a user at the terminal or for
commands given in advance.

The listener that passes every event to the recorder runs inside the script, on the thread of each event. While one
thread is paused, the others wait at their next event. An event that no condition concerns costs only a lock, a
comparison and a check of its values for NaN."""

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
from threading import get_ident
from traceback import walk_tb
from types import FrameType, TracebackType
from typing import Any, Protocol, TextIO

import numpy as np
from rich.console import Console

from gradviz.errors import GradvizError, text_of
from gradviz.events.kinds import Kind, OpRan
from gradviz.events.listener import Listener, State, Where
from gradviz.live.present import BAD, FirstBad, Present
from gradviz.query.differences import Forward
from gradviz.query.predicate import Predicate
from gradviz.query.predicate_columns import EVERYWHERE, where
from gradviz.step import CommandError
from gradviz.step.breakpoints import Breakpoint, Breakpoints
from gradviz.step.plain import script, told
from gradviz.step.state import Resume, Session, Settings
from gradviz.step.terminal import interact
from gradviz.system.process import interrupt_main_thread
from gradviz.system.turns import new_own_turn
from gradviz.tracefile import Recorder, Sites, Trace, open_trace
from gradviz.words.escape import clean
from gradviz.words.stop import Subject
from gradviz.words.words import Words


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


_NEVER = 1 << 62


_FIRST = {name: f"the first {name}" for name in BAD}  # the reasons to stop at the first bad values


class Pauses(Listener):
    """Passes every event to the recorder, and calls `pause(index, reasons)` where the script stops. `index` is the
    event to show. The result of `pause` is how to continue; None ends the script.

    `bad` are the values at whose first appearance to stop: NaN, and an infinity that the program did not write
    itself."""

    def __init__(
        self,
        recorder: Recorder,
        pause: Callable[[int, list[str]], Resume | None],
        breakpoints: Breakpoints,
        bad: Sequence[str] = BAD,
    ) -> None:
        self.recorder = recorder
        self.pause = pause
        self.breakpoints = breakpoints
        self.turn = new_own_turn()
        self.present = Present(recorder.sites)
        self.bad = FirstBad(bad)
        self.target = _NEVER  # the number of events at which to stop
        self.stop_at = _NEVER  # the same number, or 0 if there is an earlier reason to stop
        self.reasons: list[tuple[int, str]] = []  # reasons to stop now, each with its event
        self.interrupted = False
        self.quitting = False
        self.paused = False
        self._told_to_quit: set[int] = set()
        self._known: dict[int, Condition] = {}  # by number of the breakpoint; some conditions have a state
        self._tests: list[list[tuple[int, Condition]]] = []
        self.attend: list[bool] = []  # by kind: whether a condition concerns such events
        self.op_names: frozenset[str] | None = None  # the only ops that conditions concern; None for all
        self.prepare(None, None)

    # --- what to stop at

    def prepare(self, resume: Resume | None, past: Words | None) -> None:
        """Use the present breakpoints and the condition of `resume` from now on; `past` is the run so far."""
        self._known = {
            number: self._known.get(number) or condition_of(known)
            for number, known in self.breakpoints.by_number.items()
        }
        conditions = list(self._known.items())
        if resume is not None and resume.predicate is not None:
            conditions.append((0, Holds(resume.predicate)))
        fields = frozenset().union(*(condition.fields for _, condition in conditions))
        present = self.present
        present.ask(fields, past)
        self._tests = [[] for _ in range(max(Kind) + 1)]
        for kind in Kind:
            self._tests[kind] = [pair for pair in conditions if kind in pair[1].kinds]
        self.attend = [False] + [bool(self._tests[kind]) or present.remembers(kind) for kind in Kind]
        wanted = [condition.ops for _, condition in self._tests[Kind.OP]]
        some = [names for names in wanted if names is not None]
        every = len(some) < len(wanted) or present.remembers(Kind.OP)
        self.op_names = None if every else frozenset().union(*some)
        self.resume = resume
        events = resume.events if resume is not None else 0
        self.target = self.recorder.count + events if events else _NEVER
        self.stop_at = 0 if self.interrupted else self.target

    def quit_here(self) -> None:
        """End this thread of a script that is to end, unless it has been ended already."""
        if get_ident() not in self._told_to_quit:
            self._quit()

    def interrupt(self) -> None:
        """Pause at the next event."""
        self.interrupted = True
        self.stop_at = 0

    # --- at an event

    def _happened(
        self, kind: Kind, values: tuple[Any, ...], states: Sequence[State], site: int, index: int = -1
    ) -> None:
        """Check an event that a condition may concern. The lock is held."""
        present = self.present
        present.take(kind, values, states, site, self.recorder.count - 1 if index < 0 else index)
        for number, condition in self._tests[kind]:
            if condition.holds(present):
                reason = f"breakpoint {number}: {self.breakpoints.by_number[number].text}" if number else ""
                self._due_at(present.index, reason)

    def _first_seen(self, names: Sequence[str], index: int = -1) -> None:
        """Stop at the events where a NaN or an infinity appears for the first time. The lock is held."""
        for name in names:
            self._due_at(self.recorder.count - 1 if index < 0 else index, _FIRST[name])

    def _due_at(self, index: int, reason: str) -> None:
        """Stop when this event is complete."""
        self.reasons.append((index, reason))
        self.stop_at = 0

    def _due(self) -> None:
        """Handle a reason to stop: a breakpoint, the end of a step, Ctrl-C, or the end of the script."""
        if self.quitting:
            self.quit_here()
            return
        reasons, self.reasons = self.reasons, []
        if self.recorder.count >= self.target:
            reasons.append((self.target - 1, ""))
        if self.interrupted:
            reasons.append((self.recorder.count - 1, "paused by Ctrl-C"))
        if not reasons:
            return
        index = min(at for at, _ in reasons)
        # A first NaN or infinity is found only once: it must not be lost if another reason came before it.
        self.reasons = [(at, reason) for at, reason in reasons if at > index and reason in _FIRST.values()]
        self.stop(index, [reason for at, reason in reasons if at == index])
        if self.reasons:
            self._due()

    def stop(self, index: int, reasons: list[str]) -> None:
        """Pause the script. The lock is held."""
        if self.paused or self.quitting:
            return
        self.paused, self.interrupted = True, False
        try:
            resume = self.pause(index, list(dict.fromkeys(filter(None, reasons))))
        finally:
            self.paused = False
        if resume is None:
            self.end()
            self._quit()

    def let_go(self) -> None:
        """Stop no more."""
        self.target = self.stop_at = _NEVER
        self.bad.looking = self.interrupted = False
        self.reasons = []
        self.attend = [False] * len(self.attend)

    def end(self) -> None:
        """End the script: each thread ends at its next event."""
        self.let_go()
        self.quitting = True
        self.stop_at = 0
        if threading.current_thread() is not threading.main_thread():
            interrupt_main_thread()  # it may be waiting without ever reaching an event

    def _quit(self) -> None:
        self._told_to_quit.add(get_ident())
        raise SystemExit(0)  # threads end silently on SystemExit

    # --- events from the source

    @property
    def detailed(self) -> bool:  # type: ignore[override]
        return self.recorder.detailed

    def place(self, where: Where) -> Where:
        return self.recorder.place(where)

    def tell(self, kind: Kind, where: Where, values: tuple[Any, ...], states: Sequence[State] = ()) -> None:
        recorder = self.recorder
        with self.turn:
            if kind == Kind.PASS_BEGAN:
                # a script that caught SystemExit ends at the next pass
                self._told_to_quit.discard(get_ident())
            recorder.tell(kind, where, values, states)
            self.present.follow(kind, values, recorder)
            if kind == Kind.ERROR:
                is_last = isinstance(where, TracebackType) and not values[3]
                why = "this error ends the script" if is_last else "an error in a backward pass"
                self._due_at(recorder.count - 1, why)
            if self.attend[kind]:
                self._happened(kind, values, states, recorder.site if where is not None else 0)
            if self.bad.looking and states:
                self._first_seen(self.bad.of_states(kind, values, states))
            try:
                if recorder.count >= self.stop_at:
                    self._due()
            finally:
                self.present.leave(kind, values)

    def op(self, where: Any, op: str, args: str, *fields: Any) -> None:
        recorder = self.recorder
        rule, in_pass, grad_enabled, inputs, outputs, values, flags, versions, bases = fields
        with self.turn:
            recorder.op(where, op, args, *fields)
            if self.attend[_OP] and (self.op_names is None or op in self.op_names):
                states = [*map(State, outputs, values, flags, versions, bases)]
                told = (op, args, rule, in_pass, grad_enabled, inputs, outputs)
                self._happened(Kind.OP, told, states, recorder.site)
            if self.bad.looking:
                self._first_seen(self.bad.of_op(args, inputs, outputs, values))
            if recorder.count >= self.stop_at:
                self._due()

    def differentiated(self, where: Any, op: str, args: str, rule: Any, in_pass: int, *fields: Any) -> None:
        recorder = self.recorder
        inputs, output, value, flags, version, base, node, grad_fn, edges, saved = fields
        with self.turn:
            recorder.differentiated(where, op, args, rule, in_pass, *fields)
            at = recorder.count - 2
            if self.attend[_OP] and (self.op_names is None or op in self.op_names):
                told = (op, args, rule, in_pass, True, inputs, (output,))
                state = State(output, value, flags, version, base)
                self._happened(Kind.OP, told, (state,), recorder.site, at)
            if self.attend[_NODE]:
                made = (node, grad_fn, -1, rule, (output,), edges, saved)
                self._happened(Kind.NODE, made, (), recorder.site)
            if self.bad.looking:
                self._first_seen(self.bad.of_one(args, inputs, output, value), at)
            if recorder.count >= self.stop_at:
                self._due()

    def received(self, node: int, grad_fn: str, in_pass: int, gradients: Sequence[int], values: Sequence[Any]) -> None:
        with self.turn:
            self.recorder.received(node, grad_fn, in_pass, gradients, values)
            if self.attend[_RECEIVED]:
                states = [State(g, v) for g, v in zip(gradients, values, strict=True) if v is not None]
                self._happened(Kind.RECEIVED, (node, grad_fn, in_pass, gradients), states, 0)
            if self.bad.looking:
                self._first_seen(self.bad.of_values(values))
            if self.recorder.count >= self.stop_at:
                self._due()

    def produced(self, node: int, in_pass: int, flows: Sequence[int], values: Sequence[Any]) -> None:
        with self.turn:
            self.recorder.produced(node, in_pass, flows, values)
            if self.attend[_PRODUCED]:
                states = [State(g, v) for g, v in zip(flows[1::2], values, strict=False) if v is not None]
                self._happened(Kind.PRODUCED, (node, in_pass, flows), states, 0)
            if self.bad.looking:
                self._first_seen(self.bad.of_values(values))
            if self.recorder.count >= self.stop_at:
                self._due()


_OP, _NODE, _RECEIVED, _PRODUCED = (int(kind) for kind in (Kind.OP, Kind.NODE, Kind.RECEIVED, Kind.PRODUCED))


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
        self, path: Path, reader: Reader, settings: Settings, at_start: bool = True, bad: Sequence[str] = BAD,
        exporter: Exporter | None = None,
    ) -> None:  # fmt: skip
        self.path = path.absolute()  # the script may change its directory
        self.reader = reader
        self.settings = settings
        self.bad = bad
        self.exporter = exporter
        self.pauses: Pauses | None = None
        self.trace: Trace | None = None  # the trace at the last stop
        self.resume = Resume(events=1) if at_start else Resume()
        self.trouble = ""  # the reason why a stop could not be shown
        self.recording: Recording | None = None
        self.raised: TracebackType | None = None  # the traceback of the exception that has left the script

    # --- interface to the run of the script

    def began(self, recording: "Recording") -> None:
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

    def _script(self, sites: Sites) -> "PausedScript | None":
        """The script in which expressions can be evaluated at this stop; None if none of its frames is known."""
        frame = sites.users_frame(sys._getframe())
        for entry, _ in walk_tb(self.raised):
            frame = sites.users_frame(entry) or frame
        return None if frame is None or self.recording is None else PausedScript(frame, self.recording)

    def _show(self, session: Session, message: str) -> None:
        session.message = message
        self.settings.breakpoints.forget_events()
        for stream in (sys.stdout, sys.stderr):
            # the script may have closed or replaced the stream
            with suppress(AttributeError, ValueError, OSError):
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
        """Let the user step until they continue or quit. Keys come from the process's own standard input, even if the
        script has replaced sys.stdin."""
        scripts, sys.stdin = sys.stdin, sys.__stdin__
        try:
            interact(session, Console(file=self.terminal, highlight=False))
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
