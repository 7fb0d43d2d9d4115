"""gradviz's engine in the comparison of custom Functions with finite differences."""

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradviz.engine.core.function import Function
from gradviz.engine.core.function_node import FunctionNode
from gradviz.engine.core.state import is_grad_enabled, no_grad, state, unheard
from gradviz.engine.core.tensor import Tensor, new_tensor, node_of
from gradviz.engine.rng.generator import default_generator
from gradviz.sources.functions import Call, Functions

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
