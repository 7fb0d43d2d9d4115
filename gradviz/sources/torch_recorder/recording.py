"""The recorder of PyTorch: switches on all that watches PyTorch, and off again without leaving a trace."""

import functools
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch.autograd import Function
from torch.nn.modules._functions import BackwardHookFunction
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler

from gradviz.events.counters import next_scope_number
from gradviz.events.kinds import COMPILED
from gradviz.events.listener import Listener
from gradviz.events.values import TRANSFORM, VMAP
from gradviz.sources.on_import import AroundImports, OnImport
from gradviz.sources.torch_needs import optional
from gradviz.sources.torch_recorder import calls, collectives, custom_functions, tensor_values
from gradviz.sources.torch_recorder.arguments import outputs_of, tensors_in
from gradviz.sources.torch_recorder.backward import registering
from gradviz.sources.torch_recorder.collectives import Collectives
from gradviz.sources.torch_recorder.compiling import Captures, called_whole, compiling, is_compiled_node, prepare_dynamo
from gradviz.sources.torch_recorder.custom_functions import ComparedFunctions
from gradviz.sources.torch_recorder.engine import Refusals, watched
from gradviz.sources.torch_recorder.fetching import FETCHER
from gradviz.sources.torch_recorder.forward import Forward
from gradviz.sources.torch_recorder.histograms import Binning, LeafHistograms
from gradviz.sources.torch_recorder.kernels import Kernels, Measured
from gradviz.sources.torch_recorder.known_things import version_of
from gradviz.sources.torch_recorder.module_scopes import Scopes
from gradviz.sources.torch_recorder.optimizers import Training
from gradviz.sources.torch_recorder.pass_numbers import PassNumbers
from gradviz.sources.torch_recorder.replayable import Calls
from gradviz.sources.torch_recorder.resting import Resting
from gradviz.sources.torch_recorder.shared import OURS, Source, safely, users_frame
from gradviz.sources.torch_recorder.watching import Replaced, Watching
from gradviz.sources.tracebacks import HANDED_ON, hiding

_overrides: Any = torch.overrides
# The functions that give results of a transform to the program, and what these stand for.
_LEAVING = (
    ("_functorch.eager_transforms", "_unwrap_for_grad", TRANSFORM),
    ("_functorch.vmap", "_remove_batch_dim", VMAP),
)


