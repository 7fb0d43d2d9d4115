"""Hooks on tensors and nodes, which run during a pass.

Hooks get Tensors, even where the pass computes with arrays. A listener hears of each hook that changes a gradient.
The order (PyTorch documentation, "Backward Hooks execution") is: tensor hooks, `retain_grad`, the node's prehooks,
the node, its posthooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gradviz.engine.core.node import Node
from gradviz.engine.core.tensor import Tensor, announce, new_tensor, number_of, state_of, tensor_rare


class Run(Protocol):
    """What hooks ask of the pass that runs them (watched.py)."""

    listener: Any
    number: int
    create_graph: bool


def run_tensor_hooks(run: Run, node: Any, gradients: list[Any], numbers: list[int]) -> None:
    """Run the hooks of the tensors whose gradients have arrived, and keep the gradients that are retained."""
    if node.runs_first:
        hooks = tensor_rare(node.variable).hooks
        number = number_of(node.variable) if run.listener is not None else 0
        if hooks and gradients[0] is not None:
            _run_hooks(run, hooks, gradients, numbers, 0, number, 0)
        return
    for nr, (number, hooks) in node.rare.tensor_hooks.items():
        if gradients[nr] is not None or node.outputs > 1:  # PyTorch gives a hook None where nothing arrives
            _run_hooks(run, hooks, gradients, numbers, nr, number, node.number)
    for nr, reference in node.rare.retainers.items():
        tensor = reference()
        if tensor is not None and gradients[nr] is not None:
            _retain(run, node, tensor, gradients, numbers, nr)


def _run_hooks(
    run: Run, hooks: dict[int, Callable], gradients: list, numbers: list, nr: int, tensor: int, node: int
) -> None:
    for hook in list(hooks.values()):
        result = hook(shown(run, gradients[nr], numbers[nr]))
        if result is not None:
            _change(run, hook, gradients, numbers, nr, result, tensor, node)


def _change(
    run: Run, hook: Callable, gradients: list[Any], numbers: list[int], nr: int, after: Any, tensor: int, node: int
) -> None:
    """Replace a gradient by what a hook returned. Raises TypeError and RuntimeError for a result that does not fit."""
    if not isinstance(after, Tensor):
        raise TypeError(
            f"expected Variable, but hook returned '{type(after).__name__}'. "
            "A hook returns the gradient to use instead, or None."
        )
    before = gradients[nr]
    if before is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if after.array.shape != (before.array if isinstance(before, Tensor) else before).shape:
        raise RuntimeError(f"hook '{hook_name(hook)}' has changed the size of value. It returned {list(after.shape)}.")
    if run.listener is not None:
        old, new = numbers[nr], number_of(after)
        numbers[nr] = new
        run.listener.hooked(tensor, node, run.number, hook_name(hook), old, state_of(after))
    gradients[nr] = after if run.create_graph else after.array


def _retain(run: Run, node: Node, tensor: Tensor, gradients: list, numbers: list, nr: int) -> None:
    """Keep the gradient of a non-leaf in its `.grad`."""
    rare = tensor_rare(tensor)
    kept = shown(run, gradients[nr], numbers[nr])
    if not run.create_graph:
        number = getattr(kept, "_number", 0)
        kept = new_tensor(kept.array.copy())
        if number:
            kept._number = number
            numbers[nr] = number
    rare.grad = kept if rare.grad is None else rare.grad + kept
    if run.listener is not None:
        run.listener.retained(number_of(tensor), node.number, run.number, number_of(rare.grad))


def run_node_prehooks(run: Run, node: Any, gradients: list[Any], numbers: list[int]) -> None:
    """Run the node's prehooks. They get all upstream gradients, and may replace them."""
    for hook in list(node.rare.prehooks.values()):
        upstream = _upstream_shown(run, node, gradients, numbers)
        result = hook(upstream)
        if result is not None:
            _replace(run, node, hook, gradients, numbers, result, len(upstream))


def run_node_posthooks(
    run: Run, node: Any, produced: Sequence[Any], given: list[int], gradients: list[Any], numbers: list[int]
) -> tuple[list[Any], list[int]]:
    """Run the node's posthooks. They get all downstream gradients, and may replace them."""
    produced = list(produced)
    for hook in list(node.rare.posthooks.values()):
        result = hook(_all_shown(run, produced, given), _upstream_shown(run, node, gradients, numbers))
        if result is not None:
            _replace(run, node, hook, produced, given, result, len(produced))
    return produced, given


def _replace(
    run: Run, node: Node, hook: Callable, gradients: list[Any], numbers: list[int], after: Any, expected: int
) -> None:
    after = (after,) if isinstance(after, Tensor) else tuple(after)
    if len(after) != expected:
        raise RuntimeError(
            f"hook '{hook_name(hook)}' has returned an incorrect number of values "
            f"(got {len(after)}, but expected {expected})"
        )
    for nr, new in enumerate(after):
        if new is not None and gradients[nr] is not None and new is not gradients[nr]:
            _change(run, hook, gradients, numbers, nr, new, 0, node.number)


def _upstream_shown(run: Run, node: Any, gradients: Sequence[Any], numbers: list[int]) -> tuple[Any, ...]:
    """The upstream gradients of the outputs that can have one: the indices of a maximum cannot."""
    op = getattr(node, "op", None)
    return _all_shown(run, gradients if op is None else gradients[: op.differentiable], numbers)


def _all_shown(run: Run, gradients: Sequence[Any], numbers: list[int]) -> tuple[Any, ...]:
    tensors = []
    for nr, gradient in enumerate(gradients):
        tensor = shown(run, gradient, numbers[nr])
        if tensor is not None and run.listener is not None:
            numbers[nr] = number_of(tensor)
        tensors.append(tensor)
    return tuple(tensors)


def shown(run: Run, gradient: Any, number: int) -> Any:
    """A gradient as hooks get it: a Tensor with the number that the listener knows."""
    if gradient is None or isinstance(gradient, Tensor):
        return gradient
    tensor = new_tensor(np.asarray(gradient))
    if run.listener is not None:
        if number:
            tensor._number = number
        else:
            announce(tensor, "gradient")
    return tensor


def hook_name(hook: Callable) -> str:
    """The name of a hook in messages."""
    return getattr(hook, "__qualname__", type(hook).__name__)
