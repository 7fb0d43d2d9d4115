"""`--values inputs`: records the calls that a replay can make again, and the elements of the tensors that enter them.

A pass can run again from the elements of its leaves, its data and its random numbers: all else follows from the
calls. So a call of a function in the closed table, with arguments that are data, is recorded with its function and
arguments. Inputs that no such call has made are kept at that time: a parameter once, and again after a write to it;
the results of other calls at every use. The results of calls without grad mode are constants of the pass, and are
kept where they enter it (held_values.py). With `--values full` the calls are recorded alone."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import is_grad_enabled

from gradviz.events.listener import State, Where
from gradviz.query.replayable_functions import AUTOCASTING, DIFFERENTIATES, base_name, context_of, functions_of
from gradviz.sources.call_arguments import Library, NotExpressed, typed_call
from gradviz.sources.held_values import CallBegun, CallsAlone, HeldValues
from gradviz.sources.torch_recorder import calls
from gradviz.sources.torch_recorder.arguments import outputs_of, tensors_in
from gradviz.sources.torch_recorder.backward import Pass
from gradviz.sources.torch_recorder.calls import Steps, Way, finish
from gradviz.sources.torch_recorder.forward import Forward, is_in_layer
from gradviz.sources.torch_recorder.known_things import grad_fn_of, version_of
from gradviz.sources.torch_recorder.memory import dtype_name
from gradviz.sources.torch_recorder.pytorchs_own import detach, no_grad, to_cpu, to_numpy
from gradviz.sources.torch_recorder.shared import Source, in_transform
from gradviz.sources.torch_recorder.tensor_values import PLAIN, is_plain_parameter
from gradviz.tracefile import Recorder
from gradviz.tracefile.recorder import InputsRecorder

TORCH = Library(
    torch.Tensor,
    torch.Size,
    torch.device,
    {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"},
    lambda tensor: (type(tensor) in PLAIN or is_plain_parameter(type(tensor))) and tensor.layout is torch.strided,
)


class _TorchTensors:
    """PyTorch's tensors, with the methods that `HeldValues` needs."""

    def __init__(self, source: Source) -> None:
        self.source_of_events = source

    @property
    def listener(self) -> Any:
        return self.source_of_events.listener

    def version(self, tensor: torch.Tensor) -> int:
        return version_of(tensor)

    def has_node(self, tensor: torch.Tensor) -> bool:
        return grad_fn_of(tensor) is not None

    def reference(self, tensor: torch.Tensor) -> Callable[[], Any]:
        return self.source_of_events.identity.known[id(tensor)]

    def keep(self, where: Where, how: str, number: int, copy: int, value: torch.Tensor) -> None:
        self.listener.kept(where, how, number, State(copy, value))

    def source(self, call: CallBegun, output: torch.Tensor) -> int:
        """The first tensor of the call, if the output shares memory; otherwise 0."""
        shares_memory = base_name(call.function) in calls.ALIASES or output._is_view()
        return call.numbers[0] if call.numbers and shares_memory else 0

    def random_state(self, tensor: torch.Tensor) -> torch.Tensor:
        """The state of the generator of the tensor's device."""
        device = tensor.device
        with torch._C.DisableTorchFunction():
            return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


