"""Reverse accumulation: gradients flow from the roots to the leaves.

Nodes run in PyTorch's order. A node is ready when all its gradients have arrived. Of the ready nodes the one with the
highest number runs first, and AccumulateGrad runs before all others. There is no recursion, because a graph can be a
million nodes deep.

This file has the pass that nobody watches. A pass with hooks, a listener, chosen inputs or `create_graph` is in
watched.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heappushpop
from typing import Any

import numpy as np

from gradviz.engine.basics import errors
from gradviz.engine.core.edges import as_sequence, as_tensors
from gradviz.engine.core.leaves import accumulate
from gradviz.engine.core.node import AccumulateGrad, Output, edge_numbers
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor, announce, gradient_edge, new_tensor
from gradviz.engine.core.watched import WatchedPass


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of `tensors` to the `.grad` of the leaves, or of `inputs` only.

    `tensors` and `inputs` are tensors or GradientEdges, one or several. `grad_tensors` are the upstream gradients,
    one for each tensor and of its shape; None stands for 1 where the tensor has one element.

    Raises RuntimeError where a tensor does not require grad, where a gradient is missing or of the wrong shape, and
    where the saved tensors of the graph are freed."""
    roots = as_sequence(tensors)
    given = as_gradients(grad_tensors, len(roots))
    _differentiate(as_tensors(roots, given), given, retain_graph, create_graph, inputs)


def backward_from(
    self: Tensor, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Any = None
) -> None:
    """Differentiate this tensor with respect to the leaves, and add the gradients to their `.grad`. See
    `autograd.backward`."""
    _differentiate([self], [gradient], retain_graph, create_graph, inputs)


backward_from.__name__, backward_from.__qualname__ = "backward", "Tensor.backward"


