"""Nodes of the backward graph: what `grad_fn` and `next_functions` show.

Every op has a class of its own (`MulBackward0`), made from its entry in the table of derivatives; an instance
holds what one run of the op left behind. A node has slots for two inputs and no container, because two objects
an op is what the garbage collector bears; ops with more inputs use `ManyInputsNode`.

An edge is the node it leads to, or an `Output` where that node has several outputs, or None.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np

from gradviz.engine.basics.errors import backward_twice, detached_since_saved, mutated_since_saved
from gradviz.engine.core.state import next_node_number, state

_LONG_NAMES = {"CopySlices", "CopyBackwards", "NotImplemented"}


class SavedTensorLike(Protocol):
    """What a node asks of a tensor that it saved. Tensor is built on nodes, and not the other way round."""

    array: np.ndarray
    _rare: Any

    @property
    def _version(self) -> int: ...

    @property
    def grad_fn(self) -> Node | None: ...


_Saved = TypeVar("_Saved", bound=SavedTensorLike)


class Node:
    """What all nodes have in common: a number (PyTorch's sequence number), edges and hooks."""

    __slots__ = ("__weakref__", "number", "rare")

    op: Any  # the row of the table that it was made from (op.py)
    label: str  # PyTorch's name for it
    outputs = 1  # how many outputs the op has
    arity = 0  # 1 or 2 where edges are slots, else 0
    runs_first = False  # before any node that is ready (AccumulateGrad)
    saves = True  # whether there may be something to release
    takes_tensors = False  # its rule is the user's own, who is shown Tensors
    number: int
    rare: NodeRare | None

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, one for each input that could require grad; None where no gradient is wanted."""
        raise NotImplementedError

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """Where gradients go, as PyTorch shows it: `(node, output_nr)` for each input."""
        targets = ((edge_node(edge), edge_nr(edge)) for edge in self.edges)
        return tuple((None if node is None else node.as_shown(), nr) for node, nr in targets)

    def as_shown(self) -> Any:
        """What the program sees of it: itself, but for a custom Function's (function_ctx.py)."""
        return self

    def name(self) -> str:
        """The node's name, as PyTorch gives it."""
        return f"torch::autograd::{self.label}" if self.label in _LONG_NAMES else self.label

    def __init_subclass__(cls) -> None:
        cls.label = cls.__name__

    def release(self) -> None:
        """Free the saved tensors."""

    def saved(self) -> list[tuple[Any, int]]:
        """The saved tensors with the versions they were saved at; None for an input that is no tensor."""
        return []

    @property
    def metadata(self) -> dict:
        """A dict for the user's own notes about this node."""
        return node_rare(self).metadata

    def register_prehook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_outputs)` before the node runs; it may return others."""
        return add_hook(node_rare(self).prehooks, hook)

    def register_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_inputs, grad_outputs)` after the node has run; it may return other grad_inputs."""
        return add_hook(node_rare(self).posthooks, hook)

    def __repr__(self) -> str:
        return f"<{self.label} object at {hex(id(self))}>"

    def __str__(self) -> str:
        return self.__repr__()


class NodeRare:
    """What few nodes have: hooks, notes, tensors whose gradient passes through and is wanted, packed tensors."""

    __slots__ = ("metadata", "packing", "posthooks", "prehooks", "retainers", "tensor_hooks")

    def __init__(self) -> None:
        self.prehooks: dict[int, Callable] = {}
        self.posthooks: dict[int, Callable] = {}
        self.tensor_hooks: dict[int, tuple[int, dict[int, Callable]]] = {}  # by output_nr
        self.retainers: dict[int, weakref.ref[Any]] = {}  # by output_nr
        self.metadata: dict = {}
        self.packing: Any = None  # the saved tensors that hooks have taken (packing.py)


def node_rare(node: Node) -> NodeRare:
    """The node's rare part, made if it has none yet."""
    if node.rare is None:
        node.rare = NodeRare()
    return node.rare


