"""Nodes of the backward graph: what `grad_fn` and `next_functions` show.

Every op has a node class of its own (`MulBackward0`), which is made from its row in the table. An instance keeps what
one run of the op saved. Nodes of one or two inputs have slots and no containers, because every container is another
object for the garbage collector. Nodes of more inputs are `ManyInputsNode`s.

An edge is the node that it leads to, or an `Output` where that node has several outputs, or None.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from gradviz.engine.basics.errors import backward_twice, detached_since_saved, mutated_since_saved
from gradviz.engine.core.state import next_node_number, state

_LONG_NAMES = {"CopySlices", "CopyBackwards", "NotImplemented"}


class SavedTensorLike(Protocol):
    """What a node asks of a tensor that it saved. Tensor is built on nodes, so nodes do not import it."""

    array: np.ndarray
    _rare: Any

    @property
    def _writes(self) -> int: ...

    @property
    def grad_fn(self) -> Node | None: ...


_Saved = TypeVar("_Saved", bound=SavedTensorLike)


class Node:
    """What all nodes have: a number (PyTorch's sequence number), edges and hooks."""

    __slots__ = ("__weakref__", "number", "rare")

    op: Any  # the row of the table (op.py)
    label: str  # PyTorch's name of it
    outputs = 1  # how many outputs the op has
    arity = 0  # 1 or 2 where edges are slots, else 0
    runs_first = False  # it runs before all others (AccumulateGrad)
    saves = True  # whether it may have saved something
    takes_tensors = False  # its rule is the program's own, and gets Tensors
    is_of_row = False  # of an op of the table with one output: nothing can happen while it runs
    number: int
    rare: NodeRare | None

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # what it saved, by PyTorch's names: `_saved_self`

    @property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, one for each input. None where no gradient is wanted."""
        raise NotImplementedError

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The edges as PyTorch shows them: `(node, output_nr)` for each input."""
        targets = ((edge_node(edge), edge_nr(edge)) for edge in self.edges)
        return tuple((None if node is None else node.as_shown(), nr) for node, nr in targets)

    def as_shown(self) -> Any:
        """What programs see: the node itself, or the ctx of a custom Function (function_ctx.py)."""
        return self

    def name(self) -> str:
        """The name of the node in PyTorch."""
        return f"torch::autograd::{self.label}" if self.label in _LONG_NAMES else self.label

    def __init_subclass__(cls) -> None:
        cls.label = cls.__name__

    def release(self) -> None:
        """Free the saved tensors."""

    def saved(self) -> list[tuple[Any, int]]:
        """The saved tensors and their versions at that time. None for an input that is no tensor."""
        return []

    @property
    def metadata(self) -> dict:
        """A dict for the program's notes about this node."""
        return node_rare(self).metadata

    def register_prehook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_outputs)` before the node runs. It may return other grad_outputs."""
        return add_hook(node_rare(self).prehooks, hook)

    def register_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad_inputs, grad_outputs)` after the node has run. It may return other grad_inputs."""
        return add_hook(node_rare(self).posthooks, hook)

    def __repr__(self) -> str:
        return f"<{self.label} object at {hex(id(self))}>"

    def __str__(self) -> str:
        return self.__repr__()


class NodeRare:
    """What few nodes have: hooks, metadata, tensors that retain their gradients, packed tensors."""

    __slots__ = ("metadata", "packing", "posthooks", "prehooks", "retainers", "tensor_hooks")

    def __init__(self) -> None:
        self.prehooks: dict[int, Callable] = {}
        self.posthooks: dict[int, Callable] = {}
        self.tensor_hooks: dict[int, tuple[int, dict[int, Callable]]] = {}  # by output_nr
        self.retainers: dict[int, weakref.ref[Any]] = {}  # by output_nr
        self.metadata: dict = {}
        self.packing: Any = None  # saved tensors that hooks have packed (packing.py)


def node_rare(node: Node) -> NodeRare:
    """The node's rare part. It is made if it is missing."""
    if node.rare is None:
        node.rare = NodeRare()
    return node.rare


class HookHandle:
    """The handle of a registered hook. `remove()` removes the hook."""

    _ids = iter(range(1, 2**62))

    def __init__(self, hooks: dict[int, Callable]) -> None:
        self.hooks = hooks
        self.id = next(self._ids)

    def remove(self) -> None:
        """Remove the hook. Calling it twice does no harm."""
        self.hooks.pop(self.id, None)

    def __enter__(self) -> HookHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def add_hook(hooks: dict[int, Callable], hook: Callable) -> HookHandle:
    """Add `hook` at the end of `hooks`."""
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
    """The node of a leaf: it adds the gradient to the `.grad` of the leaf.

    The leaf has a weak reference to the node. So neither keeps the other alive when the graph is gone."""

    __slots__ = ("variable",)
    runs_first = True

    def __init__(self, variable: Any) -> None:
        self.number = next_node_number()
        self.rare = None
        self.variable = variable

    def name(self) -> str:
        """Its long name in PyTorch."""
        return "torch::autograd::AccumulateGrad"

    @property
    def edges(self) -> tuple[Edge, ...]:
        return ()


class OneInputNode(Node):
    """The node of an op of one tensor: its edge `a`, the saved input `x` and the saved output `out`.

    What is not saved is not set. What was freed is None. A version of 0 is not set."""

    __slots__ = ("a", "args", "out", "out_counter", "out_version", "spec", "x", "x_version")
    a: Edge
    x: Any
    x_version: int
    out: Any  # the output's array: its tensor would make a reference cycle
    out_counter: Any  # the output's version counter, once the output can be modified
    out_version: int
    spec: Any  # shapes and dtypes of the inputs, where those of the gradient differ
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
    tensors: tuple[Any, ...] | None  # None: freed
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
    """The tensor saved in `slot`.

    Raises RuntimeError where it is freed, or was modified in place since."""
    tensor = getattr(node, slot, None)
    if tensor is None:
        raise backward_twice(node.name())
    return unchanged(node, tensor, getattr(node, f"{slot}_version", 0))


def unpack_nth(node: Any, n: int) -> Any:
    """The n-th saved tensor of a ManyInputsNode. Raises as `unpack` does."""
    if node.tensors is None:
        raise backward_twice(node.name())
    return unchanged(node, node.tensors[n], node.versions[n])


def unchanged(node: Node, tensor: _Saved, version: int) -> _Saved:
    """The tensor, after a check of its version. Raises RuntimeError where it was modified or detached in place."""
    if tensor._writes != version:
        raise mutated_since_saved(node, tensor.grad_fn, tensor.array, version, tensor._writes)
    if tensor._rare is not None and tensor._rare.detached > node.number:
        raise detached_since_saved(node)
    return tensor


def unpack_indices(node: Any) -> Any:
    """The saved indices of an op that gave (values, indices). Raises RuntimeError where they are freed."""
    if node.out is None:
        raise backward_twice(node.name())
    return node.out[1]


def unpack_out(node: Any) -> Any:
    """The array of the saved output. Raises as `unpack` does."""
    if node.out is None:
        raise backward_twice(node.name())
    if node.out_counter is not None and node.out_counter.n != node.out_version:
        raise mutated_since_saved(node, node, node.out, node.out_version, node.out_counter.n)
    return node.out