def _differentiate(
    roots: Sequence[Tensor], given: Sequence[Any], retain_graph: bool | None, create_graph: bool, inputs: Any
) -> None:
    gradients = _told_gradients(roots, given)
    wanted = () if inputs is None else as_tensors(as_sequence(inputs))
    if inputs is not None and not wanted:
        raise RuntimeError("`inputs` argument to `backward` cannot be empty.")
    for tensor in wanted:
        if isinstance(tensor, Tensor) and tensor.requires_grad and not tensor.is_leaf:
            tensor.retain_grad()
    retain = create_graph if retain_graph is None else retain_graph
    if state.listener is not None or state.watched or state.anomaly or wanted or create_graph:
        WatchedPass("backward", roots, gradients, wanted, retain, create_graph).run()
    else:
        flow([gradient_edge(root) for root in roots], [g.array for g in gradients], retain)


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`, in the inputs' shapes and dtypes. `.grad` does not change.

    `outputs` and `inputs` are tensors or GradientEdges, one or several. Raises RuntimeError as `backward` does, and
    where an input is not used, unless `allow_unused` or `materialize_grads` is set."""
    roots, wanted = as_sequence(outputs), as_tensors(as_sequence(inputs))
    for tensor in wanted:
        if not tensor.requires_grad:
            raise RuntimeError(
                "One of the differentiated Tensors does not require grad. "
                "Set requires_grad=True on it before it is used."
            )
    given = as_gradients(grad_outputs, len(roots))
    roots = as_tensors(roots, given)
    gradients = _told_gradients(roots, given)
    retain = create_graph if retain_graph is None else retain_graph
    results = WatchedPass("grad", roots, gradients, wanted, retain, create_graph).run()
    for i, result in enumerate(results):
        if result is None and materialize_grads:
            results[i] = zeros = new_tensor(np.zeros_like(wanted[i].array))
            announce(zeros, "zeros")
        elif result is None and not allow_unused:
            raise errors.unused_input(i)
    return tuple(results)


def as_gradients(gradients: Any, n: int) -> list[Any]:
    """The upstream gradients as a list of n, None where none was given. Raises RuntimeError for another number of
    them."""
    if gradients is None:
        return [None] * n
    gradients = [gradients] if isinstance(gradients, (Tensor, int, float)) else list(gradients)
    if len(gradients) != n:
        raise RuntimeError(f"got {n} tensors and {len(gradients)} gradients")
    return gradients


def _told_gradients(roots: Sequence[Tensor], given: Sequence[Any]) -> list[Tensor]:
    """The gradient that each root starts with; where the pass is refused, the listener receives the error."""
    try:
        return initial_gradients(roots, given)
    except RuntimeError as error:
        if state.listener is not None:
            edges = [root._edge for root in roots if root._edge is not None]
            node = edge_numbers(edges[0])[0] if edges else 0
            state.listener.error(error.__traceback__, type(error).__name__, str(error), node)
        raise


def initial_gradients(roots: Sequence[Tensor], given: Sequence[Any]) -> list[Tensor]:
    """The gradient that each root starts with: the given one, or 1 for a scalar. Raises RuntimeError where it is
    missing or of the wrong shape."""
    gradients = []
    for position, (root, gradient) in enumerate(zip(roots, given, strict=True)):
        if root._edge is None:
            raise errors.no_grad_fn(position)
        if gradient is None:
            if root.array.size != 1:
                raise errors.implicit_gradient()
            if root.array.dtype.kind == "c":
                raise RuntimeError(f"grad can be implicitly created only for real scalar outputs but got {root.dtype}")
            gradient = new_tensor(np.empty(root.array.shape, root.array.dtype))
            gradient.array.fill(1)
        elif not isinstance(gradient, Tensor):
            gradient = new_tensor(np.full_like(root.array, gradient))
        if gradient.array.shape != root.array.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[0] has a shape of {gradient.shape} and output[0] has a "
                f"shape of {root.shape}."
            )
        gradients.append(gradient)
    return gradients


def _hold(leaves: dict[AccumulateGrad, Any], leaf: AccumulateGrad, g: Any) -> None:
    """Keep a gradient that has reached a leaf until the pass ends."""
    if g is not None:
        held = leaves.get(leaf)
        leaves[leaf] = g if held is None else held + g


def flow(roots: Sequence[Any], starts: Sequence[Any], retain_graph: bool) -> None:
    """A pass that nobody watches. It need not count how many gradients each node waits for.

    The number of a node is higher than the numbers of all nodes that it leads to. So the node with the highest
    number, of those that have a gradient, is always ready. Only leaves could run too early; they wait for the end."""
    buffers: dict[Any, Any] = {}
    leaves: dict[AccumulateGrad, Any] = {}
    heap: list[tuple[int, Any]] = []
    rest = list(zip(roots, starts, strict=True))
    target: Any
    node: Any
    received: Any
    edge, g = rest.pop()
    other_edge = other_g = None
    while True:
        if type(other_edge) is AccumulateGrad:
            _hold(leaves, other_edge, other_g)
            other_edge = None
        if type(edge) is AccumulateGrad:
            _hold(leaves, edge, g)
            edge = None
        if edge is None and other_edge is not None:
            edge, g, other_edge = other_edge, other_g, None
        if (
            other_edge is None
            and not buffers
            and not rest
            and edge is not None
            and type(edge) is not Output
            and g is not None
        ):  # no other gradient is under way, as in a chain
            node, received = edge, g
        else:
            nearest: Any = None
            while True:  # deliver g along edge, other_g along other_edge, and the rest
                if edge is not None and g is not None:
                    if type(edge) is Output:
                        nr = edge.nr
                        target = edge.node
                        slots = buffers.get(target)
                        arrived = slots is not None
                        if slots is None:
                            slots = buffers[target] = [None] * target.outputs
                        slots[nr] = g if slots[nr] is None else slots[nr] + g
                    elif type(edge) is AccumulateGrad:
                        _hold(leaves, edge, g)
                        arrived = True
                    else:
                        target = edge
                        held = buffers.get(target)
                        arrived = held is not None
                        buffers[target] = held + g if arrived else g
                    if arrived:
                        pass
                    elif nearest is None:
                        nearest = target
                    else:
                        heappush(heap, (-target.number, target))
                if other_edge is not None:
                    edge, g, other_edge = other_edge, other_g, None
                elif rest:
                    edge, g = rest.pop()
                else:
                    break
            if not heap:
                node = nearest
                if node is None:
                    break
            elif nearest is None:
                node = heappop(heap)[1]
            else:
                node = heappushpop(heap, (-nearest.number, nearest))[1]
            received = buffers.pop(node)
        arity = node.arity
        if arity == 1:
            edge, g = node.a, node.vjp(received)
        elif arity == 2:
            edge, other_edge = node.a, node.b
            g, other_g = node.vjp(received)
        else:
            rest = list(zip(node.edges, node.vjp(received), strict=True))
            edge = g = None
        if node.saves and not retain_graph:
            node.release()
    edge = g = other_g = held = slots = received = None
    for leaf in list(leaves):
        accumulate(leaf.variable, [leaves.pop(leaf)], create_graph=False)