class HookHandle:
    """What registering a hook returns: `remove()` takes the hook away."""

    _ids = iter(range(1, 2**62))

    def __init__(self, hooks: dict[int, Callable]) -> None:
        self.hooks = hooks
        self.id = next(self._ids)

    def remove(self) -> None:
        """Take the hook away; doing so twice does no harm."""
        self.hooks.pop(self.id, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add_hook(hooks: dict[int, Callable], hook: Callable) -> HookHandle:
    """Put `hook` last among `hooks`."""
    state.watched = True
    handle = HookHandle(hooks)
    hooks[handle.id] = hook
    return handle


class Output:
    """An edge to one of several outputs of a node."""

    __slots__ = ("node", "nr")

    def __init__(self, node: Node, nr: int) -> None:
        self.node = node
        self.nr = nr


Edge = Node | Output | None


def edge_node(edge: Edge) -> Node | None:
    """The node that an edge leads to."""
    return edge.node if type(edge) is Output else edge  # type: ignore[return-value]


def output_edge(node: Any, nr: int) -> Edge:
    """The edge to an output of a node."""
    return node if node.outputs == 1 else Output(node, nr)


def edge_nr(edge: Edge) -> int:
    """Which output of its node the edge leads to."""
    return edge.nr if type(edge) is Output else 0


def edge_numbers(edge: Any) -> tuple[int, int]:
    """An edge as events have it: the number of its node and which output; 0, 0 for none."""
    if edge is None:
        return 0, 0
    return (edge.node.number, edge.nr) if type(edge) is Output else (edge.number, 0)


class AccumulateGrad(Node):
    """Adds the gradient that reaches a leaf to its `.grad`.

    The leaf knows it by a weak reference only, so that neither keeps the other alive when the graph is gone.
    """

    __slots__ = ("variable",)
    runs_first = True

    def __init__(self, variable: Any) -> None:
        self.number = next_node_number()
        self.rare = None
        self.variable = variable

    def name(self) -> str:
        """PyTorch's long name for it."""
        return "torch::autograd::AccumulateGrad"

    @property
    def edges(self) -> tuple[Edge, ...]:
        return ()


class OneInputNode(Node):
    """The node of an op of one tensor: its edge `a`, the saved input `x` and output `out`.

    What is not saved stays unset; what is released is None. A version that is 0 stays unset too."""

    __slots__ = ("a", "args", "out", "out_counter", "out_version", "spec", "x", "x_version")
    a: Edge
    x: Any
    x_version: int
    out: Any  # the output's array: the tensor itself would make a cycle
    out_counter: Any  # the output's version counter, once something can change it
    out_version: int
    spec: Any  # shapes and dtypes of the inputs, where the gradient's differ
    args: tuple

    @property
    def edges(self) -> tuple[Edge, ...]:
        return (self.a,)

    def release(self) -> None:
        self.x = self.out = None

    def saved(self) -> list[tuple[Any, int]]:
        return _saved(self, "x")


class TwoInputsNode(OneInputNode):
    """The node of an op of two tensors, `x` and `y`."""

    __slots__ = ("b", "y", "y_version")
    b: Edge
    y: Any
    y_version: int

    @property
    def edges(self) -> tuple[Edge, ...]:
        return (self.a, self.b)

    def release(self) -> None:
        self.x = self.y = self.out = None

    def saved(self) -> list[tuple[Any, int]]:
        return _saved(self, "x") + _saved(self, "y")


def _saved(node: Node, slot: str) -> list[tuple[Any, int]]:
    tensor = getattr(node, slot, None)
    return [] if tensor is None else [(tensor, getattr(node, f"{slot}_version", 0))]


class ManyInputsNode(Node):
    """The node of an op of any number of tensors (`cat`, `where`)."""

    __slots__ = ("_edges", "args", "out", "out_counter", "out_version", "spec", "tensors", "versions")
    _edges: tuple[Edge, ...]
    tensors: tuple[Any, ...] | None  # None: released
    versions: tuple[int, ...]
    out: Any
    out_counter: Any
    out_version: int
    spec: Any
    args: tuple

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self._edges

    def release(self) -> None:
        self.tensors = self.out = None

    def saved(self) -> list[tuple[Any, int]]:
        pairs = zip(self.tensors or (), self.versions, strict=False)
        return [(tensor, version) for tensor, version in pairs if tensor is not None]


def unpack(node: Any, slot: str) -> Any:
    """The tensor saved in `slot`, if it still is what was saved.

    Raises RuntimeError when the buffers are freed or the tensor was modified in place."""
    tensor = getattr(node, slot, None)
    if tensor is None:
        raise backward_twice(node.name())
    return unchanged(node, tensor, getattr(node, f"{slot}_version", 0))


def unpack_nth(node: Any, n: int) -> Any:
    """The n-th saved tensor of a node of many inputs; raises as `unpack`."""
    if node.tensors is None:
        raise backward_twice(node.name())
    return unchanged(node, node.tensors[n], node.versions[n])


def unchanged(node: Node, tensor: _Saved, version: int) -> _Saved:
    """The tensor, if it is at that version; raises RuntimeError otherwise."""
    if tensor._version != version:
        raise mutated_since_saved(node, tensor.grad_fn, tensor.array, version, tensor._version)
    if tensor._rare is not None and tensor._rare.detached > node.number:
        raise detached_since_saved(node)
    return tensor


def unpack_indices(node: Any) -> Any:
    """The saved indices of an op that gave (values, indices); raises RuntimeError when they are freed."""
    if node.out is None:
        raise backward_twice(node.name())
    return node.out[1]


def unpack_out(node: Any) -> Any:
    """The saved output's array, if it still is what was saved; raises as `unpack`."""
    if node.out is None:
        raise backward_twice(node.name())
    if node.out_counter is not None and node.out_counter.n != node.out_version:
        raise mutated_since_saved(node, node, node.out, node.out_version, node.out_counter.n)
    return node.out
