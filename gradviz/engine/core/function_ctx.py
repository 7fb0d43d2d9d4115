"""The `ctx` of a custom Function, which programs see as the `grad_fn` of its outputs too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.engine.core.function_node import FunctionNode
from gradviz.engine.core.node import HookHandle
from gradviz.engine.core.tensor import Tensor


class FunctionCtx:
    """PyTorch's methods, and all attributes that the program sets under other names.

    The ctx holds its node, and the node holds the attributes, so there is no reference cycle. Two ctx of the same
    node are equal."""

    __slots__ = ("__weakref__", "_node")
    _node: FunctionNode

    def __init__(self, node: FunctionNode) -> None:
        object.__setattr__(self, "_node", node)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Save tensors for backward, which finds them in `saved_tensors`."""
        self._node._to_save = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Declare that these outputs have no gradient."""
        self._node._constant = {id(output) for output in outputs}

    def mark_dirty(self, *inputs: Tensor) -> None:
        """Declare that forward modified these inputs in place."""
        self._node._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether backward gets zeros (the default) or None for outputs without a gradient."""
        self._node._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """The saved tensors. Raises RuntimeError where they are freed, or where one was modified in place since."""
        return self._node.saved_tensors()

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Which arguments of `apply` require grad."""
        return self._node.needs_input_grad

    # --- as of any node

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """The edges as `(node, output_nr)`, one for each tensor argument."""
        return self._node.next_functions

    @property
    def metadata(self) -> dict:
        """A dict for the program's notes about this node."""
        return self._node.metadata

    def name(self) -> str:
        """The node's name."""
        return self._node.name()

    def register_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_inputs, grad_outputs)` after the node has run. It may return other grad_inputs."""
        return self._node.register_hook(hook)

    def register_prehook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_outputs)` before the node runs. It may return other grad_outputs."""
        return self._node.register_prehook(hook)

    # --- what the program puts here

    def __getattr__(self, name: str) -> Any:
        try:
            return self._node.attributes[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            raise AttributeError(f"attribute {name!r} of a custom Function's ctx is not writable")
        self._node.attributes[name] = value

    def __delattr__(self, name: str) -> None:
        if name not in self._node.attributes:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        del self._node.attributes[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._node.attributes]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionCtx) and other._node is self._node

    def __hash__(self) -> int:
        return hash(self._node)

    def __repr__(self) -> str:
        return repr(self._node)