class TorchRecorder:
    """Emits to `listener` what PyTorch does, from `begin` to `end`; with `aten` also the ops that ops are made of,
    with `check_functions` also the comparison of custom Functions with finite differences, with `profile` also the
    costs of ops, with `histograms` also the distribution of elements."""

    def __init__(
        self,
        listener: Listener,
        failed: Callable[[str], None],
        aten: bool = False,
        check_functions: bool = False,
        profile: bool = False,
        histograms: bool = False,
    ) -> None:
        tensor_values.register()
        self.source = Source(listener, failed)
        self.source.is_profiled = profile
        below: tuple[tuple[Any, bool], ...] = (Measured, profile), (Kernels, aten)  # the lowest first
        self.below_autograd = [mode(self.source) for mode, is_asked_for in below if is_asked_for]
        self.forward = Forward(self.source)
        self.collectives = Collectives(self.source)
        self.forward.ways[calls.EXCHANGE] = self.collectives.exchanging
        self.watching = watching = Watching(self.source, self.forward)
        self.replaced, self.replaced_in_detail = Replaced(self.source), Replaced(self.source)
        self.resting = Resting(self.source, watching, self.replaced_in_detail, PassNumbers(self.source))
        rests = self.resting.begin_if_due
        self.scopes = Scopes(self.source, self.opaque, self.collectives, rests)
        self.scopes.binning = Binning(self.source) if histograms else None
        self.counting = LeafHistograms(self.source, self.scopes.binning)
        self.scopes.freed = self.counting.freed
        self.training = Training(self.source, watching, self.resting)
        self.source.pause, self.source.go_on = watching.pause, watching.go_on
        self.places = Places(self.source)
        self.switched_on = ExitStack()  # switches off all that is on
        self.imports = AroundImports("torch", watching.paused, watching.is_watched)
        self.dynamo = OnImport("torch._dynamo", self._prepare_dynamo, self._as_before)
        self.calls: Calls | None = None
        self.compared = ComparedFunctions(self.source) if check_functions else None
        self.left_out_before = FETCHER.left_out

    def keep_calls(self, calls: Calls) -> Calls:
        """Keep the calls from now on, so that they can run again."""
        self.calls = calls
        calls.follow(self.forward)
        return calls

    def begin(self) -> None:
        """Switch on. If a part fails, the parts already on are switched off again, and the error is raised."""
        with ExitStack() as stack:
            stack.callback(self.dynamo.end)
            stack.callback(self.imports.end)
            self.imports.begin()
            self.dynamo.begin()  # first, since it looks at PyTorch's own functions
            stack.callback(self.training.end)
            self.training.begin()
            self.places.begin()
            stack.callback(self.places.end)
            stack.callback(self.replaced.put_back)
            stack.callback(self.replaced_in_detail.put_back)
            self._replace_always()
            self._replace_in_detail()
            for mode in self.below_autograd:
                stack.callback(mode.leave)
                mode.__enter__()
            stack.callback(self.watching.take_out)
            self.watching.push()
            self.switched_on = stack.pop_all()

    def end(self) -> None:
        """Switch off. If one part cannot be switched off, the others are switched off all the same."""
        self._tell_last()
        self.source.listener = None
        self.switched_on.close()

    @safely
    def _tell_last(self) -> None:
        if self.source.listener is not None:
            self.source.identity.tell_pending()
            self.resting.numbers.end()
            self.counting.recording_ends()
            self.resting.end()

    @safely
    def left_out(self) -> int:
        """The number of values that were left out for lack of device memory since this recorder was made."""
        return FETCHER.left_out - self.left_out_before

    def abandon(self) -> None:
        """Emit no more events; a child process calls this."""
        self.source.listener = None

    # --- the replacements of functions without a hook

    def _replace_always(self) -> None:
        """Replace what is called seldom, also while nothing is watched."""
        engine = torch.autograd.graph._engine_run_backward
        watching = self.watching.on
        seen = watched(self.source, engine, watching, self.collectives, self.counting, self.resting)
        self.replaced.put(torch.autograd.graph, "_engine_run_backward", seen)
        self.replaced.put(torch.autograd, "_engine_run_backward", seen)
        if (make_gradients := vars(torch.autograd).get("_make_grads")) is not None:
            self.replaced.put(torch.autograd, "_make_grads", Refusals(self.source).making_gradients(make_gradients))
        self.replaced.put(torch, "compile", compiling(self.source, self.opaque, torch.compile))
        scripted = torch.jit.ScriptFunction
        self.replaced.put(scripted, "__call__", called_whole(self.source, self.opaque, scripted.__call__))
        self.replaced.put(threading.Thread, "_bootstrap_inner", self._starting())
        for name, call in Captures(self.source).calls().items():
            self.replaced.put(torch.cuda.CUDAGraph, name, call)
        for scheduler in vars(lr_scheduler).values():
            if isinstance(scheduler, type) and "step" in vars(scheduler):
                seen = self.training.scheduling(vars(scheduler)["step"])
                self.replaced.put(scheduler, "step", seen)

    def _replace_in_detail(self) -> None:
        """Replace what only matters where passes are watched."""
        put = self.replaced_in_detail.put
        if (register := optional(torch, "autograd.Function._register_hook")) is not None:
            put(Function, "_register_hook", staticmethod(registering(register)))
        for owner, name, new in custom_functions.replacements(self.source):
            put(owner, name, new)
        put(Function, "apply", classmethod(self._applying(vars(Function)["apply"])))
        put(type(torch.nn.Parameter), "__call__", self._making(self._put_off))
        for place, name, how in _LEAVING:
            module = optional(torch, place)
            if (unwrap := getattr(module, name, None)) is not None:
                put(module, name, self._leaving(unwrap, how))
        put(torch, "from_numpy", self._taking(torch.from_numpy))
        if (variable := optional(torch, "autograd.Variable")) is not None:
            put(type(variable), "__call__", self._making(self._tell_variable))
        put(_overrides, "has_torch_function", self._asking(_overrides.has_torch_function))
        put(torch.nn.Module, "__call__", self.scopes.calling(torch.nn.Module.__call__))
        for name, call in [*self.collectives.calls()]:
            for module in collectives.modules():
                put(module, name, call)
        for owner in (Optimizer, torch.nn.Module):
            put(owner, "zero_grad", self.training.clearing(owner.__dict__["zero_grad"]))
        for name in ("__init__", "add_param_group"):
            put(Optimizer, name, self.training.holding(getattr(Optimizer, name)))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            seen = self.training.clipping(getattr(clip_grad, name))
            for module in (clip_grad, torch.nn.utils):
                put(module, name, seen)

    @contextmanager
    def _as_before(self) -> Iterator[None]:
        """A context in which PyTorch's own functions are in their places, and its calls are not watched."""
        replaced, in_detail = self.replaced, self.replaced_in_detail
        with replaced.put_back_for_now(), in_detail.put_back_for_now(), self.watching.paused():
            yield

    @safely
    def _prepare_dynamo(self) -> None:
        prepare_dynamo()

    def _starting(self) -> Callable[[threading.Thread], None]:
        """The replacement of a thread's start, which watches the thread's calls."""
        bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def run(thread: threading.Thread) -> None:
            if self.source.listener is None:
                bootstrap(thread)
                return
            with self.watching.on(), ExitStack() as modes:
                for mode in self.below_autograd:
                    modes.enter_context(mode.on())
                bootstrap(thread)

        return run

    def _asking(self, has_torch_function: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """The replacement of `has_torch_function`, by which layers decide whether they may take a fast path. Our mode
        alone does not count."""

        def ask(relevant_args: Any) -> bool:
            if not self.source.is_off and self._is_alone():
                return any(_is_overloaded(type(one)) for one in relevant_args)
            return has_torch_function(relevant_args)

        return ask

    @safely
    def _is_alone(self) -> bool:
        """Whether ours is the only mode of this thread."""
        return torch._C._len_torch_function_stack() == 1 and self.watching.is_on()

    def _taking(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """The replacement of `from_numpy`, which no mode sees."""

        @functools.wraps(make)
        def run(array: Any) -> Any:
            made = make(array)
            if not self.source.is_off and self.source.is_detailed:
                self.forward._made("from_numpy", [made], sys._getframe(1))
            return made

        return run

    def _leaving(self, unwrap: Callable[..., Any], how: str) -> Callable[..., Any]:
        """The replacement of what gives the results of a transform of torch.func to the program."""

        def run(inside: torch.Tensor, *args: Any) -> torch.Tensor:
            result: torch.Tensor = unwrap(inside, *args)
            if result is not inside and not self.source.is_off and self.source.is_detailed:
                self._tell_leaving(inside, result, how)
            return result

        return run

    @safely
    def _tell_leaving(self, inside: torch.Tensor, result: torch.Tensor, how: str) -> None:
        self.source.identity.leave_transform(inside, result, how, users_frame(sys._getframe()))

    def _making(self, tell: Callable[[torch.Tensor, Any, FrameType], None]) -> Callable[..., Any]:
        """The replacement of a call that makes a tensor from data and that no mode sees: of a parameter's class, or of
        `Variable`, which older programs use."""

        def call(cls: Any, *args: Any, **kwargs: Any) -> Any:
            made = type.__call__(cls, *args, **kwargs)
            if not self.source.is_off:
                tell(made, args[0] if args else None, sys._getframe(1))
            return made

        return call

    @safely
    def _tell_variable(self, made: torch.Tensor, data: Any, frame: FrameType) -> None:
        """Tell of a tensor that `Variable` made, on the memory of its data and outside the graph."""
        identity = self.source.identity
        with torch._C.DisableTorchFunction():
            if id(made) in identity.known or not self.source.is_detailed:
                return
            known = identity.known.get(id(data))
            if identity.pending:
                identity.tell_pending()
            identity.announce(made, "Variable", frame, 0 if known is None else known.number)

    @safely
    def _put_off(self, parameter: torch.Tensor, data: Any, frame: FrameType) -> None:
        """Note a new parameter, which is emitted once it may be filled."""
        if not tensor_values.is_plain_parameter(type(parameter)):
            return
        identity = self.source.identity
        with torch._C.DisableTorchFunction():
            if id(parameter) not in identity.known:
                known = identity.known.get(id(data))
                identity.put_off(parameter, self.source.place(frame), "Parameter", 0 if known is None else known.number)

    def _applying(self, own: Any) -> Callable[..., Any]:
        """The replacement of `apply` of custom Functions: a call is a scope and an op. `own` is PyTorch's class
        method, written in Python up to 2.13 and in C from 2.14 on."""

        def run(cls: Any, *args: Any, **kwargs: Any) -> Any:
            source = self.source
            apply = own.__get__(None, cls)
            if source.is_off or source.thread.unseen or self._is_of_operator(cls):
                return apply(*args, **kwargs)
            frame = sys._getframe(1)
            if self._is_compiled(cls):
                return self.opaque(apply, args, kwargs, frame)

            def inside(*args: Any, **kwargs: Any) -> Any:
                try:
                    return apply(*args, **kwargs)
                finally:
                    self._leave_function(scope)

            scope = self._enter_function(cls, frame)
            if not source.is_detailed:
                return inside(*args, **kwargs)
            call = self._kept(cls, args)
            result = self._as_one_op(cls.__name__, inside, args, kwargs, frame)
            self._keep(cls, args, kwargs, call, result)
            if cls is BackwardHookFunction:
                self._handed_on(args, result, frame)
            return result

        return run

    @safely
    def _handed_on(self, args: Any, result: Any, frame: FrameType) -> None:
        self.source.handed_on(args, result if isinstance(result, tuple) else (result,), frame)

    @safely
    def _is_compiled(self, cls: Any) -> bool:
        return is_compiled_node(f"{cls.__name__}Backward") and cls.__module__.startswith("torch.")

    @safely
    def _is_of_operator(self, cls: Any) -> bool:
        """Whether PyTorch made a custom Function for the backward of an operator, whose call is the op."""
        return bool(cls.__module__ == "torch._library.autograd")

    @safely
    def _enter_function(self, cls: Any, frame: FrameType) -> int:
        """Emit that a custom Function is called; returns the number of its scope."""
        self.source.identity.tell_pending()
        number = next_scope_number()
        self.source.listener.scope_entered(frame, number, "function", cls.__name__, cls.__name__)
        return number

    @safely
    def _leave_function(self, scope: int | None) -> None:
        if self.source.listener is not None and scope is not None:
            self.source.listener.scope_left(scope)

    @safely
    def _kept(self, cls: Any, args: Any) -> Any:
        """A copy of the call of a custom Function that is compared with finite differences; None if it is not
        compared."""
        return None if self.compared is None else self.compared.kept(cls, args)

    @safely
    def _keep(self, cls: Any, args: Any, kwargs: Any, call: Any, result: Any) -> None:
        """Keep the call of a custom Function, if it is compared or may run again."""
        if call is not None and self.compared is not None:
            self.compared.made(call, result)
        if self.calls is not None:
            self.calls.note(cls.apply, "apply", args, kwargs, result)

    def opaque(self, call: Callable[..., Any], args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Call a compiled function, which cannot be seen into. Emit it as one op, together with all tensors that it
        wrote to: inside, optimizers step unseen."""
        thread = self.source.thread
        if thread.unseen:
            return call(*args, **kwargs)

        def inside(*args: Any, **kwargs: Any) -> Any:
            with self.watching.paused():
                thread.unseen = True
                try:
                    return call(*args, **kwargs)
                finally:
                    thread.unseen = False

        if not self.source.is_detailed:
            return inside(*args, **kwargs)
        before = self._written_over()
        try:
            return self._as_one_op(COMPILED, inside, args, kwargs, frame)
        finally:
            self._tell_written_over(before, frame)

    @safely
    def _written_over(self) -> set[int]:
        """The tensors that were written to without being recorded, by identity."""
        return set(map(id, self.source.identity.written_over()))

    @safely
    def _tell_written_over(self, before: set[int] | None, frame: FrameType) -> None:
        """Emit the tensors that compiled code has written to, without those in `before`."""
        source = self.source
        if source.listener is None or before is None:
            return
        identity = source.identity
        with torch._C.DisableTorchFunction():
            written = [tensor for tensor in identity.written_over() if id(tensor) not in before]
            if states := [identity.state_of(tensor) for tensor in written]:
                tensor_values.READER.recent.clear()
                source.listener.all_mutated(frame, COMPILED, states, source.in_pass)

    def _as_one_op(self, name: str, call: Callable[..., Any], args: Any, kwargs: Any, frame: FrameType) -> Any:
        inputs_before = self._before_op(args, kwargs, frame)
        result = call(*args, **kwargs)
        if inputs_before is not None and self.source.listener is not None:
            self._after_op(name, *inputs_before, result, frame)
        return result

    @safely
    def _before_op(self, args: Any, kwargs: Any, frame: FrameType) -> tuple[list[torch.Tensor], list[int]]:
        """The tensors among arguments, and their versions."""
        identity = self.source.identity
        with torch._C.DisableTorchFunction():
            inputs = tensors_in(args, kwargs)
            identity.tell_pending()
            for tensor in inputs:
                identity.number_of(tensor, frame)
            return inputs, [version_of(tensor) for tensor in inputs]

    @safely
    def _after_op(
        self, name: str, inputs: list[torch.Tensor], before: list[int], result: Any, frame: FrameType
    ) -> None:
        if outputs := outputs_of(result):
            with torch._C.DisableTorchFunction():
                leaves = self.source.identity.unseen_leaves(outputs, inputs)
                inputs, before = [*inputs, *leaves], [*before, *map(version_of, leaves)]
                self.forward._tell(name, (), {}, inputs, before, outputs, frame)


def _is_overloaded(cls: type) -> bool:
    """Whether a class of tensors has a `__torch_function__` of its own."""
    own = getattr(cls, "__torch_function__", None)
    plain = (torch.Tensor.__torch_function__, torch._C._disabled_torch_function_impl)
    return own is not None and cls is not torch.Tensor and own not in plain


# Warnings and tracebacks of the program: they show its own lines, as without a recorder.

_warnings: Any = warnings


class Places:
    """Corrects the lines that are shown, from `begin` to `end`."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def begin(self) -> None:
        """Correct each warning before it is shown, and hide our frames."""
        self.show = show = _warnings._showwarnmsg

        def shown(message: Any) -> None:
            if self.corrected(message, sys._getframe(1)) is not False:
                show(message)

        _warnings._showwarnmsg = shown
        hiding.begin()

    def end(self) -> None:
        """Stop correcting."""
        _warnings._showwarnmsg = self.show
        hiding.end()

    @safely
    def corrected(self, message: Any, frame: FrameType) -> bool:
        """Give a warning that was issued in `frame` the line that it would have without us: a warning may concern a
        frame a given number of frames above its own. False if it has already been shown for that line."""
        shown = [one for one, _ in walk_stack(frame)]
        line = message.filename, message.lineno
        at = next((at for at, one in enumerate(shown) if (one.f_code.co_filename, one.f_lineno) == line), None)
        if at is None or not any(map(_is_ours, shown[: at + 1])):
            return True
        plain = [*_without_ours(shown)]
        if at >= len(plain):
            return True
        before, after = shown[at], plain[at]
        known = before.f_globals.get("__warningregistry__", {})
        was_noted = known.pop((str(message.message), message.category, message.lineno), None) is not None
        message.filename, message.lineno = after.f_code.co_filename, after.f_lineno
        registry = after.f_globals.setdefault("__warningregistry__", {})
        key = (str(message.message), message.category, after.f_lineno)
        if was_noted and registry.get(key):
            return False
        if was_noted:
            registry[key] = True
        return True


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OURS)


def _without_ours(frames: list[FrameType]) -> Iterator[FrameType]:
    """Frames, the innermost first, as they would be without us: a call that PyTorch handed on to us, and that we made
    again, appears once."""
    at = 0
    while at < len(frames):
        if not _is_ours(frames[at]):
            yield frames[at]
            at += 1
            continue
        while at < len(frames) and _is_ours(frames[at]):
            at += 1
        if at < len(frames) and frames[at].f_code.co_name == HANDED_ON:
            at += 2
