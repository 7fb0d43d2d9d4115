"""Hooks on tensors and nodes, run during a pass.

They see Tensors, whatever the pass computes with, and a listener hears of each that changed a gradient. Order
(PyTorch documentation, "Backward Hooks execution"): tensor hooks, then `retain_grad`, then the node's prehooks,
the node, its posthooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradviz.engine.node import Node
from gradviz.engine.tensor import Tensor, new_tensor, number_of, tensor_rare

if TYPE_CHECKING:
    from gradviz.engine.backward import Pass


def run_tensor_hooks(run: Pass, node: Any, gradients: Sequence[Any]) -> list[Any]:
    """Run the hooks on the tensors whose gradients have arrived, and keep those that are retained."""
    gradients = list(gradients)
    if node.runs_first:
        hooks = tensor_rare(node.variable).hooks
        if hooks and gradients[0] is not None:
            gradients[0] = _run_hooks(run, hooks, gradients[0], number_of_if(run, node.variable), 0)
        return gradients
    for nr, (number, hooks) in node.rare.tensor_hooks.items():
        if gradients[nr] is not None:
            gradients[nr] = _run_hooks(run, hooks, gradients[nr], number, node.number)
    for nr, reference in node.rare.retainers.items():
        tensor = reference()
        if tensor is not None and gradients[nr] is not None:
            _retain(run, node, tensor, gradients[nr])
    return gradients


def number_of_if(run: Pass, tensor: Tensor) -> int:
    """The tensor's number where somebody listens, else 0."""
    return number_of(tensor) if run.listener is not None else 0


def _run_hooks(run: Pass, hooks: dict[int, Callable], gradient: Any, tensor: int, node: int) -> Any:
    for hook in list(hooks.values()):
        result = hook(shown(run, gradient))
        if result is not None:
            gradient = _changed(run, hook, gradient, result, tensor, node)
    return gradient


def _changed(run: Pass, hook: Callable, before: Any, after: Any, tensor: int, node: int) -> Any:
    if not isinstance(after, Tensor):
        raise TypeError(
            f"expected Variable, but hook returned '{type(after).__name__}'. "
            "A hook returns the gradient to use instead, or None."
        )
    if after.array.shape != np.shape(before.array if isinstance(before, Tensor) else before):
        raise RuntimeError(
            f"hook '{hook_name(hook)}' has changed the size of value. It returned {list(after.shape)}."
        )
    if run.listener is not None:
        number = run._number(before)
        run.listener.hooked(tensor, node, hook_name(hook), number, number_of(after), after.array)
        run.told[id(after.array)] = after._number
    return after if run.create_graph else after.array


def _retain(run: Pass, node: Node, tensor: Tensor, gradient: Any) -> None:
    rare = tensor_rare(tensor)
    kept = shown(run, gradient)
    if not run.create_graph:
        kept = new_tensor(np.array(gradient))
    rare.grad = kept if rare.grad is None else rare.grad + kept
    if run.listener is not None:
        run.listener.retained(number_of(tensor), node.number, _kept_number(run, rare.grad, kept, gradient))


def _kept_number(run: Pass, grad: Tensor, kept: Tensor, gradient: Any) -> int:
    if grad is kept and not run.create_graph:
        grad._number = run._number(gradient)
    return number_of(grad)


def run_node_prehooks(run: Pass, node: Any, gradients: Sequence[Any]) -> list[Any]:
    """Run the node's prehooks, which see and may replace all its upstream gradients."""
    gradients = list(gradients)
    for hook in list(node.rare.prehooks.values()):
        result = hook(tuple(shown(run, g) for g in gradients))
        if result is not None:
            gradients = _replaced(run, node, hook, gradients, result)
    return gradients


def run_node_posthooks(
    run: Pass, node: Any, produced: Sequence[Any], gradients: Sequence[Any]
) -> tuple[Any, ...]:
    """Run the node's posthooks, which see and may replace all its downstream gradients."""
    produced = list(produced)
    for hook in list(node.rare.posthooks.values()):
        result = hook(tuple(shown(run, g) for g in produced), tuple(shown(run, g) for g in gradients))
        if result is not None:
            produced = _replaced(run, node, hook, produced, result)
    return tuple(produced)


def _replaced(run: Pass, node: Node, hook: Callable, before: Sequence[Any], after: Any) -> list[Any]:
    after = (after,) if isinstance(after, Tensor) else tuple(after)
    if len(after) != len(before):
        raise RuntimeError(
            f"hook '{hook_name(hook)}' has returned an incorrect number of values "
            f"(got {len(after)}, but expected {len(before)})"
        )
    return [
        old if new is None or old is None else _changed(run, hook, old, new, 0, node.number)
        for old, new in zip(before, after, strict=True)
    ]


def shown(run: Pass, gradient: Any) -> Any:
    """A gradient as a hook sees it: a Tensor, with the number that the listener knows it by."""
    if gradient is None or isinstance(gradient, Tensor):
        return gradient
    tensor = new_tensor(np.asarray(gradient))
    if run.listener is not None:
        tensor._number = run._number(gradient)
    return tensor


def hook_name(hook: Callable) -> str:
    """What to call a hook in messages."""
    return getattr(hook, "__qualname__", type(hook).__name__)
