"""The backward of custom Functions, compared with finite differences of their forward while the program runs.

For each Function, one call is compared for each form of its arguments (shapes, dtypes, flags). Copies of the call's
arguments and results are kept until its backward has run. Then its forward runs again on copies, with the same random
numbers and without events; its draws and prints are undone. A call that cannot be compared is recorded with the
reason."""

import contextlib
import inspect
import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol
from weakref import WeakSet

import numpy as np

from gradviz.errors import text_of
from gradviz.query.differences import Vjp, compared_along

_FORMS = 8  # the most forms of a Function's arguments that are compared
_WAITING = 4  # calls of a form that are kept until the backward of one of them has run
# the largest difference between equal outputs, relative to the largest element, by element size
_ALIKE = {8: 1e-3, 4: 1e-3}
_COARSE = 5e-2
_SHORT = 2  # element size in bytes: numbers this short are too coarse for differences
_LONGEST = 120  # characters of a reason


class Engine(Protocol):
    """The differences between PyTorch and gradviz's engine."""

    @property
    def tensor(self) -> type[Any]:
        """The class of the engine's tensors."""

    def array(self, tensor: Any) -> np.ndarray:
        """A copy of a tensor's elements. Raises an exception if they cannot be read."""

    def itemsize(self, tensor: Any) -> int:
        """The size in bytes of a tensor's elements; 0 if they are not real numbers."""

    def tensor_of(self, array: np.ndarray, like: Any, in_double: bool) -> Any:
        """A new tensor, with the dtype and device of the form `like`; in float64 if `in_double` and its elements are
        real numbers."""

    def form(self, tensor: Any) -> Any:
        """The shape, dtype and device of a tensor, without a reference to the tensor."""

    def is_on(self) -> bool:
        """Whether the graph is recorded."""

    def refusal(self) -> str:
        """The reason why nothing can run again in this program; empty if functions can run again."""

    def random_state(self) -> Any:
        """The state of the generators."""

    def set_random_state(self, state: Any) -> None:
        """Set the state of the generators."""

    def alone(self) -> AbstractContextManager[None]:
        """A context in which this thread emits no events and makes no graph."""

    def apply(self, function: Any, arguments: Sequence[Any]) -> Any:
        """Run a Function."""


class NotCompared(Exception):
    """A call cannot be compared. The message gives the reason."""


class Call:
    """A call of a Function: copies of its arguments and outputs, and the random state before it."""

    def __init__(self, engine: Engine, function: Any, arguments: Sequence[Any]) -> None:
        self.engine, self.function = engine, function
        self.key: Any = None
        self.names = _names(function, len(arguments))
        self.asked = [isinstance(one, engine.tensor) and one.requires_grad for one in arguments]
        self.rest: list[Any] = []  # arguments that are not tensors
        self.forms: list[Any] = []  # of the tensor arguments
        self.inputs: list[np.ndarray | None] = []
        self.outputs: list[np.ndarray | None] = []
        self.sizes: list[int] = []
        self.why_not = engine.refusal()
        try:
            self._take(arguments)
        except NotCompared as error:
            self.why_not = str(error)
        self.random = _random_state(engine)

    def _take(self, arguments: Sequence[Any]) -> None:
        for name, value in zip(self.names, arguments, strict=True):
            is_tensor = isinstance(value, self.engine.tensor)
            if not is_tensor and _may_change(value, self.engine.tensor):
                raise NotCompared(f"its argument {name} is a {type(value).__name__}, which a run may change")
            self.rest.append(None if is_tensor else value)
            self.forms.append(self.engine.form(value) if is_tensor else None)
            self.inputs.append(self._array(value) if is_tensor else None)

    def _array(self, tensor: Any) -> np.ndarray:
        try:
            array = self.engine.array(tensor)
        except Exception as error:  # a tensor without elements: sparse, on `meta`, of a transform
            raise NotCompared(_said("the elements of a tensor cannot be read", error)) from None
        if array.dtype.kind == "c":
            raise NotCompared("it works on complex numbers")
        if array.dtype.kind == "f":
            self.sizes.append(self.engine.itemsize(tensor))
        return array

    def made(self, results: Any) -> None:
        """Keep a copy of the call's results."""
        if self.why_not:
            return
        try:
            with self.engine.alone():
                for result in results if isinstance(results, tuple) else (results,):
                    is_tensor = isinstance(result, self.engine.tensor)
                    self.outputs.append(self._array(result) if is_tensor else None)
        except NotCompared as error:
            self.why_not = str(error)

    def again(self, arrays: Sequence[np.ndarray | None], in_double: bool) -> list[np.ndarray]:
        """The outputs of forward for other inputs; an empty array for an output that is not a tensor."""
        arguments = [
            rest if array is None else self.engine.tensor_of(array, form, in_double)
            for array, form, rest in zip(arrays, self.forms, self.rest, strict=True)
        ]
        with _undone(self.engine, self.random):
            results = self.engine.apply(self.function, arguments)
            listed = results if isinstance(results, tuple) else (results,)
            return [self.engine.array(one) if isinstance(one, self.engine.tensor) else np.empty(0) for one in listed]


