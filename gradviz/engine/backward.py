"""Reverse accumulation: one pass from the roots to the leaves.

Nodes run in PyTorch's order: of those that are ready (every gradient for them has arrived) the one with the
highest number, AccumulateGrad before all. No recursion: a graph may be a million nodes deep.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush, heappushpop
from sys import getrefcount
from typing import Any

import numpy as np

from gradviz.engine import errors
from gradviz.engine.hooks import run_node_posthooks, run_node_prehooks, run_tensor_hooks, shown
from gradviz.engine.node import AccumulateGrad, Edge, Node, Output, edge_node, edge_nr
from gradviz.engine.ops import copy
from gradviz.engine.state import (
    enable_grad,
    is_grad_enabled,
    next_pass_number,
    next_tensor_number,
    no_grad,
    state,
)
from gradviz.engine.tensor import (
    Tensor,
    announce,
    counter_of,
    gradient_edge,
    new_tensor,
    number_of,
    tensor_rare,
)


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Any = None,
) -> None:
    """Add the gradients of `tensors` to the `.grad` of the leaves (or of `inputs` only).

    `grad_tensors` are the upstream gradients, one a tensor; a scalar needs none. Raises RuntimeError where a
    tensor has no graph, where a gradient is missing, and where the graph's buffers are freed already."""
    roots = as_sequence(tensors)
    gradients = initial_gradients(roots, as_gradients(grad_tensors, len(roots)))
    wanted = () if inputs is None else as_sequence(inputs)
    if inputs is not None and not wanted:
        raise RuntimeError("`inputs` argument to `backward` cannot be empty.")
    retain = create_graph if retain_graph is None else retain_graph
    Pass("backward", roots, gradients, wanted, retain, create_graph, accumulate=True).run()


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of `outputs` with respect to `inputs`; `.grad` stays as it is.

    Raises RuntimeError as `backward`, and where an input is not used, unless `allow_unused`."""
    roots, wanted = as_sequence(outputs), as_sequence(inputs)
    for tensor in wanted:
        if not tensor.requires_grad:
            raise RuntimeError(
                "One of the differentiated Tensors does not require grad. "
                "Set requires_grad=True on it before it is used."
            )
    gradients = initial_gradients(roots, as_gradients(grad_outputs, len(roots)))
    retain = create_graph if retain_graph is None else retain_graph
    results = Pass("grad", roots, gradients, wanted, retain, create_graph, accumulate=False).run()
    for i, result in enumerate(results):
        if result is None and materialize_grads:
            results[i] = new_tensor(np.zeros_like(wanted[i].array))
            announce(results[i], "zeros")
        elif result is None and not allow_unused:
            raise errors.unused_input()
    return tuple(results)


def as_sequence(tensors: Any) -> list[Tensor]:
    """One tensor or several, as a list."""
    return [tensors] if isinstance(tensors, Tensor) else list(tensors)


def as_gradients(gradients: Any, n: int) -> list[Any]:
    """The upstream gradients given, None where none was."""
    if gradients is None:
        return [None] * n
    gradients = [gradients] if isinstance(gradients, (Tensor, int, float)) else list(gradients)
    if len(gradients) != n:
        raise RuntimeError(f"got {n} tensors and {len(gradients)} gradients")
    return gradients


def initial_gradients(roots: Sequence[Tensor], given: Sequence[Any]) -> list[Tensor]:
    """What each root starts with: the gradient given, or 1 for a scalar."""
    for position, root in enumerate(roots):
        if not root.requires_grad:
            raise errors.no_grad_fn(position)
    gradients = []
    for root, gradient in zip(roots, given, strict=True):
        if gradient is None:
            if root.array.size != 1:
                raise errors.implicit_gradient()
            gradient = new_tensor(np.ones_like(root.array))
        elif not isinstance(gradient, Tensor):
            gradient = new_tensor(np.full_like(root.array, gradient))
        if gradient.array.shape != root.array.shape:
            raise RuntimeError(
                f"Mismatch in shape: grad_output[0] has a shape of {gradient.shape} and output[0] has a "
                f"shape of {root.shape}."
            )
        gradients.append(gradient)
    return gradients


class Pass:
    """One backward pass. Gradients are arrays, or Tensors that record themselves under `create_graph`."""

    def __init__(
        self,
        how: str,
        roots: Sequence[Tensor],
        gradients: Sequence[Tensor],
        wanted: Sequence[Tensor],
        retain_graph: bool,
        create_graph: bool,
        accumulate: bool,
    ) -> None:
        self.how, self.roots, self.gradients, self.wanted = how, roots, gradients, wanted
        self.retain_graph, self.create_graph, self.accumulate = retain_graph, create_graph, accumulate
        self.number = next_pass_number()
        self.edges = [gradient_edge(root) for root in roots]
        self.wanted_edges = [gradient_edge(tensor) for tensor in wanted]
        self.captured: dict[int, Any] = {}
        self.listener = state.listener
        self.current = 0
        self.told: dict[int, int] = {}  # id of a gradient in flight -> its number

    def run(self) -> list[Any]:
        """Run the pass; returns the gradients of the tensors asked for."""
        listener = self.listener
        starts = [g if self.create_graph else g.array for g in self.gradients]
        if listener is not None:
            self._tell_beginning()
        try:
            with enable_grad() if self.create_graph else no_grad():
                if listener is not None or state.watched or self.wanted or self.create_graph:
                    self._flow(starts)
                else:
                    flow_unwatched(self.edges, starts, self.retain_graph)
        except Exception as error:
            if listener is not None:
                listener.error(type(error).__name__, str(error), self.current)
            raise
        finally:
            if listener is not None:
                listener.pass_ended(self.number)
        return [self._result(edge) for edge in self.wanted_edges] if not self.accumulate else []

    # --- the flow of gradients

    def _flow(self, starts: Sequence[Any]) -> None:
        nodes = [edge_node(edge) for edge in self.edges]
        waiting = count_dependencies(nodes)
        needed = nodes_towards(self.wanted_edges, waiting) if self.wanted else None
        buffers: dict[Node, Any] = {}
        ready: list[tuple[int, Node]] = []
        for edge, gradient in zip(self.edges, starts, strict=True):
            node = edge_node(edge)
            if self.listener is not None:
                self._number(gradient)
            self._arrive(buffers, node, edge, gradient)
        for node in dict.fromkeys(nodes):
            if not waiting[node]:
                heappush(ready, (priority(node), node))
        retain = self.retain_graph
        plain = needed is None and self.listener is None and not self.create_graph
        while ready:
            node = heappop(ready)[1]
            self.current = node.number
            if node.runs_first:
                if node in buffers:  # in a box, so that no frame holds the gradient: the leaf may keep it
                    self._reach_leaf(node, [buffers.pop(node)])  # type: ignore[arg-type]
                continue
            gradient = buffers.pop(node, None)
            if plain and node.rare is None and gradient is not None:
                gradients = node.vjp(gradient)  # type: ignore[attr-defined]
            else:
                gradients = self._run_node(node, gradient, needed)
            if not retain and (needed is None or node in needed):
                node.release()
            arity = node.arity  # type: ignore[attr-defined]
            if arity == 1:
                edges: tuple = (node.a,)  # type: ignore[attr-defined]
                gradients = (gradients,)
            else:
                edges = node.edges
            for edge, g in zip(edges, gradients, strict=True):
                if edge is None:
                    continue
                if type(edge) is Output:
                    target: Node = edge.node
                    if g is not None:
                        self._arrive(buffers, target, edge, g)
                else:
                    target = edge
                    if g is not None:
                        held = buffers.get(target)
                        buffers[target] = g if held is None else self._sum(held, g)
                left = waiting[target] = waiting[target] - 1
                if not left:
                    heappush(ready, (priority(target), target))
            gradient = gradients = g = None

    def _arrive(self, buffers: dict, node: Any, edge: Edge, gradient: Any) -> None:
        """Add a gradient to what a node has got, output by output where it has several."""
        if node.outputs == 1:
            held = buffers.get(node)
            buffers[node] = gradient if held is None else self._sum(held, gradient)
            return
        slots = buffers.setdefault(node, [None] * node.outputs)
        nr = edge_nr(edge)
        slots[nr] = gradient if slots[nr] is None else self._sum(slots[nr], gradient)

    def _sum(self, held: Any, gradient: Any) -> Any:
        total = held + gradient
        if self.listener is not None:
            self.told.pop(id(held), None)
            self.told.pop(id(gradient), None)
        return total

    def _run_node(self, node: Any, gradient: Any, needed: set[Node] | None) -> Any:
        """Run one node where somebody listens, hooks, or wants a gradient on the way."""
        gradients_in = gradient if node.outputs > 1 and gradient is not None else [gradient]
        if node.outputs > 1 and gradient is None:
            gradients_in = [None] * node.outputs
        if node.rare is not None:
            gradients_in = run_tensor_hooks(self, node, gradients_in)
            gradients_in = run_node_prehooks(self, node, gradients_in)
        for edge in self.wanted_edges:
            if edge_node(edge) is node:
                self._capture(edge, gradients_in[edge_nr(edge)])
        if needed is not None and node not in needed:
            return None if node.arity == 1 else (None,) * len(node.edges)
        if self.listener is not None:
            self._tell_received(node, gradients_in)
        produced = self._differentiate(node, gradients_in)
        if node.rare is not None and node.rare.posthooks:
            produced = run_node_posthooks(self, node, produced, gradients_in)
        if self.listener is not None:
            self._tell_produced(node, gradients_in, produced)
        return produced[0] if node.arity == 1 else produced

    def _differentiate(self, node: Any, gradients: Sequence[Any]) -> tuple:
        """The gradients of a node's inputs from those of its outputs."""
        if all(g is None for g in gradients):
            return (None,) * len(node.edges)
        if node.takes_tensors:
            results = node.vjp_recorded(tuple(shown(self, g) for g in gradients))
            return results if self.create_graph else tuple(self._as_array(result) for result in results)
        upstream = gradients[0] if node.outputs == 1 else tuple(gradients)
        result = node.vjp_recorded(upstream) if self.create_graph else node.vjp(upstream)
        return (result,) if node.arity == 1 else tuple(result)

    def _as_array(self, gradient: Tensor | None) -> np.ndarray | None:
        if gradient is not None and self.listener is not None:
            self.told[id(gradient.array)] = number_of(gradient)
        return None if gradient is None else gradient.array

    def _reach_leaf(self, node: AccumulateGrad, box: list[Any]) -> None:
        """Give a leaf its gradient: into `.grad`, or to whoever asked for it."""
        leaf = node.variable
        rare = tensor_rare(leaf)
        if rare.hooks:
            box[0] = run_tensor_hooks(self, node, box)[0]
        if self.listener is not None:
            self._tell_received(node, box)
        if any(edge is node for edge in self.wanted_edges) and not self.accumulate:
            self._capture(node, box[0])
            return
        if self.wanted and all(edge is not node for edge in self.wanted_edges):
            return
        number = self._number(box[0]) if self.listener is not None else 0
        self.told.pop(id(box[0]), None)
        accumulate(leaf, box, self.create_graph)
        if self.listener is not None:
            kept = rare.grad
            assert kept is not None
            self.listener.accumulated(
                number_of(leaf), node.number, number, number_of_grad(kept, number), kept.array, kept._version
            )
        for hook in list((rare.accumulate_hooks or {}).values()):
            hook(leaf)

    def _capture(self, edge: Edge, gradient: Any) -> None:
        if gradient is not None:
            self.captured[id(edge_node(edge)), edge_nr(edge)] = gradient  # type: ignore[index]

    def _result(self, edge: Edge) -> Tensor | None:
        gradient = self.captured.get((id(edge_node(edge)), edge_nr(edge)))  # type: ignore[call-overload]
        if gradient is None or isinstance(gradient, Tensor):
            return gradient
        result = new_tensor(np.asarray(gradient))
        if id(gradient) in self.told:
            result._number = self.told[id(gradient)]
        return result

    # --- what a listener hears

    def _number(self, gradient: Any) -> int:
        """The number of a gradient that the listener knows, or gets to know with the next event."""
        if isinstance(gradient, Tensor):
            return number_of(gradient)
        number = self.told.get(id(gradient))
        if number is None:
            number = self.told[id(gradient)] = next_tensor_number()
        return number

    def _tell_beginning(self) -> None:
        listener = self.listener
        assert listener is not None
        for start in self.gradients:
            if not hasattr(start, "_number") or start._number < state.first_number:
                announce(start, "ones" if self.how else "gradient")
            self.told[id(start.array)] = start._number
        nodes = [edge_node(edge) for edge in self.edges]
        listener.pass_began(
            self.number,
            self.how,
            [node.number for node in nodes if node is not None],
            [number_of(root) for root in self.roots],
            [start._number for start in self.gradients],
            [start.array for start in self.gradients],
            [number_of(tensor) for tensor in self.wanted],
            bool(self.retain_graph),
            self.create_graph,
        )

    def _fresh(self, gradients: Sequence[Any]) -> tuple[list[int], list[Any]]:
        """The gradients' numbers, and the values of those that the listener does not know yet."""
        numbers, arrays = [], []
        for g in gradients:
            if g is None:
                numbers.append(0)
                arrays.append(None)
            elif isinstance(g, Tensor):
                numbers.append(number_of(g))
                arrays.append(None)
            else:
                known = id(g) in self.told
                numbers.append(self._number(g))
                arrays.append(None if known else np.asarray(g))
        return numbers, arrays

    def _tell_received(self, node: Node, gradients: Sequence[Any]) -> None:
        numbers, arrays = self._fresh(gradients)
        self.listener.received(node.number, node.name(), numbers, arrays)  # type: ignore[union-attr]

    def _tell_produced(self, node: Node, upstream: Sequence[Any], gradients: Sequence[Any]) -> None:
        passed_on = {id(g): self.told.pop(id(g), None) for g in upstream}
        for g in gradients:
            if passed_on.get(id(g)) is not None:
                self.told[id(g)] = passed_on[id(g)]  # type: ignore[assignment]
        numbers, arrays = self._fresh(gradients)
        targets = [0 if edge is None else edge_node(edge).number for edge in node.edges]  # type: ignore[union-attr]
        self.listener.produced(node.number, targets, numbers, arrays)  # type: ignore[union-attr]