class Replayable:
    """Follows the calls of one recording."""

    def __init__(self, source: Source, recorder: Recorder) -> None:
        self.source = source
        self.names = {function: name for name, function in reversed(functions_of(torch).items())}
        tensors = _TorchTensors(source)
        self.held = HeldValues(recorder, tensors) if isinstance(recorder, InputsRecorder) else CallsAlone(tensors)

    def follow(self, forward: Forward) -> None:
        """Record the calls that the ways of a recorder handle."""
        self.source.differentiated = self.differentiated
        self.source.handed_on = self.handed_on
        for sort in (calls.OP, calls.LINEAR, calls.DATA):
            forward.put_around(sort, self._following)
        forward.put_around(calls.FILL, partial(_and_then, self._filled))
        for sort in (calls.REQUIRE, calls.SET_REQUIRES_GRAD):
            forward.put_around(sort, partial(_and_then, self._required))

    def differentiated(self, of: Pass, gradients: Sequence[Any]) -> None:
        """Record a differentiable pass as a call of `autograd.grad`."""
        if not all(isinstance(one, torch.Tensor) for one in (*of.roots, *of.wanted)):
            return
        args = [list(of.roots), list(of.wanted), list(of.gradients)]
        with torch._C.DisableTorchFunction(), suppress(NotExpressed):
            tensors, arguments = typed_call(TORCH, args, {"create_graph": True, "allow_unused": True})
            numbers = [self.source.identity.number_of(tensor) for tensor in tensors]
            if call := self.held.begin(of.where, DIFFERENTIATES, arguments, _context(), tensors, numbers):
                self._made(call, None, (), {}, gradients)

    def handed_on(self, tensors: Sequence[Any], results: Sequence[Any], frame: FrameType) -> None:
        """Record the tensors that PyTorch's function around a module with backward hooks handed on, as views."""
        if not is_grad_enabled() or self.source.in_pass or in_transform():
            return
        for tensor, result in zip(tensors, results, strict=True):
            with torch._C.DisableTorchFunction(), suppress(NotExpressed):
                entered, arguments = typed_call(TORCH, [tensor, tensor], {})
                self.held.look_around()
                numbers = [self.source.identity.number_of(one, frame) for one in entered]
                where = self.source.place(frame)
                if call := self.held.begin(where, "Tensor.view_as", arguments, _context(), entered, numbers):
                    self._made(call, None, (), {}, result)

    def _following(self, way: Way) -> Way:
        def run(func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
            steps = way(func, name, args, kwargs, frame)
            next(steps)
            call = self._before(func, name, args, kwargs, frame)
            result = yield
            finish(steps, result)
            if call is not None and self.source.listener is not None:
                self._made(call, func, args, kwargs, result)

        return run

    def _filled(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Note what functions of `nn.init` have filled, their first argument."""
        self._note_silent_write(name, args, kwargs)

    def _required(self, func: Any, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Keep a tensor anew where it is used next: a call has changed whether it is a leaf."""
        known = self.source.identity.known.get(id(args[0]))
        if known is not None:
            self.held.drop(known.number)

    # --- before a call

    def _before(self, func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> CallBegun | None:
        """The call, if it can be made again, after keeping what enters it; None for any other call."""
        source = self.source
        if not source.is_detailed or in_transform():
            return None
        function = self.names.get(func)
        call_data = None
        is_followed = is_grad_enabled() or not (calls.writes(name) or torch.is_inference_mode_enabled())
        if function is not None and is_followed and not source.in_pass and kwargs.get("out") is None:
            with suppress(NotExpressed):
                call_data = typed_call(TORCH, args, kwargs)
        if function is None or call_data is None:
            self._note_silent_write(name, args, kwargs)
            return None
        tensors, arguments = call_data
        identity = source.identity
        if identity.pending and tensors:
            if calls.writes(name) and identity.is_pending(tensors[0]) and is_in_layer(frame):
                return None  # a layer fills its parameters
            identity.tell_pending()
        self.held.look_around()
        numbers = [identity.number_of(tensor, frame) for tensor in tensors]
        where = self.source.place(frame)  # found once for all events of the call
        return self.held.begin(where, function, arguments, _context(), tensors, numbers, is_grad_enabled())

    def _note_silent_write(self, name: str, args: Any, kwargs: Any) -> None:
        """Note the tensors that an unrecorded call writes to under other names, as `w.data.normal_()` does."""
        tensors = tensors_in(args, kwargs) if calls.writes(name) else ()
        known = self.source.identity.known.get(id(tensors[0])) if tensors else None
        if known is not None:
            self.held.note_silent_write((known.number, known.base))

    # --- after it

    def _made(self, call: CallBegun, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record a call that was made."""
        identity = self.source.identity
        outputs = outputs_of(result)
        numbers = [identity.number_of(output, call.where) for output in outputs]
        changed = self.held.changed_by(call)
        if func in calls.RUNNING:
            changed.update(map(identity.number_of, calls.running_statistics(func, args, kwargs)))
        self.held.note_call(call, outputs, numbers, changed)


def _and_then(then: Callable[[Any, str, Any, Any, Any], None], way: Way) -> Way:
    """A way around a way: `then` gets the call and its result, after its last step."""

    def run(func: Any, name: str, args: Any, kwargs: Any, frame: FrameType) -> Steps:
        steps = way(func, name, args, kwargs, frame)
        next(steps)
        result = yield
        finish(steps, result)
        then(func, name, args, kwargs, result)

    return run


def _context() -> str:
    """The state that a call depends on besides its arguments."""
    autocast = {
        device: dtype_name(torch.get_autocast_dtype(device))
        for device in AUTOCASTING
        if torch.is_autocast_enabled(device)
    }
    return context_of(dtype_name(torch.get_default_dtype()), autocast)


# The calls of PyTorch that a debugger may run again: functions and arguments, without the tensors.

_MOST = 100_000  # the number of calls that are kept, the newest


class _Slot(NamedTuple):
    """The place of a tensor in the arguments, by its number."""

    number: int


class Calls:
    """The calls of a recorder, by the number of each tensor that they made. No tensor is kept alive."""

    def __init__(self, identity: Any) -> None:
        self.identity = identity
        self.known: dict[int, tuple[Callable[..., Any], Any, Any]] = {}

    def follow(self, forward: Forward) -> None:
        """Keep the calls that the ways of a recorder handle."""
        for sort in (calls.OP, calls.LINEAR):
            forward.put_around(sort, partial(_and_then, self.note))

    def note(self, func: Callable[..., Any], name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Keep a call, for the tensors that it returned."""
        call = None
        for output in outputs_of(result):
            known = self.identity.known.get(id(output))
            if known is not None:
                call = call or (func, _mapped(args, self._slot), _mapped(kwargs, self._slot))
                self.known[known.number] = call
        while len(self.known) > _MOST:
            del self.known[next(iter(self.known))]

    def _slot(self, value: Any) -> Any:
        """The slot of a tensor; any other value itself."""
        if not isinstance(value, torch.Tensor):
            return value
        known = self.identity.known.get(id(value))
        return _Slot(0 if known is None else known.number)

    def forward_of(
        self, op: str, outputs: Sequence[int], inputs: Sequence[int]
    ) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
        """The call of `op` that made `outputs`, as a function of the tensors `inputs`. Raises LookupError, with the
        reason, if there is none that can run again."""
        call: tuple[Callable[..., Any], Any, Any] | None
        call = next((self.known[number] for number in outputs if number in self.known), None)
        if op in _STEPS:  # the call of a linear layer, which is recorded as its two steps
            call = _STEPS[op], [_Slot(number) for number in inputs], {}
        parts: list[Any] = []
        _mapped(call, parts.append)
        if call is None or not {part.number for part in parts if type(part) is _Slot} <= set(inputs):
            raise LookupError(f"this node cannot be checked: no function of PyTorch's is known that is {op} alone")
        func, args, kwargs = call

        def forward(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            with torch.random.fork_rng(devices=[]), no_grad():
                given = zip(map(_Slot, inputs), arrays, strict=True)
                tensors: dict[Any, Any] = {slot: torch.from_numpy(np.array(array)) for slot, array in given}

                def filled(part: Any) -> Any:
                    return tensors[part] if type(part) is _Slot else part

                result = func(*_mapped(args, filled), **_mapped(kwargs, filled))
                return [to_numpy(to_cpu(detach(output))).copy() for output in outputs_of(result)]

        return forward


_STEPS: dict[str, Callable[..., Any]] = {"t": torch.t, "addmm": torch.addmm}


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Arguments with each part changed that is no list, tuple or dict."""
    if type(value) in (list, tuple):
        return type(value)(_mapped(part, change) for part in value)
    if type(value) is dict:
        return {name: _mapped(part, change) for name, part in value.items()}
    return change(value)
