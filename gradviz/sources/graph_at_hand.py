"""Emits the events of a graph that exists already, as if it ran now: for drawing a tensor that was not recorded."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from gradviz.engine.core.node import AccumulateGrad, edge_node, edge_nr
from gradviz.engine.core.node import Edge as NodeEdge
from gradviz.engine.core.state import heard_by, next_tensor_number
from gradviz.engine.core.tensor import Tensor, flags_of, give_number, gradient_edge
from gradviz.engine.core.unheard import Key, number_of_known, tell_op, values_at_hand
from gradviz.engine.nn.module import Module
from gradviz.engine.nn.parameter import Parameter
from gradviz.events.listener import Listener, State
from gradviz.query.flow import reach
from gradviz.sources import pytorch
from gradviz.sources.called import in_calls
from gradviz.sources.pass_at_hand import check_root, tell_pass


def tell_graph(
    tensors: Sequence[Any], listener: Listener, names: dict[str, Any], modules: dict[str, Any], gradients: bool = False
) -> list[int]:
    """Emit to a listener everything that leads to tensors. `names` are the names of tensors, and `modules` the
    modules that may have been called. With `gradients` a backward pass runs and is emitted too; it changes nothing.
    Returns the numbers of the tensors in these events. Raises TypeError for tensors of both engines, and
    NoGradientsError where there is no such pass."""
    of_torch = [pytorch.is_of("Tensor", tensor) for tensor in tensors]
    if any(of_torch) and not all(of_torch):
        raise TypeError("draw() takes tensors of one engine, not of gradviz and PyTorch together")
    for tensor in tensors if gradients else ():
        check_root(tensor.requires_grad, tensor.shape)
    if any(of_torch):
        from gradviz.sources.torch_recorder import torch_graph

        return torch_graph.tell_graph(tensors, listener, names, modules, gradients)
    with heard_by(listener):
        return _Live(listener, names, modules).tell(tensors, gradients)


def is_tensor(thing: Any) -> bool:
    """Whether something is a tensor, of gradviz's engine or of PyTorch."""
    return isinstance(thing, Tensor) or pytorch.is_of("Tensor", thing)


def is_module(thing: Any) -> bool:
    """Whether something is a module, of gradviz's engine or of PyTorch."""
    return isinstance(thing, Module) or pytorch.is_of("nn.Module", thing)


def tell_call(module: Any, inputs: Any, listener: Listener) -> None:
    """Emit to a listener one call of a module. `inputs` are its arguments: a tensor, a tuple of tensors, or a dict."""
    if isinstance(inputs, dict):
        call = partial(module, **inputs)
    else:
        call = partial(module, *(inputs if isinstance(inputs, (tuple, list)) else (inputs,)))
    if pytorch.is_of("nn.Module", module):
        from gradviz.sources.torch_recorder import torch_graph

        torch_graph.tell_call(call, listener)
        return
    with heard_by(listener):
        call()