class Functions:
    """Chooses the calls to compare. `tell` returns the listener's `compared`; it is called at each comparison."""

    def __init__(self, engine: Engine, tell: Callable[[], Callable[..., None] | None]) -> None:
        self.engine, self.tell = engine, tell
        self.waiting: dict[Any, WeakSet[Call]] = {}
        self.compared: set[Any] = set()
        self.forms: dict[Any, int] = {}

    def kept(self, function: Any, arguments: Sequence[Any]) -> Call | None:
        """A copy of a call that is about to run; None if the call is not compared."""
        engine = self.engine
        asked = any(isinstance(one, engine.tensor) and one.requires_grad for one in arguments)
        if not asked or not engine.is_on():
            return None
        name = (function.__module__, function.__qualname__)  # a class may be made anew for each call
        key = (name, tuple(self._form(one) for one in arguments))
        if key in self.compared:
            return None
        if key not in self.waiting:
            if self.forms.get(name, 0) >= _FORMS:
                return None
            self.forms[name] = self.forms.get(name, 0) + 1
        waiting = self.waiting.setdefault(key, WeakSet())
        if len(waiting) >= _WAITING:
            return None
        with engine.alone():
            call = Call(engine, function, arguments)
        call.key = key
        waiting.add(call)
        return call

    def _form(self, value: Any) -> Any:
        """The form of an argument, which is equal for calls of the same form. It keeps no reference to the argument."""
        if isinstance(value, self.engine.tensor):
            return self.engine.form(value), value.requires_grad
        return repr(value) if type(value) in (bool, int, float, str, tuple, type(None)) else type(value)

    def ran_backward(
        self, call: Call, node: int, in_pass: int, upstream: Sequence[Any], gradients: Sequence[Any]
    ) -> None:
        """Compare a call whose backward has run, if it is the first of its form, and emit the result. There is an
        upstream gradient for each output and a gradient for each argument, None where there is none."""
        tell = self.tell()
        if call.key in self.compared or tell is None:
            return
        self.compared.add(call.key)
        self.waiting.pop(call.key, None)
        name = call.function.__name__
        try:
            with self.engine.alone():
                arrays = [None if g is None else self.engine.array(g) for g in upstream]
                produced = [None if g is None else self.engine.array(g) for g in gradients]
                comparisons = list(_compared(call, arrays, produced))
        except NotCompared as error:
            comparisons = []
            tell(node, in_pass, name, str(error))
        except Exception as error:  # of the program's forward, or of an engine that cannot copy a gradient
            comparisons = []
            tell(node, in_pass, name, _said("its forward does not run again", error))
        for argument, along in comparisons:
            tell(node, in_pass, name, "", argument, along.given, along.found, along.wrong)


