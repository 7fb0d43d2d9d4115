"""The engine of gradviz, whose calls and ops can run again: for `--values inputs`, for a comparison with finite
differences, and for a debugger. It records the same as torch_recorder/replayable.py. From `begin` to `end`, functions
of the engine are replaced by functions that call them."""

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import numpy as np

import gradviz.engine as engine
from gradviz.engine.basics.devices import device
from gradviz.engine.basics.dtypes import dtype
from gradviz.engine.basics.keywords import without_pytorchs_names
from gradviz.engine.basics.memory_format import memory_format
from gradviz.engine.core.function import Function
from gradviz.engine.core.function_node import FunctionNode
from gradviz.engine.core.node import Node
from gradviz.engine.core.op import Op
from gradviz.engine.core.state import is_grad_enabled, no_grad, state, unheard
from gradviz.engine.core.tensor import Tensor, base_of, flags_of, new_tensor, node_of, number_of
from gradviz.engine.core.values import Size
from gradviz.engine.nn.parameter import Parameter
from gradviz.engine.rng.generator import default_generator
from gradviz.engine.table.kernels.normalization import moments
from gradviz.events.kinds import LEAF, OpRan
from gradviz.events.listener import Listener, State, Where
from gradviz.query.replayable_functions import DIFFERENTIATES, base_name, context_of, functions_of
from gradviz.sources.call_arguments import Library, NotExpressed, tensors_returned, typed_call
from gradviz.sources.functions import Call, Functions
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
                    self.undo.append(functools.partial(names.__setitem__, name, function))
                    names[name] = found
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
        if state.modes.running is not None or state.dual_level or (_writes(name) and not is_grad_enabled()):
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


_apply: Callable[..., Any] = Function.__dict__["apply"].__func__


class EngineFunctions:
    """gradviz's engine as an `Engine` of `gradviz.sources.functions`."""

    tensor = Tensor

    def array(self, tensor: Tensor) -> np.ndarray:
        """A copy of the elements."""
        array = np.array(tensor.array)
        return array.astype(np.float32) if array.dtype.kind == "f" and array.dtype.itemsize < 4 else array

    def itemsize(self, tensor: Tensor) -> int:
        return tensor.array.dtype.itemsize if tensor.array.dtype.kind == "f" else 0

    def form(self, tensor: Tensor) -> Any:
        return tensor.array.shape, tensor.array.dtype

    def tensor_of(self, array: np.ndarray, like: Any, in_double: bool) -> Tensor:
        dtype = np.dtype(np.float64) if in_double and like[1].kind == "f" else like[1]
        return new_tensor(np.array(array, dtype))

    def is_on(self) -> bool:
        return is_grad_enabled() and state.listener is not None and not state.dual_level

    def refusal(self) -> str:
        """An empty text: functions can always run again on this engine."""
        return ""

    def random_state(self) -> Any:
        return default_generator.get_state()

    def set_random_state(self, state: Any) -> None:
        default_generator.set_state(state)

    @contextmanager
    def alone(self) -> Iterator[None]:
        with unheard(), no_grad():
            yield

    def apply(self, function: Any, arguments: Sequence[Any]) -> Any:
        return _apply(function, *arguments)


def compare() -> Callable[[], None]:
    """Compare the Functions that run from now on. Returns the function that ends the comparison."""
    functions = Functions(EngineFunctions(), lambda: None if state.listener is None else state.listener.compared)

    @functools.wraps(_apply)
    def run(cls: Any, *args: Any) -> Any:
        call = functions.kept(cls, args)
        result = _apply(cls, *args)
        if call is not None:
            call.made(result)
            _follow(functions, call, result)
        return result

    Function.apply = classmethod(run)  # type: ignore[assignment]

    def end() -> None:
        Function.apply = classmethod(_apply)  # type: ignore[assignment]

    return end


