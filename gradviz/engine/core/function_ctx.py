"""What the methods of a custom Function are given as `ctx`, and what its outputs show as `grad_fn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.engine.core.function_node import FunctionNode
from gradviz.engine.core.node import HookHandle
from gradviz.engine.core.tensor import Tensor


class FunctionCtx:
    """PyTorch's methods, and beside them whatever the program puts there, under any other name.

    It holds its node, which holds all that is put here, so that the two are no cycle. Two of one node are equal."""

    __slots__ = ("__weakref__", "_node")
    _node: FunctionNode

    def __init__(self, node: FunctionNode) -> None:
        object.__setattr__(self, "_node", node)

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward, where `saved_tensors` gives them back."""
        self._node._to_save = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *outputs: Tensor) -> None:
        """Say that these outputs carry no gradient."""
        self._node._constant = {id(output) for output in outputs}

    def mark_dirty(self, *inputs: Tensor) -> None:
        """Say that forward wrote over these inputs."""
        self._node._dirty = inputs

    def set_materialize_grads(self, value: bool) -> None:
        """Whether backward is given zeros (the default) or None for outputs that no gradient reached."""
        self._node._materialize = value

    @property
    def saved_tensors(self) -> tuple[Tensor | None, ...]:
        """What was saved; raises RuntimeError once it is freed, or if it was modified in place since."""
        return self._node.saved_tensors()

    @property
    def needs_input_grad(self) -> tuple[bool, ...]:
        """Which arguments of `apply` require grad."""
        return self._node.needs_input_grad

    # --- as of any node

    @property
    def next_functions(self) -> tuple[tuple[Any, int], ...]:
        """Where gradients go: `(node, output_nr)` for each argument."""
        return self._node.next_functions

    @property
    def metadata(self) -> dict:
        """A dict for the user's own notes about this node."""
        return self._node.metadata

    def name(self) -> str:
        """The node's name."""
        return self._node.name()

    def register_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_inputs, grad_outputs)` after the node has run; it may return other grad_inputs."""
        return self._node.register_hook(hook)

    def register_prehook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_outputs)` before the node runs; it may return others."""
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