def _compared(
    call: Call, upstream: Sequence[np.ndarray | None], gradients: Sequence[np.ndarray | None]
) -> Iterator[tuple[str, Any]]:
    """Each input that requires a gradient, with the result of its comparison."""
    if call.why_not:
        raise NotCompared(call.why_not)
    in_double = _runs_the_same(call)
    size = min(call.sizes, default=8)
    weights = [
        np.zeros(() if out is None else out.shape) if weight is None else weight.astype(np.float64)
        for weight, out in zip(upstream, call.outputs, strict=True)
    ]

    def forward(arrays: Sequence[Any]) -> list[np.ndarray]:
        return [
            out if weight.any() else weight for out, weight in zip(call.again(arrays, in_double), weights, strict=True)
        ]

    inputs: Any = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in call.inputs]
    nowhere = []
    for position, (name, asked, x) in enumerate(zip(call.names, call.asked, inputs, strict=True)):
        if not asked or x is None or not x.size:
            continue
        gradient = gradients[position]
        summed = np.zeros(x.shape) if gradient is None else _summed(gradient, x.shape)
        along = compared_along(Vjp(forward, inputs, position, weights, summed), size)
        if along is None:
            nowhere.append(name)
        else:
            yield name, along
    if nowhere:
        raise NotCompared(f"by differences there is no derivative for {', '.join(nowhere)} here")


def _runs_the_same(call: Call) -> bool:
    """Whether the call gives the same outputs again in float64; False if only in its own dtype. Raises NotCompared if
    in neither."""
    why = ""
    for in_double in (True, False):
        if not in_double and min(call.sizes, default=8) <= _SHORT:
            raise NotCompared(f"{why}, in float64, and its own numbers are too short for differences")
        try:
            outputs = call.again(call.inputs, in_double)
            again = call.again(call.inputs, in_double)
        except Exception as error:
            why = _said("its forward does not run again", error)
            continue
        size = min(call.sizes, default=8)
        if _alike(outputs, call.outputs, size) and _alike(again, outputs, 8):
            return in_double
        why = "run again, its forward gives other values (it is random, or depends on more than its inputs)"
    raise NotCompared(why)


def _alike(outputs: Sequence[np.ndarray], before: Sequence[np.ndarray | None], size: int) -> bool:
    if len(outputs) != len(before):
        return False
    for out, other in zip(outputs, before, strict=True):
        if other is None or other.dtype.kind != "f":
            continue
        usual = float(np.abs(other[np.isfinite(other)]).max(initial=0.0))
        if out.shape != other.shape or not np.allclose(
            out, other, rtol=0, atol=_ALIKE.get(size, _COARSE) * usual + 1e-12, equal_nan=True
        ):
            return False
    return True


def _summed(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A gradient, summed over broadcast dimensions to the shape of its input."""
    if gradient.shape == shape:
        return gradient
    more = gradient.ndim - len(shape)
    axes = [*range(more)] + [more + axis for axis, n in enumerate(shape) if n == 1 and gradient.shape[more + axis] != 1]
    return gradient.sum(axis=tuple(axes), keepdims=True).reshape(shape)


def _names(function: Any, count: int) -> list[str]:
    """The names of forward's arguments, without ctx."""
    try:
        parameters = list(inspect.signature(function.forward).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    several = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    single = [
        parameter.name
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(single) > count or (several and single[:1] == ["ctx"]):
        single = single[1:]
    return [single[i] if i < len(single) else f"argument {i + 1}" for i in range(count)]


def _may_change(value: Any, tensor: type) -> bool:
    """Whether running forward again may change an argument: a module, a function, tensors in a list."""
    if isinstance(value, (list, tuple, dict)):
        parts = value.values() if isinstance(value, dict) else value
        return any(isinstance(part, tensor) or _may_change(part, tensor) for part in parts)
    return (callable(value) and not isinstance(value, type)) or type(value).__name__ == "Generator"


def _said(what: str, error: Exception) -> str:
    first = (text_of(error).splitlines() or [""])[0][:_LONGEST]
    return f"{what} ({type(error).__name__}{': ' if first else ''}{first})"


def _random_state(engine: Engine) -> tuple[Any, ...]:
    return random.getstate(), np.random.get_state(), engine.random_state()


def _set_random_state(engine: Engine, state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])
    engine.set_random_state(state[2])


@contextmanager
def _undone(engine: Engine, begun: tuple[Any, ...]) -> Iterator[None]:
    """A context in which random numbers continue from `begun` and prints are dropped; afterwards the random state is
    restored."""
    before = _random_state(engine)
    _set_random_state(engine, begun)
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere), np.errstate(all="ignore"):
            yield
    finally:
        _set_random_state(engine, before)