def flow_unwatched(roots: Sequence[Any], starts: Sequence[Any], retain_graph: bool) -> None:
    """A pass that nobody can watch: as `Pass._flow`, without counting dependencies first.

    A node's number is higher than those of all nodes it leads to, so that the highest number among the nodes
    reached is always ready. Only leaves could come too early; they wait for the end."""
    buffers: dict[Any, Any] = {}
    heap: list[tuple[int, Any]] = []
    leaves: list[AccumulateGrad] = []
    rest = list(zip(roots, starts, strict=True))
    edge, g = rest.pop()
    other_edge = other_g = None
    while True:
        nearest = None
        while True:  # deliver g along edge, other_g along other_edge, and the rest
            if edge is not None and g is not None:
                if type(edge) is Output:
                    target, nr = edge.node, edge.nr
                    slots = buffers.get(target)
                    arrived = slots is not None
                    if slots is None:
                        slots = buffers[target] = [None] * target.outputs
                    slots[nr] = g if slots[nr] is None else slots[nr] + g
                else:
                    target = edge
                    held = buffers.get(target)
                    arrived = held is not None
                    buffers[target] = held + g if arrived else g  # type: ignore[operator]
                if arrived:
                    pass
                elif target.runs_first:
                    leaves.append(target)
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
        arity = node.arity
        if arity == 1:
            edge, g = node.a, node.vjp(buffers.pop(node))
        elif arity == 2:
            edge, other_edge = node.a, node.b
            g, other_g = node.vjp(buffers.pop(node))
        else:
            rest = list(zip(node.edges, node.vjp(buffers.pop(node)), strict=True))
            edge = g = None
        if node.saves and not retain_graph:
            node.release()
    edge = g = other_g = held = slots = None
    for leaf in leaves:
        accumulate(leaf.variable, [buffers.pop(leaf)], create_graph=False)


