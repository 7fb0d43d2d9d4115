"""A graph that is at hand, told to a listener as if it ran now: for drawing a tensor that nobody recorded."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.core.node import AccumulateGrad, Node, edge_node, edge_nr
from gradviz.engine.core.node import Edge as NodeEdge
from gradviz.engine.core.state import listen, next_tensor_number
from gradviz.engine.core.tensor import Tensor, flags_of, gradient_edge
from gradviz.engine.nn.module import Module
from gradviz.engine.nn.parameter import Parameter
from gradviz.events.fields import Edge, Saved
from gradviz.events.kinds import REQUIRES_GRAD
from gradviz.events.listener import NO_RULE, Listener, State
from gradviz.sources import pytorch

Key = tuple[int, int]  # a node's number and which of its outputs


def tell_graph(tensor: Any, listener: Listener, names: dict[str, Any]) -> int:
    """Tell a listener of everything that leads to a tensor; `names` are what tensors are called. Returns the number
    that the tensor has there. Raises TypeError for anything but a Tensor, of gradviz's engine or of PyTorch."""
    if pytorch.is_of("Tensor", tensor):
        from gradviz.sources.torch_recorder import live

        return live.tell_graph(tensor, listener, names)
    if not isinstance(tensor, Tensor):
        raise TypeError(f"draw() takes a Tensor of gradviz or PyTorch, not {type(tensor).__name__}")
    return _Live(listener, names).tell(tensor)


def is_module(thing: Any) -> bool:
    """Whether something is a module, of gradviz's engine or of PyTorch."""
    return isinstance(thing, Module) or pytorch.is_of("nn.Module", thing)


def tell_call(module: Any, inputs: Any, listener: Listener) -> None:
    """Tell a listener of one call of a module. `inputs` are its arguments: a tensor, a tuple of them, or a dict."""
    if pytorch.is_of("nn.Module", module):
        from gradviz.sources.torch_recorder import live

        live.tell_call(module, inputs, listener)
        return
    previous = listen(listener)
    try:
        if isinstance(inputs, dict):
            module(**inputs)
        else:
            module(*(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    finally:
        listen(previous)


class _Live:
    """Tells a listener of a graph that exists already."""

    def __init__(self, listener: Listener, names: dict[str, Any]) -> None:
        self.listener = listener
        self.known: dict[Key, Tensor] = {}
        self.names: dict[Key, str] = {}
        for name, value in names.items():
            if isinstance(value, Tensor) and value.requires_grad and not name.startswith("_"):
                key = key_of(gradient_edge(value))
                self.known[key] = value
                self.names[key] = name
        self.numbers: dict[Key, int] = {}

    def tell(self, root: Tensor) -> int:
        """Tell of everything that leads to `root`, and return its number."""
        if not root.requires_grad:
            self._tell_leaf(root, (0, 0))
            return self.numbers[0, 0]
        edge = gradient_edge(root)
        self.known[key_of(edge)] = root
        nodes = reached(edge_node(edge))
        for node in nodes:
            for saved, _ in node.saved():
                if isinstance(saved, Tensor) and saved.requires_grad:
                    self.known.setdefault(key_of(gradient_edge(saved)), saved)
        for node in nodes:
            if isinstance(node, AccumulateGrad):
                self._tell_leaf(node.variable, (node.number, 0))
        for node in nodes:
            if not isinstance(node, AccumulateGrad):
                self._tell_node(node)
        return self.numbers[key_of(edge)]

    def _tell_leaf(self, leaf: Tensor, key: Key) -> None:
        number = self.numbers[key] = next_tensor_number()
        self.listener.tensor(None, "leaf", State(number, leaf.array, flags_of(leaf)))
        if key in self.names:
            role = "parameter" if isinstance(leaf, Parameter) else ""
            self.listener.named(number, self.names[key], role)
        grad = leaf._rare.grad if leaf._rare is not None else None
        if grad is not None:
            state = State(next_tensor_number(), grad.array)
            self.listener.accumulated(number, key[0], 0, 0, state.tensor, state)

    def _tell_node(self, node: Any) -> None:
        edges = []
        for edge in node.edges:
            key = key_of(edge)
            edges.append(Edge(*key, self.numbers.get(key, 0)))
        outputs = []
        for nr in range(node.outputs):
            self.numbers[node.number, nr] = number = next_tensor_number()
            outputs.append(number)
        arrays = [self._array(node, nr) for nr in range(node.outputs)]
        op = node.op.name if hasattr(node, "op") else node.label.removesuffix("Backward")
        rule = node.op.rule(node.args if hasattr(node, "args") else ()) if hasattr(node, "op") else NO_RULE
        zeros, flags = [0] * len(outputs), [REQUIRES_GRAD] * len(outputs)
        inputs = [edge.tensor for edge in edges]
        self.listener.op(None, op, "", rule, 0, True, inputs, outputs, arrays, flags, zeros, zeros)
        self.listener.node(None, node.number, node.label, -1, rule, outputs, edges, self._saved(node))
        for nr, number in enumerate(outputs):
            if (node.number, nr) in self.names:
                self.listener.named(number, self.names[node.number, nr], "")

    def _array(self, node: Any, nr: int) -> np.ndarray | None:
        known = self.known.get((node.number, nr))
        if known is not None:
            return known.array
        out = getattr(node, "out", None)
        return out if isinstance(out, np.ndarray) else None

    def _saved(self, node: Node) -> list[Saved]:
        numbers = [
            self.numbers.get(key_of(gradient_edge(saved)), 0)
            for saved, _ in node.saved()
            if isinstance(saved, Tensor) and saved.requires_grad
        ]
        return [Saved(number, 0) for number in numbers if number]


def key_of(edge: NodeEdge) -> Key:
    """An edge as numbers."""
    node = edge_node(edge)
    return (0, 0) if node is None else (node.number, edge_nr(edge))


def reached(root: Node | None) -> list[Any]:
    """The nodes that `root` leads to and itself, inputs before what is computed from them."""
    found = {root}
    stack = [root]
    while stack:
        for target in map(edge_node, stack.pop().edges):  # type: ignore[union-attr]
            if target is not None and target not in found:
                found.add(target)
                stack.append(target)
    return sorted(found, key=lambda node: node.number)
