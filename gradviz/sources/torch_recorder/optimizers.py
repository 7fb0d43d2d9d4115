"""Training: the steps of optimizers and schedulers, and the clearing of gradients. The ops inside an optimizer are
not emitted; only its step, and its parameters afterwards."""

import functools
import json
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from types import FrameType, GeneratorType
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer

from gradviz.events.counters import next_optimizer_number
from gradviz.events.field_types import Group
from gradviz.events.handles import Changed
from gradviz.events.holders import tensor_paths
from gradviz.events.listener import State, Where
from gradviz.events.settings_text import SettingsText
from gradviz.events.values import SMALL
from gradviz.sources.torch_recorder.known_things import is_leaf
from gradviz.sources.torch_recorder.pytorchs_own import numel
from gradviz.sources.torch_recorder.resting import Resting
from gradviz.sources.torch_recorder.shared import Source, safely, users_frame
from gradviz.sources.torch_recorder.step_changes import Change, Copies, StepChanges, later
from gradviz.sources.torch_recorder.tensor_values import PLAIN, READER
from gradviz.sources.torch_recorder.watching import Watching

# the parameters, and settings that affect only the speed
_LEFT_OUT = {"params", "param_names", "capturable", "differentiable", "foreach", "fused"}


class Training:
    """Emits the work of optimizers by their global hooks."""

    def __init__(self, source: Source, watching: Watching, resting: Resting) -> None:
        self.source, self.watching, self.resting = source, watching, resting
        self.changes = StepChanges()
        # the parameters that a step changes while nothing is watched, and their copies
        self.unwatched: weakref.WeakKeyDictionary[Any, tuple[list[torch.Tensor], Copies]] = weakref.WeakKeyDictionary()
        self.numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.recorded: weakref.WeakKeyDictionary[Any, list[int]] = weakref.WeakKeyDictionary()
        self.handles: list[Any] = []

    def begin(self) -> None:
        """Register the hooks."""
        self.handles.append(torch_optimizer.register_optimizer_step_pre_hook(self._before))
        self.handles.append(torch_optimizer.register_optimizer_step_post_hook(self._after))

    def end(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def number_of(self, optimizer: Any) -> int:
        """An optimizer's number."""
        known = self.numbers.get(optimizer)
        if known is None:
            known = self.numbers[optimizer] = next_optimizer_number()
        return known

    # --- what an optimizer holds

    def holding(self, change: Callable[..., None]) -> Callable[..., None]:
        """The replacement of the optimizers' `__init__` or `add_param_group`, which emits the change. The first calls
        the second."""

        @functools.wraps(change)
        def run(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            change(optimizer, *args, **kwargs)
            if not self.source.is_off:
                self._tell_change(optimizer, change.__name__ == "__init__", sys._getframe(1))

        return run

    @safely
    def _tell_change(self, optimizer: Any, is_made: bool, caller: FrameType) -> None:
        if is_made or optimizer in self.recorded:
            frame = users_frame(caller)
            self.tell_held(optimizer, None if frame is None else self.source.place(frame))

    @safely
    def tell_held(self, optimizer: Any, where: Where) -> None:
        """Emit the parameters that an optimizer holds, if they have changed."""
        held = parameters_of(optimizer)
        identities = [id(parameter) for parameter in held]
        if identities == self.recorded.get(optimizer):
            return
        self.recorded[optimizer] = identities
        source = self.source
        with torch._C.DisableTorchFunction():
            source.identity.tell_pending()
            numbers = [source.identity.number_of(parameter) for parameter in held]
        groups = [Group(_as_json(_settings(group)), len(group["params"])) for group in optimizer.param_groups]
        source.listener.holds(where, self.number_of(optimizer), type(optimizer).__name__, groups, numbers)
        for at, path in tensor_paths(held, sys._getframe()):
            source.listener.named(numbers[at], path, "")

    # --- a step

    @safely
    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source = self.source
        if source.is_off:
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        is_summed = self.resting.stepping(optimizer, closure is not None)
        self.unwatched.pop(optimizer, None)  # of a step that raised
        frame = users_frame(sys._getframe())
        if self.resting.is_on:
            self._tell_unwatched(optimizer, frame)
            if is_summed:
                self._copy(optimizer)
            return None
        source.recover()
        running = sys._getframe(2)  # PyTorch's frame, below that of `safely`
        step = _Step(self, optimizer, frame, running)
        source.thread.stepping = step
        self.watching.pause()
        if source.listener is not None and (source.listener.wants_changes or is_summed):
            step.keep_parameters(closure is not None, is_summed)
        step.note_written()
        if closure is None:
            step.tell()
            return None
        seen = step.with_closure(closure)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": seen}
        return (args[0], seen, *args[2:]), kwargs

    def _tell_unwatched(self, optimizer: Any, frame: FrameType | None) -> None:
        """Emit a step of which nothing else is known but the settings, such as the rate."""
        groups = [Group(_as_json(_settings(group)), 0) for group in optimizer.param_groups]
        number, name = self.number_of(optimizer), type(optimizer).__name__
        self.source.listener.stepped(frame, number, name, time.time(), groups, ())

    def _copy(self, optimizer: Any) -> None:
        """Copy the parameters that an unwatched step will change."""
        with torch._C.DisableTorchFunction():
            parameters = [parameter for parameter in parameters_of(optimizer) if parameter.grad is not None]
            if not PLAIN.issuperset(map(type, parameters)):
                return
            copies = self.changes.before(optimizer, parameters, is_summed=True)
        if copies is not None:
            self.unwatched[optimizer] = parameters, copies

    @safely
    def _after(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step, self.source.thread.stepping = self.source.thread.stepping, None
        if step is None:
            parameters, copies = self.unwatched.pop(optimizer, ((), None))
            if copies is not None:
                with torch._C.DisableTorchFunction():
                    changes = self.changes.after(optimizer, parameters, copies)
                self.resting.numbers.stepped(self.number_of(optimizer), parameters, changes)
            return
        # this frame has a closure that has the step: a cycle, which keeps the graph of the loss
        del step.running
        self.watching.go_on()
        if self.source.listener is not None:
            step.tell()
            step.tell_results()

    # --- gradients cleared, schedulers

    def clearing(self, zero_grad: Callable[..., None]) -> Callable[..., None]:
        """The replacement of `zero_grad` of an optimizer or a module, which emits the clearing."""

        @functools.wraps(zero_grad)
        def run(owner: Any, set_to_none: bool = True) -> None:
            source = self.source
            if source.is_off:
                zero_grad(owner, set_to_none)
                return
            source.recover()
            # this function's own frame, in a variable, would live until garbage is collected
            frame = sys._getframe(1)
            cleared = self._tell_cleared(owner, set_to_none, frame)
            with self.watching.paused():
                zero_grad(owner, set_to_none)
            if cleared is not None and source.listener is not None:
                self._tell_dropped(*cleared, set_to_none, frame)

        return run

    @safely
    def _tell_cleared(
        self, owner: Any, set_to_none: bool, frame: FrameType
    ) -> tuple[list[int], list[torch.Tensor | None]]:
        """Emit that gradients are cleared. Returns the numbers of their leaves, and the gradients that become zero."""
        identity = self.source.identity
        with torch._C.DisableTorchFunction():
            identity.tell_pending()
            cleared = [p for p in parameters_of(owner) if p.grad is not None]
            numbers = [identity.number_of(p) for p in cleared]
            grads = [] if set_to_none else [p.grad for p in cleared]
        self.source.listener.grads_cleared(frame, type(owner).__name__, set_to_none, numbers)
        return numbers, grads

    @safely
    def _tell_dropped(
        self, numbers: list[int], grads: list[torch.Tensor | None], set_to_none: bool, frame: FrameType
    ) -> None:
        """Emit the new state of gradients that were cleared."""
        source = self.source
        listener = source.listener
        with torch._C.DisableTorchFunction():
            if set_to_none:
                listener.grads_dropped(frame, numbers)
            if states := [source.identity.state_of(grad) for grad in grads if grad is not None]:
                listener.all_mutated(frame, "zero_", states, source.in_pass)

    def clipping(self, clip: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of a function that clips gradients, which emits the clipping."""

        @functools.wraps(clip)
        def run(parameters: Any, *args: Any, **kwargs: Any) -> Any:
            if self.source.is_off:
                return clip(parameters, *args, **kwargs)
            listed = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            self._tell_clipped(clip.__name__, listed, sys._getframe(1))
            # PyTorch warns of a generator that is empty, and of no list
            given = (one for one in listed) if isinstance(parameters, GeneratorType) else listed
            return clip(given, *args, **kwargs)

        return run

    @safely
    def _tell_clipped(self, how: str, parameters: Sequence[torch.Tensor], frame: FrameType) -> None:
        source = self.source
        with torch._C.DisableTorchFunction():
            source.identity.tell_pending()
            numbers = [source.identity.number_of(p) for p in parameters if p.grad is not None]
        source.listener.clipped(frame, how, numbers)

    def scheduling(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of the `step` of a scheduler, which emits the step."""

        @functools.wraps(step)
        def run(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            result = step(scheduler, *args, **kwargs)
            if not self.source.is_off:
                self._tell_schedule(scheduler, sys._getframe())
            return result

        return run

    @safely
    def _tell_schedule(self, scheduler: Any, frame: FrameType) -> None:
        optimizer = getattr(scheduler, "optimizer", None)
        groups = getattr(optimizer, "param_groups", ())
        rates, epoch = json.dumps([float(group["lr"]) for group in groups]), max(0, int(scheduler.last_epoch))
        number = 0 if optimizer is None else self.number_of(optimizer)
        self.source.listener.scheduled(frame, number, type(scheduler).__name__, epoch, rates)


class _Step:
    """One step of an optimizer."""

    def __init__(self, training: Training, optimizer: Any, frame: FrameType | None, running: FrameType) -> None:
        self.training, self.optimizer, self.running = training, optimizer, running
        self.source = training.source
        self.where = None if frame is None else self.source.place(frame)
        # the parameters with a gradient, once the step was emitted
        self.parameters: list[torch.Tensor] | None = None
        self.is_in_closure = False
        self.changeable: list[torch.Tensor] = []  # the parameters that the step may change
        self.copies: Copies | None = None  # ...as they were before it
        self.changed: list[Change] = []  # ...and how it changed them
        self.written: set[int] | None = None  # what was written over before the step, where it may write to others

    def keep_parameters(self, has_closure: bool, is_summed: bool) -> None:
        """Copy the parameters that the step may change. Which of them have a gradient is known only after a closure."""
        with torch._C.DisableTorchFunction():
            self.changeable = [
                p for p in parameters_of(self.optimizer) if type(p) in PLAIN and (has_closure or p.grad is not None)
            ]
            self.copies = self.training.changes.before(self.optimizer, self.changeable, is_summed)

    @safely
    def note_written(self) -> None:
        """Note the tensors that were written over before the step, if a parameter is of a class of the program's: the
        tensor that a step changes may be inside it."""
        if not PLAIN.issuperset(map(type, parameters_of(self.optimizer))):
            self.written = set(map(id, self.source.identity.written_over()))

    def with_closure(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure, which belongs to the program: its events are recorded."""

        def run() -> Any:
            self.training.watching.go_on()
            self.is_in_closure = True
            try:
                return closure()
            finally:
                self.is_in_closure = False
                self.training.watching.pause()
                if self.source.listener is not None:
                    self.tell()

        return run

    @safely
    def tell(self) -> None:
        """Emit the step, once."""
        if self.parameters is not None:
            return
        source = self.source
        self.training.tell_held(self.optimizer, self.where)
        with torch._C.DisableTorchFunction():
            source.identity.tell_pending()
            ready = [[p for p in group["params"] if p.grad is not None] for group in self.optimizer.param_groups]
            self.parameters = [parameter for group in ready for parameter in group]
            numbers = [source.identity.number_of(parameter) for parameter in self.parameters]
        groups = [
            Group(_as_json(_settings(group)), len(parameters))
            for group, parameters in zip(self.optimizer.param_groups, ready, strict=True)
        ]
        name = type(self.optimizer).__name__
        source.listener.stepped(self.where, self.training.number_of(self.optimizer), name, time.time(), groups, numbers)

    def _with_changes(self, states: list[State]) -> list[State]:
        """The states of the parameters after the step, with the norms of their changes where they are known."""
        if self.copies is None:
            return states
        self.changed = self.training.changes.after(self.optimizer, self.changeable, self.copies)
        norms = {
            id(parameter): change.norm
            for change in self.changed
            if numel(parameter := self.changeable[change.place]) > SMALL
        }
        listener = self.source.listener
        if not norms or listener is None or not listener.wants_changes:
            return states
        own = [norms.get(id(parameter)) for parameter in self.parameters or ()]
        return [
            state if norm is None else State(state.tensor, Changed(state.value, later(norm)), *state[2:])
            for norm, state in zip(own, states, strict=True)
        ]

    @safely
    def tell_results(self) -> None:
        """Emit the new states of the parameters."""
        name = type(self.optimizer).__name__
        READER.recent.clear()
        with torch._C.DisableTorchFunction():
            states = [self.source.identity.state_of(parameter) for parameter in self.parameters or ()]
            states = self._with_changes(states)
            if self.written is not None:
                written = [one for one in self.source.identity.written_over() if one.requires_grad and is_leaf(one)]
                states += [self.source.identity.state_of(one) for one in written if id(one) not in self.written]
            self.source.listener.all_mutated(self.where, name, states, self.source.in_pass)
        if self.copies is not None and self.copies.is_summed and len(self.changeable) == len(self.parameters or ()):
            number = self.training.number_of(self.optimizer)
            self.training.resting.numbers.stepped(number, self.changeable, self.changed)


def parameters_of(owner: Any) -> list[torch.Tensor]:
    """The parameters of an optimizer or a module."""
    if isinstance(owner, torch.nn.Module):
        return list(owner.parameters())
    return [parameter for group in owner.param_groups for parameter in group["params"]]


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """A group's settings, without its parameters and the settings that affect only the speed."""
    return {
        name: value
        for name, value in group.items()
        if name not in _LEFT_OUT and not (name in ("maximize", "decoupled_weight_decay") and not value)
    }


def _text(value: Any) -> Any:
    """A setting that JSON cannot express, as a value that it can."""
    if isinstance(value, torch.Tensor) and numel(value) == 1 and value.is_cpu:
        return float(value)
    return type(value).__name__


_as_json = SettingsText(_text)