def number_of_grad(grad: Tensor, first: int) -> int:
    """The number of a leaf's `.grad`: that of the first gradient it took in, `first`, if it is new."""
    if getattr(grad, "_number", -1) < state.first_number:
        grad._number = first
    return grad._number


def priority(node: Node) -> int:
    """AccumulateGrad first, then the highest number; smaller runs earlier."""
    return -(1 << 62) + node.number if node.runs_first else -node.number


def count_dependencies(roots: Sequence[Any]) -> dict[Node, int]:
    """How many gradients each node that the roots lead to will be given."""
    waiting: dict[Node, int] = dict.fromkeys(roots, 0)
    stack = list(waiting)
    while stack:
        node: Any = stack.pop()
        for edge in node.edges:
            if edge is None:
                continue
            target = edge.node if type(edge) is Output else edge
            seen = waiting.get(target)
            if seen is None:
                waiting[target] = 1
                stack.append(target)
            else:
                waiting[target] = seen + 1
    return waiting


def nodes_towards(edges: Sequence[Edge], reached: dict[Node, int]) -> set[Node]:
    """The nodes that have to run for the gradients of `edges` to be known."""
    targets = {edge_node(edge) for edge in edges}
    needed: set[Node] = set()
    for node in sorted(reached, key=lambda node: (not node.runs_first, node.number)):
        onward = [edge_node(edge) for edge in node.edges]
        if any(target in targets or target in needed for target in onward if target is not None):
            needed.add(node)
    return needed


def accumulate(leaf: Tensor, box: list[Any], create_graph: bool) -> None:
    """Add the gradient in `box` to a leaf's `.grad`: in place where no graph is recorded, as PyTorch does."""
    rare = tensor_rare(leaf)
    gradient = box.pop()
    if isinstance(gradient, Tensor):
        if rare.grad is not None:
            rare.grad = rare.grad + gradient
        else:
            rare.grad = copy(gradient) if gradient.requires_grad else gradient
        return
    unshared = getrefcount(gradient) <= 2  # this frame's and the call's own
    array = np.asarray(gradient, leaf.array.dtype)
    if array.shape != leaf.array.shape:
        array = np.broadcast_to(array, leaf.array.shape)
    if rare.grad is None:
        rare.grad = new_tensor(array if unshared and array.base is None else array.copy())
    elif create_graph:
        rare.grad = rare.grad + new_tensor(array)
    else:
        np.add(rare.grad.array, array, out=rare.grad.array)
        counter_of(rare.grad).n += 1
