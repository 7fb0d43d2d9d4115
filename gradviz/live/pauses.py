"""Pauses: the listener that passes every event to the recorder, and pauses the script at breakpoints.

It runs inside the script, on the thread of each event. While one thread is paused, the others wait at their next
event. An event that no condition concerns costs only a lock, a comparison and a check of its values for NaN.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from threading import get_ident
from types import TracebackType
from typing import Any, Protocol

from gradviz.events.field_types import Edge, Rule, Saved
from gradviz.events.kinds import Kind
from gradviz.events.listener import Listener, State, Where
from gradviz.live.bad_values import BAD, FirstBad
from gradviz.live.present import Present
from gradviz.query.predicate import Predicate
from gradviz.query.predicate_columns import EVERYWHERE, where
from gradviz.step.breakpoints import Breakpoint, Breakpoints
from gradviz.step.state import Resume
from gradviz.system.process import interrupt_main_thread
from gradviz.system.turns import new_own_turn
from gradviz.tracefile import Recorder
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


def _first(name: str) -> str:
    return f"the first {name}"


_FIRST = tuple(map(_first, BAD))


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
        """End this thread, if the script is to end and this thread has not been ended yet."""
        if self.quitting and get_ident() not in self._told_to_quit:
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
                self._due_at(present.index, self._reason(number))

    def _reason(self, number: int) -> str:
        return f"breakpoint {number}: {self.breakpoints.by_number[number].text}" if number else ""

    def _first_seen(self, names: Sequence[str], index: int = -1) -> None:
        """Stop at the events where a NaN or an infinity appears for the first time. The lock is held."""
        for name in names:
            self._due_at(self.recorder.count - 1 if index < 0 else index, _first(name))

    def _due_at(self, index: int, reason: str) -> None:
        """Stop when this event is complete."""
        self.reasons.append((index, reason))
        self.stop_at = 0

    def _due(self) -> None:
        """Handle a reason to stop: a breakpoint, the end of a step, Ctrl-C, or the end of the script."""
        if self.quitting:
            if get_ident() not in self._told_to_quit:
                self._quit()
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
        self.reasons = [(at, reason) for at, reason in reasons if at > index and reason in _FIRST]
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
                self._raised(values, isinstance(where, TracebackType) and not values[3])
            if self.attend[kind]:
                self._happened(kind, values, states, recorder.site if where is not None else 0)
            if self.bad.looking and states:
                self._first_seen(self.bad.of_states(kind, values, states))
            try:
                if recorder.count >= self.stop_at:
                    self._due()
            finally:
                self.present.leave(kind, values)

    def _raised(self, values: tuple[Any, ...], ends_the_script: bool) -> None:
        why = "this error ends the script" if ends_the_script else "an error in a backward pass"
        self._due_at(self.recorder.count - 1, why)

    def op(
        self,
        where: Any,
        op: str,
        args: str,
        rule: Rule,
        in_pass: int,
        grad_enabled: bool,
        inputs: Sequence[int],
        outputs: Sequence[int],
        values: Sequence[Any],
        flags: Sequence[int],
        versions: Sequence[int],
        bases: Sequence[int],
    ) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.op(
                where, op, args, rule, in_pass, grad_enabled, inputs, outputs, values, flags, versions, bases
            )
            if self.attend[_OP] and (self.op_names is None or op in self.op_names):
                states = [*map(State, outputs, values, flags, versions, bases)]
                fields = (op, args, rule, in_pass, grad_enabled, inputs, outputs)
                self._happened(Kind.OP, fields, states, recorder.site)
            if self.bad.looking:
                self._first_seen(self.bad.of_op(args, inputs, outputs, values))
            if recorder.count >= self.stop_at:
                self._due()

    def node(
        self,
        where: Any,
        node: int,
        grad_fn: str,
        op: int | None,
        rule: Rule,
        outputs: Sequence[int],
        edges: Sequence[Edge],
        saved: Sequence[Saved],
    ) -> None:
        self.tell(Kind.NODE, where, (node, grad_fn, op, rule, outputs, edges, saved))

    def differentiated(
        self,
        where: Any,
        op: str,
        args: str,
        rule: Rule,
        in_pass: int,
        inputs: Sequence[int],
        output: int,
        value: Any,
        flags: int,
        version: int,
        base: int,
        node: int,
        grad_fn: str,
        edges: Sequence[int],
        saved: Sequence[int],
    ) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.differentiated(
                where, op, args, rule, in_pass, inputs, output, value, flags, version, base, node, grad_fn,
                edges, saved,
            )  # fmt: skip
            at = recorder.count - 2
            if self.attend[_OP] and (self.op_names is None or op in self.op_names):
                fields = (op, args, rule, in_pass, True, inputs, (output,))
                self._happened(
                    Kind.OP, fields, (State(output, value, flags, version, base),), recorder.site, at
                )
            if self.attend[_NODE]:
                made = (node, grad_fn, -1, rule, (output,), edges, saved)
                self._happened(Kind.NODE, made, (), recorder.site)
            if self.bad.looking:
                self._first_seen(self.bad.of_one(args, inputs, output, value), at)
            if recorder.count >= self.stop_at:
                self._due()

    def received(
        self, node: int, grad_fn: str, in_pass: int, gradients: Sequence[int], values: Sequence[Any]
    ) -> None:
        with self.turn:
            self.recorder.received(node, grad_fn, in_pass, gradients, values)
            self._received(node, grad_fn, in_pass, gradients, values, -1)
            if self.recorder.count >= self.stop_at:
                self._due()

    def _received(
        self,
        node: int,
        grad_fn: str,
        in_pass: int,
        gradients: Sequence[int],
        values: Sequence[Any],
        index: int,
    ) -> None:
        if self.attend[_RECEIVED]:
            states = [State(g, v) for g, v in zip(gradients, values, strict=True) if v is not None]
            self._happened(Kind.RECEIVED, (node, grad_fn, in_pass, gradients), states, 0, index)
        if self.bad.looking:
            self._first_seen(self.bad.of_values(values), index)

    def produced(self, node: int, in_pass: int, flows: Sequence[int], values: Sequence[Any]) -> None:
        with self.turn:
            self.recorder.produced(node, in_pass, flows, values)
            self._produced(node, in_pass, flows, values)

    def _produced(self, node: int, in_pass: int, flows: Sequence[int], values: Sequence[Any]) -> None:
        if self.attend[_PRODUCED]:
            states = [State(g, v) for g, v in zip(flows[1::2], values, strict=False) if v is not None]
            self._happened(Kind.PRODUCED, (node, in_pass, flows), states, 0)
        if self.bad.looking:
            self._first_seen(self.bad.of_values(values))
        if self.recorder.count >= self.stop_at:
            self._due()

    def ran(
        self,
        node: int,
        grad_fn: str,
        in_pass: int,
        gradient: int,
        value: Any,
        flows: Sequence[int],
        values: Sequence[Any],
    ) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.ran(node, grad_fn, in_pass, gradient, value, flows, values)
            if self.attend[_RECEIVED] or (self.bad.looking and value is not None):
                self._received(node, grad_fn, in_pass, (gradient,), (value,), recorder.count - 2)
            self._produced(node, in_pass, flows, values)


_OP, _NODE, _RECEIVED, _PRODUCED = (int(kind) for kind in (Kind.OP, Kind.NODE, Kind.RECEIVED, Kind.PRODUCED))
