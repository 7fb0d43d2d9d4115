"""`--values inputs` on gradviz's engine: records the calls that a replay can make again, and the elements of the
tensors that enter them. It records the same as torch_recorder/replayable.py. From `begin` to `end`, functions of the
engine are replaced by functions that call them."""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

import gradviz.engine as engine
from gradviz.engine.basics.devices import device
from gradviz.engine.basics.dtypes import dtype
from gradviz.engine.basics.keywords import without_pytorchs_names
from gradviz.engine.basics.memory_format import memory_format
from gradviz.engine.core.state import is_grad_enabled, state
from gradviz.engine.core.tensor import Tensor, base_of, flags_of, number_of
from gradviz.engine.core.values import Size
from gradviz.engine.nn.parameter import Parameter
from gradviz.events.kinds import LEAF
from gradviz.events.listener import Listener, State, Where
from gradviz.query.replayable_functions import DIFFERENTIATES, base_name, context_of, functions_of
from gradviz.sources.call_arguments import Library, NotExpressed, tensors_returned, typed_call
from gradviz.sources.held_values import CallBegun, HeldValues
from gradviz.tracefile.recorder import InputsRecorder

_ENGINE = Library(
    Tensor,
    Size,
    device,
    {dtype: "dtype", memory_format: "memory_format"},
    lambda tensor: type(tensor) in (Tensor, Parameter) and number_of(tensor) != 0,
)
_CREATE_GRAPH = 4  # the position of this argument of autograd.grad


class _EngineTensors:
    """The engine's tensors, with the methods that `HeldValues` needs."""

    def __init__(self, listener: Any) -> None:
        self.listener = listener

    def version(self, tensor: Tensor) -> int:
        return tensor._writes

    def has_node(self, tensor: Tensor) -> bool:
        return not flags_of(tensor) & LEAF

    def reference(self, tensor: Tensor) -> Callable[[], Any]:
        return weakref.ref(tensor)

    def keep(self, where: Where, how: str, number: int, copy: int, value: Tensor) -> None:
        self.listener.kept(where, how, number, State(copy, value.array))

    def source(self, call: CallBegun, output: Tensor) -> int:
        return base_of(output)

    def random_state(self, tensor: Tensor) -> Tensor:
        """The state of the engine's generator."""
        return engine.get_rng_state()


class _OfThread(threading.local):
    is_inside = False  # whether a followed function is running: its inner calls are not recorded


class EngineReplayable:
    """Follows the calls of one recording, from `begin` to `end`."""

    def __init__(self, listener: Listener, recorder: InputsRecorder) -> None:
        self.listener, self.recorder = listener, recorder
        self.held = HeldValues(recorder, _EngineTensors(listener))
        self.thread = _OfThread()
        self.undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Replace the functions of the closed table, and those that write to a tensor, by functions that record their
        calls, under every name that the engine has for them."""
        known: dict[Any, str] = {function: name for name, function in reversed(functions_of(engine).items())}
        # the engine's replacements files call the function that has no names of PyTorch
        for function, name in list(known.items()):
            known.setdefault(without_pytorchs_names(function), name)
        in_place = [
            method
            for name, method in vars(Tensor).items()
            if name.endswith("_") and not name.startswith("_") and callable(method)
        ]
        replacements = {
            function: self._following(function, known.get(function, ""))
            for function in (*known, *in_place)
            if not hasattr(function, "__self__")
        }
        for names in _namespaces():
            for name, function in list(names.items()):
                if callable(function) and (found := _of(replacements, function)) is not None:
                    self._replace(names, name, found)
        for name, value in list(vars(Tensor).items()):
            if isinstance(value, property) and f"Tensor.{name}.__get__" in known.values():
                getter = self._following(value.fget, f"Tensor.{name}.__get__")  # type: ignore[arg-type]
                self._replace_in_class(name, value, property(getter, value.fset, value.fdel, value.__doc__))
            elif callable(value) and (found := _of(replacements, value)) is not None:
                self._replace_in_class(name, value, found)

    def end(self) -> None:
        """Put the functions back."""
        while self.undo:
            self.undo.pop()()

    def _replace(self, names: dict[Any, Any], name: Any, by: Any) -> None:
        self.undo.append(functools.partial(names.__setitem__, name, names[name]))
        names[name] = by

    def _replace_in_class(self, name: str, value: Any, by: Any) -> None:
        self.undo.append(functools.partial(setattr, Tensor, name, value))
        setattr(Tensor, name, by)

    def _following(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """A function that records its calls. Without a `name` the calls cannot be made again."""
        thread = self.thread

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            if thread.is_inside or state.listener is not self.listener:
                return function(*args, **kwargs)
            thread.is_inside = True
            try:
                frame = sys._getframe(1)
                call = self._before(name, args, kwargs, frame) if name else None
                result = function(*args, **kwargs)
                if call is not None:
                    outputs = tensors_returned(result, Tensor)
                    numbers = [number_of(output) for output in outputs]
                    self.held.note_call(call, outputs, numbers, self.held.changed_by(call))
                elif _writes(name or function.__name__):
                    self._note_silent_write(args)
                return result
            finally:
                thread.is_inside = False

        return run

    def _before(self, name: str, args: Any, kwargs: Any, frame: FrameType) -> CallBegun | None:
        """The call, if it can be made again, after keeping what enters it; None for any other call."""
        if not self.recorder.detailed or kwargs.get("out") is not None:
            return None
        if not is_grad_enabled() and _writes(name):
            return None
        if state.modes.running is not None or state.dual_level:
            return None
        if name == DIFFERENTIATES and not (
            args[_CREATE_GRAPH] if len(args) > _CREATE_GRAPH else kwargs.get("create_graph")
        ):
            return None
        with suppress(NotExpressed):
            tensors, arguments = typed_call(_ENGINE, args, kwargs)
            self.held.look_around()
            numbers = [number_of(tensor) for tensor in tensors]
            where = self.listener.place(frame)  # found once for all events of the call
            context = context_of(str(engine.get_default_dtype()).removeprefix("torch."), {})
        return self.held.begin(where, name, arguments, context, tensors, numbers, is_grad_enabled())
        return None

    def _note_silent_write(self, args: Sequence[Any]) -> None:
        """Note the tensors that an unrecorded call writes to under other names, as `w.data.normal_()` does."""
        written = self.recorder.written
        if args and isinstance(args[0], Tensor):
            written += [number for number in (number_of(args[0]), base_of(args[0])) if number not in written]


def _writes(name: str) -> bool:
    """Whether a function with this name writes to its first argument."""
    last = name.rpartition(".")[2]
    if last.startswith("__"):
        return last.startswith("__i") and base_name(f".{last}") not in ("__invert__", "invert")
    return last.endswith("_") or last == "setitem"


def _namespaces() -> Iterator[dict[Any, Any]]:
    """The namespaces of the engine's modules, and the dictionaries in them."""
    for name, module in list(sys.modules.items()):
        if name == "gradviz.engine" or name.startswith("gradviz.engine."):
            yield vars(module)
            for value in list(vars(module).values()):
                if type(value) is dict:
                    yield value


def _of(own: dict[Any, Any], function: Any) -> Any:
    """The replacement of a function; None if it is left as it is."""
    try:
        return own.get(function)
    except TypeError:  # it cannot be hashed
        return None