def _follow(functions: Functions, call: Call, result: Any) -> None:
    """Make the node of a call report when its backward has run."""
    nodes = (node_of(one) for one in (result if isinstance(result, tuple) else (result,)) if isinstance(one, Tensor))
    node: Any = next((node for node in nodes if isinstance(node, FunctionNode)), None)
    if node is None:
        return
    known = weakref.ref(node)  # no cycle: the node goes with its graph

    def watched(gradients: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
        node: Any = known()
        produced = type(node).vjp_recorded(node, gradients)
        running = state.modes.running
        functions.ran_backward(call, node.number, 0 if running is None else running.number, gradients, produced)
        return produced

    node.vjp_recorded = watched


Forward = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


def forward_of(op: OpRan, number: int, alone: bool) -> Forward:
    """The op that made node `number`, as a function of its tensor inputs. `alone` means that the op made no other
    node. Raises LookupError, with the reason, if it cannot run again."""
    objects = (one for generation in range(3) for one in gc.get_objects(generation))  # a graph is seldom old
    node: Any = next((one for one in objects if isinstance(one, Node) and one.number == number), None)
    if node is None:
        raise LookupError("this node cannot be checked: it is gone, the script has dropped its graph")
    order = list(dict.fromkeys(tensor for tensor in op.inputs if tensor))

    def arguments(arrays: Sequence[np.ndarray], constants: Sequence[Any]) -> list[Any]:
        by_number = dict(zip(order, arrays, strict=True))
        given = zip(op.inputs, constants, strict=True)
        return [by_number[tensor] if tensor else constant for tensor, constant in given]

    if isinstance(node, FunctionNode):
        return _of_function(node, arguments)
    operands = len(op.inputs) - len(getattr(node, "read", ()))  # what the op reads beside them is among its arguments
    if not alone or not hasattr(node, "op") or (len(node.op.inputs) != operands and not node.op.variadic):
        raise LookupError(f"this node cannot be checked: {op.op} made it as one of several steps")
    constants = _constants(node, op)
    args = getattr(node, "args", ())
    if args is None or any(constant is None and not t for t, constant in zip(op.inputs, constants, strict=True)):
        raise LookupError("this node cannot be checked: an argument of its op was not kept")

    def forward(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        inputs = arguments(arrays, constants)[:operands]
        others = _of_these(node.op, inputs, args)
        result = node.op.forward(inputs, *others) if node.op.variadic else node.op.forward(*inputs, *others)
        return [np.asarray(part) for part in (result if node.op.outputs > 1 else [result])]

    return forward


def _of_these(op: Op, inputs: Sequence[Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of an op for other inputs: a normalization gets the mean and variance of the new inputs."""
    if not {"view", "axes", "eps", "stats"} <= set(op.args):
        return args
    known = dict(zip(op.args, args, strict=True))
    known["stats"] = moments(inputs[0].reshape(known["view"]), known["axes"], known["eps"])
    return tuple(known.values())


def _constants(node: Any, op: OpRan) -> list[Any]:
    """The inputs that are numbers, None for tensors: from the node's saved values, otherwise from the event's text."""
    saved = [getattr(node, slot, None) for slot in ("x", "y")]
    constants: list[Any] = []
    for place, tensor in enumerate(op.inputs):
        kept = saved[place] if place < len(saved) else None
        if tensor:
            constants.append(None)
        elif isinstance(kept, Tensor):
            constants.append(kept.array.astype(np.float64))
        else:
            constants.append(_number(op.args))
    return constants


def _number(text: str) -> np.ndarray | None:
    try:
        return np.array(float(text))
    except ValueError:
        return None


def _of_function(node: FunctionNode, arguments: Callable[..., list[Any]]) -> Forward:
    """The forward of a custom Function."""

    def forward(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        state = default_generator.get_state()
        tensors = [new_tensor(np.array(array)) for array in arrays]
        try:
            with no_grad():
                result = node.function.apply(*arguments(tensors, node.plain_arguments))
        finally:
            default_generator.set_state(state)
        listed = result if isinstance(result, tuple) else (result,)
        return [output.array for output in listed if isinstance(output, Tensor)]

    return forward
