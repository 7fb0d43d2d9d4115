"""The recorder of PyTorch: what is switched on while somebody listens, and off again without a trace."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import torch
from torch.autograd import Function
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler

from gradviz.events.kinds import COMPILED
from gradviz.events.listener import Listener
from gradviz.events.numbers import next_scope_number
from gradviz.sources.on_import import OnImport
from gradviz.sources.torch_recorder import collectives, values
from gradviz.sources.torch_recorder.again import Calls
from gradviz.sources.torch_recorder.arguments import outputs_of, tensors_in
from gradviz.sources.torch_recorder.capturing import Captures
from gradviz.sources.torch_recorder.collectives import Collectives
from gradviz.sources.torch_recorder.compiling import compiling, is_compiled, prepare_dynamo
from gradviz.sources.torch_recorder.engine import watched
from gradviz.sources.torch_recorder.fetching import FETCHER
from gradviz.sources.torch_recorder.forward import Forward
from gradviz.sources.torch_recorder.functions import ComparedFunctions
from gradviz.sources.torch_recorder.identity import version_of
from gradviz.sources.torch_recorder.kernels import Kernels
from gradviz.sources.torch_recorder.modules import Scopes
from gradviz.sources.torch_recorder.places import Places
from gradviz.sources.torch_recorder.source import Source, safely
from gradviz.sources.torch_recorder.training import Training

_overrides: Any = torch.overrides


class TorchRecorder:
    """Tells `listener` of what PyTorch does, from `begin` to `end`; with `aten` also of the ops that ops are made of,
    with `check_functions` also of how custom Functions compare with finite differences."""

    def __init__(self, listener: Listener, aten: bool = False, check_functions: bool = False) -> None:
        values.register()
        self.source = Source(listener)
        self.kernels: Any = Kernels(self.source) if aten else None
        self.forward = Forward(self.source)
        self.collectives = Collectives(self.source)
        self.scopes = Scopes(self.source, self.opaque, self.collectives.note)
        self.training = Training(self.source, self.pause, self.go_on, self.paused)
        self.source.pause, self.source.go_on = self.pause, self.go_on
        self.places = Places()
        self.replaced: list[tuple[Any, str, Any]] = []  # what stood there before
        self.dynamo = OnImport("torch._dynamo", prepare_dynamo, self._as_before)
        self.calls: Calls | None = None
        self.compared = ComparedFunctions(self.source) if check_functions else None
        self.left_out_before = FETCHER.left_out

    def keep_calls(self, calls: Calls) -> Calls:
        """Keep the calls from now on, so that they can run again."""
        self.calls = calls
        calls.follow(self.forward.ways)
        return calls

    def begin(self) -> None:
        """Switch on."""
        self.dynamo.begin()
        self.training.begin()
        self.places.begin()
        self._replace_all()
        self.push()
        if self.kernels is not None:
            self.kernels.__enter__()

    def end(self) -> None:
        """Switch off."""
        if self.source.listener is not None:
            self.source.identity.tell_pending()
        self.source.listener = None
        self.take_out()
        if self.kernels is not None:
            self.kernels.leave()
        self.dynamo.end()
        self._put_back()
        self.places.end()
        self.training.end()

    def left_out(self) -> int:
        """How many values had no device memory since this recorder was made."""
        return FETCHER.left_out - self.left_out_before

    def abandon(self) -> None:
        """Tell nobody any more; a child process does so."""
        self.source.listener = None

    # --- the mode of a thread

    def push(self, below: int | None = None) -> None:
        """Watch the calls of this thread: with only so many modes of the program below ours, if it says how many."""
        above = []
        while below is not None and torch._C._len_torch_function_stack() > below:
            above.append(_overrides._pop_mode())
        _overrides._push_mode(self.forward)
        for mode in reversed(above):
            _overrides._push_mode(mode)

    def take_out(self) -> int:
        """Watch the calls of this thread no longer. Returns how many modes were below ours."""
        above = []
        while torch._C._len_torch_function_stack():
            mode = _overrides._pop_mode()
            if mode is self.forward:
                break
            above.append(mode)
        below: int = torch._C._len_torch_function_stack()
        for mode in reversed(above):
            _overrides._push_mode(mode)
        return below

    def is_on(self) -> bool:
        """Whether the calls of this thread are watched."""
        count = torch._C._len_torch_function_stack()
        return any(torch._C._get_function_stack_at(at) is self.forward for at in reversed(range(count)))

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch the calls of this thread: inside a call that is watched already it is off."""
        if self.is_on():
            yield
            return
        thread = self.source.thread
        unseen, thread.unseen = thread.unseen, False
        self.push()
        try:
            yield
        finally:
            thread.unseen = unseen
            self.take_out()

    def pause(self) -> None:
        """PyTorch works on its own account until `go_on`."""
        if self.is_on():
            self.source.thread.below = self.take_out()

    def go_on(self) -> None:
        """...and does so no longer."""
        thread = self.source.thread
        if not (thread.unseen or self.is_on()) and self.source.listener is not None:
            self.push(thread.below)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """PyTorch works on its own account inside."""
        was_on = self.is_on()
        self.pause()
        try:
            yield
        finally:
            if was_on:
                self.go_on()

    # --- what has no hook

    def _replace_all(self) -> None:
        engine = torch.autograd.graph._engine_run_backward
        seen = watched(self.source, engine, self.on, self.collectives)
        self._replace(torch.autograd.graph, "_engine_run_backward", seen)
        self._replace(torch.autograd, "_engine_run_backward", seen)
        self._replace(Function, "apply", classmethod(self._applying(Function.__dict__["apply"].__func__)))
        self._replace(type(torch.nn.Parameter), "__call__", self._making_parameters())
        self._replace(torch, "from_numpy", self._taking(torch.from_numpy))
        self._replace(torch, "compile", compiling(self.source, self.opaque, torch.compile))
        self._replace(_overrides, "has_torch_function", self._asking(_overrides.has_torch_function))
        self._replace(threading.Thread, "_bootstrap_inner", self._starting())
        self._replace(torch.nn.Module, "__call__", self.scopes.calling(torch.nn.Module.__call__))
        for name, call in Captures(self.source).calls().items():
            self._replace(torch.cuda.CUDAGraph, name, call)
        for name, call in [*self.collectives.calls()]:
            for module in collectives.modules():
                self._replace(module, name, call)
        for owner in (Optimizer, torch.nn.Module):
            self._replace(owner, "zero_grad", self.training.clearing(owner.__dict__["zero_grad"]))
        for name in ("__init__", "add_param_group"):
            self._replace(Optimizer, name, self.training.holding(getattr(Optimizer, name)))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            seen = self.training.clipping(getattr(clip_grad, name))
            for module in (clip_grad, torch.nn.utils):
                self._replace(module, name, seen)
        for scheduler in vars(lr_scheduler).values():
            if isinstance(scheduler, type) and "step" in vars(scheduler):
                self._replace(scheduler, "step", self.training.scheduling(vars(scheduler)["step"]))

    def _replace(self, owner: Any, name: str, new: Any) -> None:
        self.replaced.append((owner, name, vars(owner).get(name)))
        setattr(owner, name, new)

    def _put_back(self) -> list[tuple[Any, str, Any]]:
        """Put PyTorch's own functions back; returns what took their place."""
        taken_out = [(owner, name, vars(owner)[name]) for owner, name, _ in self.replaced]
        while self.replaced:
            owner, name, before = self.replaced.pop()
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return taken_out

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        """PyTorch's own functions are in their places inside."""
        taken_out = self._put_back()
        try:
            yield
        finally:
            for owner, name, ours in taken_out:
                self._replace(owner, name, ours)

    def _starting(self) -> Callable[[threading.Thread], None]:
        """A thread begins with its calls watched."""
        bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def run(thread: threading.Thread) -> None:
            if self.source.listener is None:
                bootstrap(thread)
                return
            self.push()
            try:
                with self.kernels or nullcontext():
                    bootstrap(thread)
            finally:
                self.take_out()

        return run

    def _asking(self, has_torch_function: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """`has_torch_function`, which layers ask whether they may take a fast path. Our mode is none against it."""

        def ask(relevant_args: Any) -> bool:
            if not self.source.is_off and torch._C._len_torch_function_stack() == 1 and self.is_on():
                return any(_is_overloaded(type(one)) for one in relevant_args)
            return has_torch_function(relevant_args)

        return ask

    def _taking(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """`from_numpy`, which no mode hears of."""

        @functools.wraps(make)
        def run(array: Any) -> Any:
            made = make(array)
            if not self.source.is_off and self.source.is_detailed:
                self.forward._made("from_numpy", [made], sys._getframe(1))
            return made

        return run

    def _making_parameters(self) -> Callable[..., Any]:
        """The call of a class of parameters: what it makes is told of once it may be filled."""

        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = type.__call__(cls, *args, **kwargs)
            source = self.source
            if not source.is_off and type(made) is torch.nn.Parameter:
                with torch._C.DisableTorchFunction():
                    identity = source.identity
                    data = identity.known.get(id(args[0])) if args else None
                    if id(made) not in identity.known:
                        known = data is not None and not identity.is_pending(args[0])
                        of = data.number if known and data is not None else 0
                        identity.put_off(made, source.place(sys._getframe(1)), "Parameter", of)
            return made

        return call

    def _applying(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """`apply` of custom Functions: the call of one is a scope and an op."""

        def run(cls: Any, *args: Any, **kwargs: Any) -> Any:
            source = self.source
            if source.is_off or source.thread.unseen:
                return apply(cls, *args, **kwargs)
            frame = sys._getframe(1)
            if is_compiled(cls):
                return self.opaque(functools.partial(apply, cls), args, kwargs, frame)
            source.identity.tell_pending()
            number = next_scope_number()
            listener: Any = source.listener
            listener.scope_entered(frame, number, "function", cls.__name__, cls.__name__)

            def inside(*args: Any, **kwargs: Any) -> Any:
                try:
                    return apply(cls, *args, **kwargs)
                finally:
                    if source.listener is not None:
                        source.listener.scope_left(number)

            if not source.is_detailed:
                return inside(*args, **kwargs)
            compared = self.compared
            call = None if compared is None else compared.kept(cls, args)
            result = self._as_one_op(cls.__name__, inside, args, kwargs, frame)
            if call is not None and compared is not None:
                compared.made(call, result)
            if self.calls is not None:
                self.calls.note(cls.apply, args, kwargs, result)
            return result

        return run

    def opaque(self, call: Callable[..., Any], args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Call what cannot be seen into, a compiled function, and tell of it as one op, and of all that it wrote over:
        in it optimizers step unseen."""
        thread = self.source.thread
        if thread.unseen:
            return call(*args, **kwargs)

        def inside(*args: Any, **kwargs: Any) -> Any:
            with self.paused():
                thread.unseen = True
                try:
                    return call(*args, **kwargs)
                finally:
                    thread.unseen = False

        if not self.source.is_detailed:
            return inside(*args, **kwargs)
        before = set(map(id, self.source.identity.written_over()))
        try:
            return self._as_one_op(COMPILED, inside, args, kwargs, frame)
        finally:
            self._tell_written_over(before, frame)

    @safely
    def _tell_written_over(self, before: set[int], frame: FrameType) -> None:
        """Tell of the tensors that compiled code has written over, but for those of `before`."""
        source = self.source
        if source.listener is None:
            return
        identity = source.identity
        with torch._C.DisableTorchFunction():
            written = [tensor for tensor in identity.written_over() if id(tensor) not in before]
            states = [identity.state_of(tensor) for tensor in written]
            if states:
                values.READER.recent.clear()
                source.listener.all_mutated(frame, COMPILED, states, source.in_pass)

    def _as_one_op(
        self, name: str, call: Callable[..., Any], args: Any, kwargs: Any, frame: FrameType
    ) -> Any:
        identity = self.source.identity
        with torch._C.DisableTorchFunction():
            inputs = tensors_in(args, kwargs)
            identity.tell_pending()
            for tensor in inputs:
                identity.number_of(tensor, frame)
            before = [version_of(tensor) for tensor in inputs]
        result = call(*args, **kwargs)
        outputs = outputs_of(result)
        if outputs and self.source.listener is not None:
            with torch._C.DisableTorchFunction():
                leaves = identity.unseen_leaves(outputs, inputs)
                inputs, before = [*inputs, *leaves], [*before, *map(version_of, leaves)]
                self.forward._tell(name, (), {}, inputs, before, outputs, frame)
        return result


def _is_overloaded(cls: type) -> bool:
    """Whether a class of tensors has a `__torch_function__` of its own."""
    own = getattr(cls, "__torch_function__", None)
    plain = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return own is not None and cls is not torch.Tensor and own not in plain