class _Live:
    """Emits a graph that exists already to a listener."""

    def __init__(self, listener: Listener, names: dict[str, Any], modules: dict[str, Any]) -> None:
        self.listener = listener
        self.modules = modules
        self.known: dict[Key, Tensor] = {}
        self.names: dict[Key, str] = {}
        self.data: dict[int, str] = {}  # the name of each tensor without a gradient, by its identity
        # a leaf that is in no graph has a node only while a reference to the node exists
        self.edges: list[Any] = []
        for name, value in names.items():
            if isinstance(value, Tensor) and not value.requires_grad and not name.startswith("_"):
                self.data[id(value)] = name
            elif isinstance(value, Tensor) and not name.startswith("_"):
                edge = gradient_edge(value)
                self.edges.append(edge)
                key = key_of(edge)
                self.known[key] = value
                self.names[key] = name
        self.numbers: dict[Key, int] = {}

    def tell(self, roots: Sequence[Tensor], gradients: bool) -> list[int]:
        """Emit everything that leads to `roots`, with `gradients` also their backward pass. Returns the numbers of
        the roots."""
        keys: list[Key] = []
        for at, root in enumerate(roots):
            edge = gradient_edge(root) if root.requires_grad else None
            keys.append((0, -1 - at) if edge is None else key_of(edge))
            if edge is None:
                self._tell_leaf(root, keys[-1])
            else:
                self.edges.append(edge)
                self.known[keys[-1]] = root
        nodes = reached([edge_node(gradient_edge(root)) for root in roots if root.requires_grad])
        for node in nodes:
            for saved, version in node.saved():
                if not isinstance(saved, Tensor) or saved._version != version:  # written since
                    continue
                if saved.requires_grad:
                    self.known.setdefault(key_of(gradient_edge(saved)), saved)
                elif id(saved) in self.data and not number_of_known(saved):
                    number = next_tensor_number()
                    give_number(saved, number)
                    self.listener.tensor(None, "leaf", State(number, saved.array, flags_of(saved)))
                    self.listener.named(number, self.data[id(saved)], "")
        for node in nodes:
            if isinstance(node, AccumulateGrad):
                self._tell_leaf(node.variable, (node.number, 0))
        made = [node for node in nodes if not isinstance(node, AccumulateGrad)]
        values = values_at_hand(made, self.known)
        for node in in_calls(self.listener, made, self.modules, _took):
            self._tell_node(node, values)
        if gradients and made:
            tell_pass(roots, nodes, self.known, self.numbers)
        return [self.numbers[key] for key in keys]

    def _tell_leaf(self, leaf: Tensor, key: Key) -> None:
        number = self.numbers[key] = next_tensor_number()
        give_number(leaf, number)
        self.listener.tensor(None, "leaf", State(number, leaf.array, flags_of(leaf)))
        self.known[key] = leaf
        if key in self.names:
            role = "parameter" if isinstance(leaf, Parameter) else ""
            self.listener.named(number, self.names[key], role)
        grad = leaf._rare.grad if leaf._rare is not None else None
        if grad is not None:
            state = State(next_tensor_number(), grad.array)
            self.listener.accumulated(number, key[0], 0, 0, state)

    def _tell_node(self, node: Any, values: dict[Key, np.ndarray]) -> None:
        tell_op(self.listener, node, None, self.known, values, self.numbers, number_of_known)
        for nr in range(node.outputs):
            if (node.number, nr) in self.names:
                self.listener.named(self.numbers[node.number, nr], self.names[node.number, nr], "")
            tensor = self.known.get((node.number, nr))
            if tensor is not None and tensor.retains_grad and tensor.grad is not None:
                grad = next_tensor_number()
                self.listener.tensor(None, "gradient", State(grad, tensor.grad.array))
                self.listener.retained(self.numbers[node.number, nr], node.number, 0, grad)


def _took(node: Any) -> tuple[str, list[Any], list[Tensor]]:
    """The name of a node, and the nodes and tensors that it took: of a view that it saved, the tensor behind it."""
    targets = [edge_node(edge) for edge in node.edges]
    tensors = [target.variable for target in targets if isinstance(target, AccumulateGrad)]
    for saved, _ in node.saved():
        if isinstance(saved, Tensor) and not saved.requires_grad:
            base = saved._rare.base if saved._rare is not None else None
            tensors.append(saved if base is None else base)
    return node.label, targets, tensors


def key_of(edge: NodeEdge) -> Key:
    """An edge as numbers."""
    node = edge_node(edge)
    return (0, 0) if node is None else (node.number, edge_nr(edge))


def reached(roots: Sequence[Any]) -> list[Any]:
    """The nodes that `roots` lead to, including `roots`; inputs come before the nodes computed from them."""
    return sorted(reach(roots, lambda node: map(edge_node, node.edges)), key=lambda node: node.number)
