"""Pauses: the listener that hands every event to the recorder, and stops the script where somebody wants to look.

It runs inside the script, on whatever thread an event happens: while one thread is paused, the others wait at their
next event. Where nothing is asked of an event, all that it costs is a lock, a comparison and a look at its values.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from math import isfinite
from threading import get_ident
from types import TracebackType
from typing import Any

import numpy as np

from gradviz.debug.conditions import Condition, Holds, condition_of
from gradviz.debug.measures import is_finite
from gradviz.debug.present import Present
from gradviz.events.kinds import Kind
from gradviz.events.listener import Listener
from gradviz.step.breakpoints import Breakpoints
from gradviz.words.words import Words
from gradviz.step.state import Resume
from gradviz.tracefile import Recorder

_NEVER = 1 << 62
BAD = ("NaN", "infinity")  # what to stop at when the first comes


class Pauses(Listener):
    """Tells the recorder everything, and calls `pause(index, reasons)` where the script is to stop: at an event, or
    None after what has been recorded last. What that returns says how to go on; None ends the script.

    `bad` is which of NaN and infinity to stop at when the first comes."""

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
        self.turn = threading.RLock()
        self.present = Present(recorder.sites)
        self.unseen = set(bad)
        self.looking = bool(bad)
        self.target = _NEVER  # the count of events to stop at
        self.stop_at = _NEVER  # the same, or 0 where something is due before
        self.reasons: list[tuple[int, str]] = []  # why to stop now, and at which event
        self.interrupted = False
        self.quitting = False
        self.paused = False
        self._told_to_quit: set[int] = set()
        self._numbers: dict[int, int] = {}  # the source's number of a pass -> the trace's
        self._known: dict[int, Condition] = {}  # by the breakpoint's number; some remember what came before
        self._tests: list[list[tuple[int, Condition]]] = []
        self._remembers: list[bool] = []
        self.attend: list[bool] = []  # by kind: whether anybody waits for such events
        self.op_names: frozenset[str] | None = None  # the only ops that anybody waits for, None for all
        self.error_told = ("", "")
        self.prepare(None, None)

    # --- what to stop at

    def prepare(self, resume: Resume | None, past: Facts | None) -> None:
        """Be ready for the breakpoints there are, and for what `resume` says; `past` is the run so far."""
        self._known = {
            number: self._known.get(number) or condition_of(known)
            for number, known in self.breakpoints.by_number.items()
        }
        conditions = list(self._known.items())
        if resume is not None and resume.predicate is not None:
            conditions.append((0, Holds(resume.predicate)))
        fields = frozenset().union(*(condition.fields for _, condition in conditions))
        self.present.ask(fields, past)
        self._tests = [[] for _ in range(max(Kind) + 1)]
        for kind in Kind:
            self._tests[kind] = [pair for pair in conditions if kind in pair[1].kinds]
        self._remembers = [False] + [self.present.remembers(kind) for kind in Kind]
        self.attend = [False] + [bool(self._tests[kind]) or self._remembers[kind] for kind in Kind]
        wanted = [condition.ops for _, condition in self._tests[Kind.OP]]
        some = [names for names in wanted if names is not None]
        every = len(some) < len(wanted) or self._remembers[Kind.OP]
        self.op_names = None if every else frozenset().union(*some)
        self.resume = resume
        events = resume.events if resume is not None else 0
        self.target = self.recorder.count + events if events else _NEVER
        self.stop_at = 0 if self.interrupted else self.target

    def quit_here(self) -> None:
        """End this thread, if the script is to end and it has not been told so yet."""
        if self.quitting and get_ident() not in self._told_to_quit:
            self._quit()

    def interrupt(self) -> None:
        """Pause at the next event."""
        self.interrupted = True
        self.stop_at = 0

    # --- at an event

    def _happened(
        self,
        kind: Kind,
        index: int = -1,
        site: int = 0,
        name: str = "",
        told: Sequence[tuple[int, np.ndarray | None]] = (),
        tensors: Sequence[int] = (),
        gradients: Sequence[int] = (),
        inputs: Sequence[int] = (),
        node: int = 0,
        grad_fn: str = "",
        flags: int = 0,
        version: int = 0,
        base: int = 0,
    ) -> None:
        """Look at an event that somebody may be waiting for; the turn is held."""
        present = self.present
        present.kind = kind
        present.index = self.recorder.count - 1 if index < 0 else index
        present.site, present.name, present.told, present.tensors = site, name, told, tensors
        present.gradients, present.inputs, present.node, present.grad_fn = gradients, inputs, node, grad_fn
        present.flags, present.version, present.base = flags, version, base
        if self._remembers[kind]:
            present.remember()
        for number, condition in self._tests[kind]:
            if condition.holds(present):
                self._due_at(present.index, self._reason(number))

    def _reason(self, number: int) -> str:
        return f"breakpoint {number}: {self.breakpoints.by_number[number].text}" if number else ""

    def _look(self, arrays: Sequence[np.ndarray | None], index: int = -1) -> None:
        """Stop at the first NaN and the first infinity; the turn is held."""
        for values in arrays:
            if values is None or is_finite(values):
                continue
            for name, test in _BAD_TESTS.items():
                if name in self.unseen and test(values).any():
                    self.unseen.discard(name)
                    self._due_at(self.recorder.count - 1 if index < 0 else index, f"the first {name}")
            self.looking = bool(self.unseen)

    def _due_at(self, index: int, reason: str) -> None:
        """Stop as soon as all is known of this event."""
        self.reasons.append((index, reason))
        self.stop_at = 0

    def _due(self) -> None:
        """Something is due: a breakpoint was met, a step has been made, Ctrl-C was typed, the script has to end."""
        if self.quitting:
            if get_ident() not in self._told_to_quit:
                self._quit()
            return
        reasons, self.reasons = self.reasons, []
        if self.recorder.count >= self.target:
            reasons.append((self.target - 1, ""))
        if self.interrupted:
            reasons.append((self.recorder.count - 1, "paused by Ctrl-C"))
        if reasons:
            index = min(at for at, _ in reasons)
            self.stop(index, [reason for at, reason in reasons if at == index])

    def stop(self, index: int, reasons: list[str]) -> None:
        """Pause the script; the turn is held."""
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
        """Stop at nothing any more."""
        self.target = self.stop_at = _NEVER
        self.looking = self.interrupted = False
        self.attend = [False] * len(self.attend)

    def end(self) -> None:
        """End the script: each thread at its next event."""
        self.let_go()
        self.quitting = True
        self.stop_at = 0
        main = threading.main_thread()
        if threading.current_thread() is not main and main.ident and hasattr(signal, "pthread_kill"):
            signal.pthread_kill(main.ident, signal.SIGINT)  # it may be waiting for something that never comes

    def _quit(self) -> None:
        self._told_to_quit.add(get_ident())
        raise SystemExit(0)  # of which threads make no fuss

    # --- forward

    def tensor(self, number: int, array: np.ndarray, flags: int, how: str, base: int, version: int) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.tensor(number, array, flags, how, base, version)
            if self.attend[Kind.TENSOR]:
                self._happened(
                    Kind.TENSOR,
                    site=recorder.site,
                    name=how,
                    tensors=(number,),
                    told=((number, array),),
                    base=base,
                )
            if self.looking:
                self._look((array,))
            if recorder.count >= self.stop_at:
                self._due()

    def op(
        self,
        name: str,
        arrays: Sequence[np.ndarray | None],
        flags: int,
        args: str,
        node: int,
        grad_fn: str,
        links: tuple[int, ...],
    ) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.op(name, arrays, flags, args, node, grad_fn, links)
            if self.attend[_OP] and (self.op_names is None or name in self.op_names):
                start = 3 + links[0]
                outputs = links[start : start + links[1]]
                told = (
                    ((outputs[0], arrays[0]),) if links[1] == 1 else tuple(zip(outputs, arrays, strict=False))
                )
                self._happened(
                    Kind.OP, -1, recorder.site, name, told, outputs, (), links[3:start], node, grad_fn, flags
                )
            if self.looking and not (
                len(arrays) == 1
                and (array := arrays[0]) is not None
                and array.dtype in _PLAIN
                and isfinite(_vdot(array, array))
            ):
                self._look(arrays)
            if recorder.count >= self.stop_at:
                self._due()

    def mutated(
        self, number: int, array: np.ndarray, flags: int, version: int, how: str, source: int
    ) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.mutated(number, array, flags, version, how, source)
            if self.attend[Kind.MUTATED]:
                self._happened(
                    Kind.MUTATED,
                    site=recorder.site,
                    name=how,
                    tensors=(number,),
                    told=((number, array),),
                    version=version,
                    inputs=(source,),
                )
            if self.looking:
                self._look((array,))
            if recorder.count >= self.stop_at:
                self._due()

    def requires_grad_changed(self, number: int, flags: int) -> None:
        with self.turn:
            self.recorder.requires_grad_changed(number, flags)
            self._after(Kind.REQUIRES_GRAD_CHANGED, site=self.recorder.site, tensors=(number,))

    def grad_assigned(self, number: int, grad: int) -> None:
        with self.turn:
            self.recorder.grad_assigned(number, grad)
            self._grad_is(number, grad)
            self._after(Kind.GRAD_ASSIGNED, site=self.recorder.site, tensors=(number,), gradients=(grad,))

    def _grad_is(self, number: int, grad: int) -> None:
        grads = self.present.grads
        self.present.grad_before = grads.get(number, 0)
        grads[number] = grad

    def _after(self, kind: Kind, **parts: Any) -> None:
        if self.attend[kind]:
            self._happened(kind, **parts)
        if self.recorder.count >= self.stop_at:
            self._due()

    def named(self, number: int, name: str) -> None:
        with self.turn:
            self.recorder.named(number, name)
            self.present.parameters[number] = name
            self._after(Kind.NAMED, name=name, tensors=(number,))

    def scope_entered(self, scope: int, kind: str, name: str) -> None:
        with self.turn:
            self.recorder.scope_entered(scope, kind, name)
            self.present.nest().append((0, name))
            self._after(Kind.SCOPE_ENTERED, site=self.recorder.site, name=name)

    def scope_left(self, scope: int) -> None:
        with self.turn:
            self.recorder.scope_left(scope)
            try:
                self._after(Kind.SCOPE_LEFT)
            finally:
                if nest := self.present.nest():
                    nest.pop()

    def tangent(self, number: int, tangent: int, array: np.ndarray, how: str) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.tangent(number, tangent, array, how)
            if self.looking:
                self._look((array,))
            self._after(
                Kind.TANGENT, site=recorder.site, name=how, tensors=(number,), told=((tangent, array),)
            )

    def stepped(self, optimizer: str, args: str, parameters: Sequence[int]) -> None:
        with self.turn:
            self.recorder.stepped(optimizer, args, parameters)
            self._after(Kind.STEPPED, site=self.recorder.site, name=optimizer)

    # --- backward

    def pass_began(
        self,
        number: int,
        how: str,
        roots: Sequence[int],
        root_tensors: Sequence[int],
        gradients: Sequence[int],
        arrays: Sequence[np.ndarray],
        inputs: Sequence[int],
        retain_graph: bool,
        create_graph: bool,
    ) -> None:
        recorder, present = self.recorder, self.present
        with self.turn:
            self._told_to_quit.discard(get_ident())  # a script that has caught one ends at the next
            recorder.pass_began(
                number, how, roots, root_tensors, gradients, arrays, inputs, retain_graph, create_graph
            )
            own = self._numbers[number] = recorder.passes_begun
            present.open_passes.append(own)
            present.nest().append((own, ""))
            self._after(Kind.PASS_BEGAN, site=recorder.site, name=how)

    def received(
        self, node: int, grad_fn: str, gradients: Sequence[int], arrays: Sequence[np.ndarray | None]
    ) -> None:
        with self.turn:
            self.recorder.received(node, grad_fn, gradients, arrays)
            self._received(node, grad_fn, gradients, arrays, -1)
            if self.recorder.count >= self.stop_at:
                self._due()

    def _received(
        self,
        node: int,
        grad_fn: str,
        gradients: Sequence[int],
        arrays: Sequence[np.ndarray | None],
        index: int,
    ) -> None:
        if self.attend[_RECEIVED]:
            self._happened(
                Kind.RECEIVED,
                index,
                name=grad_fn,
                grad_fn=grad_fn,
                node=node,
                gradients=gradients,
                told=tuple(zip(gradients, arrays, strict=False)),
            )
        if self.looking:
            self._look(arrays, index)

    def produced(
        self,
        node: int,
        targets: Sequence[int],
        gradients: Sequence[int],
        arrays: Sequence[np.ndarray | None],
    ) -> None:
        with self.turn:
            self.recorder.produced(node, targets, gradients, arrays)
            self._produced(node, gradients, arrays)

    def _produced(self, node: int, gradients: Sequence[int], arrays: Sequence[np.ndarray | None]) -> None:
        if self.attend[_PRODUCED]:
            self._happened(
                Kind.PRODUCED,
                node=node,
                gradients=gradients,
                told=tuple(zip(gradients, arrays, strict=False)),
            )
        if self.looking:
            self._look(arrays)
        if self.recorder.count >= self.stop_at:
            self._due()

    def ran(
        self,
        node: int,
        grad_fn: str,
        links: tuple[int, ...],
        array: np.ndarray | None,
        arrays: Sequence[np.ndarray | None],
    ) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.ran(node, grad_fn, links, array, arrays)
            if self.attend[_RECEIVED] or (self.looking and array is not None):
                self._received(node, grad_fn, links[:1], (array,), recorder.count - 2)
            self._produced(node, links[1 + len(arrays) :], arrays)

    def accumulated(
        self, number: int, node: int, gradient: int, grad: int, array: np.ndarray, version: int
    ) -> None:
        recorder = self.recorder
        with self.turn:
            recorder.accumulated(number, node, gradient, grad, array, version)
            self._grad_is(number, grad)
            told = ((grad, array),) if version or grad != gradient else ()
            if told and self.looking:
                self._look((array,))
            self._after(Kind.ACCUMULATED, tensors=(number,), gradients=(grad,), told=told)

    def retained(self, number: int, node: int, grad: int) -> None:
        with self.turn:
            self.recorder.retained(number, node, grad)
            self._grad_is(number, grad)
            self._after(Kind.RETAINED, tensors=(number,), gradients=(grad,))

    def hooked(self, number: int, node: int, hook: str, before: int, after: int, array: np.ndarray) -> None:
        with self.turn:
            self.recorder.hooked(number, node, hook, before, after, array)
            if self.looking:
                self._look((array,))
            self._after(Kind.HOOKED, name=hook, tensors=(number,), gradients=(after,), told=((after, array),))

    def pass_ended(self, number: int) -> None:
        present = self.present
        with self.turn:
            self.recorder.pass_ended(number)
            own = self._numbers.pop(number, 0)
            try:
                self._after(Kind.PASS_ENDED)
            finally:
                if own in present.open_passes:
                    present.open_passes.remove(own)
                if (own, "") in (nest := present.nest()):
                    nest.remove((own, ""))

    def error(self, kind: str, message: str, node: int, raised: TracebackType | None = None) -> None:
        with self.turn:
            self.recorder.error(kind, message, node, raised)
            self.error_told = (kind, message)
            if self.attend[Kind.ERROR]:
                self._happened(Kind.ERROR, site=self.recorder.site, name=kind, node=node)
            why = "an error in a backward pass" if raised is None else "this error ends the script"
            self._due_at(self.recorder.count - 1, why)
            self._due()


_OP, _RECEIVED, _PRODUCED = int(Kind.OP), int(Kind.RECEIVED), int(Kind.PRODUCED)
_BAD_TESTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"NaN": np.isnan, "infinity": np.isinf}
_PLAIN = frozenset((np.dtype(np.float32), np.dtype(np.float64)))
_vdot = np.vdot
