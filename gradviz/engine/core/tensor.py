"""Tensor: an array with a place in the graph.

A new tensor has three slots, because most tensors of a run are never looked at: `array`, `_edge` (to the node that
made it) and `_rare`. `_rare` is None until the tensor gets something that few tensors have. Operations are attached
as methods by `tensors/methods.py`.
"""

from __future__ import annotations

import os
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from gradviz.engine.basics.errors import inference_saved
from gradviz.engine.basics.missing import TENSOR_LACKS
from gradviz.engine.basics.printing import format_array, format_with_spec
from gradviz.engine.basics.turns import new_own_turn
from gradviz.engine.core.node import AccumulateGrad, Edge, HookHandle, Node, add_hook, edge_node, edge_nr, node_rare
from gradviz.engine.core.state import next_node_number, next_tensor_number, state
from gradviz.engine.core.values import Values
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW, WHOLE
from gradviz.events.listener import State

_ENGINE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class Counter:
    """The version counter of a memory. A tensor and its views share it."""

    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


class TensorRare:
    """What few tensors have. The defaults are class attributes, so that it is quick to make: every view has one."""

    grad: Tensor | None = None
    retains_grad = False
    hooks: dict[int, Callable] | None = None
    accumulate_hooks: dict[int, Callable] | None = None
    accumulator: weakref.ref[AccumulateGrad] | None = None
    counter: Counter | None = None
    base: Tensor | None = None
    detached = 0  # the number of the next node at the time when it was detached in place
    view_kind = ""  # why autograd cannot follow an in-place operation on this view (see views.py)
    spoiled = ""  # why this view cannot be used any more
    maker = ""  # and which output of which node it was before
    views: list[weakref.ref[Tensor]] | None = None
    alias_of = 0  # the number of the tensor whose memory it shares, for the listener
    inference = False  # whether it was made in inference mode
    alias_whole = False  # whether it shows all of that memory's elements, in their order
    tangent: tuple[int, Tensor] | None = None  # the dual level, and the tangent


class _Leaf:
    """The edge of a leaf that requires grad. Its AccumulateGrad is made when a graph needs it."""

    def __repr__(self) -> str:
        return "LEAF_EDGE"


LEAF_EDGE: Any = _Leaf()


if TYPE_CHECKING:

    class _Attached(Values):
        """What a type checker knows of the operators and methods that `tensors/methods.py` attaches to Tensor."""

        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __rmod__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __rxor__(self, other: Any) -> Tensor: ...
        def __lshift__(self, other: Any) -> Tensor: ...
        def __rshift__(self, other: Any) -> Tensor: ...
        def __iadd__(self, other: Any) -> Tensor: ...
        def __isub__(self, other: Any) -> Tensor: ...
        def __imul__(self, other: Any) -> Tensor: ...
        def __itruediv__(self, other: Any) -> Tensor: ...
        def __ipow__(self, other: Any) -> Tensor: ...
        def __ifloordiv__(self, other: Any) -> Tensor: ...
        def __imod__(self, other: Any) -> Tensor: ...
        def __iand__(self, other: Any) -> Tensor: ...
        def __ior__(self, other: Any) -> Tensor: ...
        def __ixor__(self, other: Any) -> Tensor: ...
        def __ilshift__(self, other: Any) -> Tensor: ...
        def __irshift__(self, other: Any) -> Tensor: ...
        def __rlshift__(self, other: Any) -> Tensor: ...
        def __rrshift__(self, other: Any) -> Tensor: ...
        def __contains__(self, element: Any) -> bool: ...
        def __reversed__(self) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __eq__(self, other: Any) -> Tensor: ...  # type: ignore[override]
        def __ne__(self, other: Any) -> Tensor: ...  # type: ignore[override]
        def __neg__(self) -> Tensor: ...
        def __pos__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __getitem__(self, index: Any) -> Tensor: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...
        def __iter__(self) -> Iterator[Tensor]: ...
        def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray: ...
        def backward(
            self,
            gradient: Tensor | None = None,
            retain_graph: bool | None = None,
            create_graph: bool = False,
            inputs: Any = None,
        ) -> None: ...
        def detach(self) -> Tensor: ...
        @property
        def T(self) -> Tensor: ...
        @property
        def nbytes(self) -> int: ...
        @property
        def itemsize(self) -> int: ...
        def __getattr__(self, name: str) -> Callable[..., Any]: ...  # the other methods: sum, exp, view, ...

else:
    _Attached = Values


class Tensor(_Attached):
    """A NumPy array that remembers how it was computed. See PyTorch's `torch.Tensor`."""

    __slots__ = ("__dict__", "__weakref__", "_depends", "_edge", "_number", "_rare")
    __array_priority__ = 1000
    _edge: Any  # Node, Output, LEAF_EDGE or None
    _rare: TensorRare | None
    _number: int  # unset until a listener hears of the tensor; 0: a constant that is not told
    _depends: bool  # set while a listener listens: whether it was computed from a leaf that requires grad
    name = None  # as in PyTorch
    is_of_module = False  # whether a module gives it its name

    # --- its place in the graph

    @property
    def requires_grad(self) -> bool:
        """Whether the tensor requires grad: for itself, or because something that it was computed from does."""
        return self._edge is not None

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set whether a leaf requires grad. Returns the tensor.

        Raises RuntimeError for a non-leaf, and for a dtype that is not floating point."""
        if bool(requires_grad) == self.requires_grad:
            return self
        if not self.is_leaf:
            raise RuntimeError(
                "you can only change requires_grad flags of leaf variables. "
                "If you want to use a computed variable in a subgraph that doesn't require differentiation "
                "use var_no_grad = var.detach()."
            )
        if requires_grad and self.is_inference() and not state.modes.inference:
            raise RuntimeError(
                "Setting requires_grad=True on inference tensor outside InferenceMode is not allowed. Clone it first."
            )
        if requires_grad and self.array.dtype.kind not in "fc":
            raise RuntimeError(
                "only Tensors of floating point dtype can require gradients. "
                f"This one is {self.dtype}: convert it with .float() first."
            )
        self._edge = LEAF_EDGE if requires_grad else None
        if state.listener is not None:
            number_of(self)
            state.listener.requires_grad_changed(sys._getframe(1), flags_state(self))
        return self

    @property
    def is_leaf(self) -> bool:
        """False where the tensor was computed from something that requires grad."""
        return self._edge is None or self._edge is LEAF_EDGE

    @property
    def grad_fn(self) -> Node | None:
        """The node that gradients of this tensor flow to. None for a leaf."""
        node = node_of(self)
        return None if node is None else node.as_shown()

    @property
    def output_nr(self) -> int:
        """Which output of its `grad_fn` the tensor is."""
        return 0 if self.is_leaf else edge_nr(self._edge)

    @property
    def grad(self) -> Tensor | None:
        """The accumulated gradient, of the tensor's shape. A non-leaf has one only after `retain_grad()`.

        Setting it raises TypeError and RuntimeError for what cannot be a gradient of this tensor."""
        rare = self._rare
        if rare is not None and rare.grad is not None:
            return rare.grad
        if not self.is_leaf and not (rare and rare.retains_grad):
            if state.listener is not None:
                state.listener.grad_read(sys._getframe(1), number_of(self))
            warnings.warn(
                "The .grad attribute of a Tensor that is not a leaf Tensor is being accessed. Its .grad "
                "attribute won't be populated during autograd.backward(). If you indeed want the .grad field "
                "to be populated for a non-leaf Tensor, use .retain_grad() on the non-leaf Tensor.",
                UserWarning,
                stacklevel=2,
            )
        return None

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None and not isinstance(value, Tensor):
            raise TypeError(
                f"assigned grad expected to be a Tensor or None but got grad of type {type(value).__name__}"
            )
        if value is self:
            raise RuntimeError("can't assign Variable as its own grad")
        if value is not None and value.array.dtype != self.array.dtype:
            raise RuntimeError(
                f"attempting to assign a gradient with dtype '{value.dtype}' to a tensor with grad_dtype "
                f"'{self.dtype}'. Convert it with .to(dtype)."
            )
        if value is not None and value.array.shape != self.array.shape:
            raise RuntimeError(
                f"attempting to assign a gradient of size '{list(value.shape)}' to a tensor of size "
                f"'{list(self.shape)}'. Please ensure that the gradient and the tensor are the same size"
            )
        tensor_rare(self).grad = value
        if state.listener is not None:
            number = 0 if value is None else number_of(value)
            state.listener.grad_assigned(sys._getframe(1), number_of(self), number)

    @grad.deleter
    def grad(self) -> None:
        tensor_rare(self).grad = None
        if state.listener is not None:
            state.listener.grad_assigned(sys._getframe(1), number_of(self), 0)

    @property
    def retains_grad(self) -> bool:
        """Whether this non-leaf keeps its gradient in `.grad`."""
        return bool(self._rare and self._rare.retains_grad) and not self.is_leaf

    def retain_grad(self) -> None:
        """Keep the gradient of this non-leaf in `.grad`. A leaf always does.

        Raises RuntimeError for a tensor that does not require grad."""
        if not self.requires_grad:
            raise RuntimeError("can't retain_grad on Tensor that has requires_grad=False")
        if not self.is_leaf:
            tensor_rare(self).retains_grad = True
            state.watched = True
            node_rare(node_of(self)).retainers[self.output_nr] = weakref.ref(self)  # type: ignore[arg-type]

    def register_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(grad)` when the gradient of this tensor is known. What it returns replaces the gradient.

        Raises RuntimeError for a tensor that does not require grad."""
        if not self.requires_grad:
            raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
        rare = tensor_rare(self)
        if rare.hooks is None:
            rare.hooks = {}
            if not self.is_leaf:
                hooks = node_rare(node_of(self)).tensor_hooks  # type: ignore[arg-type]
                hooks[self.output_nr] = (getattr(self, "_number", 0), rare.hooks)
        return add_hook(rare.hooks, hook)

    def register_post_accumulate_grad_hook(self, hook: Callable) -> HookHandle:
        """Call `hook(tensor)` after a gradient was accumulated in `.grad`.

        Raises RuntimeError where the tensor is not a leaf that requires grad."""
        if not (self.is_leaf and self.requires_grad):
            raise RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors")
        rare = tensor_rare(self)
        if rare.accumulate_hooks is None:
            rare.accumulate_hooks = {}
        return add_hook(rare.accumulate_hooks, hook)

    # --- its value

    @property
    def data(self) -> Tensor:
        """The same memory, outside of the graph. Autograd does not notice when it is written over."""
        return alias(self, Counter(), "data")

    @data.setter
    def data(self, value: Tensor) -> None:
        self.array = value.array
        if state.listener is not None and value is not self:
            number_of(self)
            rare = tensor_rare(self)
            rare.alias_of, rare.alias_whole = number_of(value), True
            running = state.modes.running
            in_pass = 0 if running is None else running.number
            state.listener.mutated(sys._getframe(1), "data", state_of(self), rare.alias_of, in_pass)

    def detach_(self) -> Tensor:
        """Take this tensor out of the graph: it becomes a leaf that does not require grad. Raises RuntimeError for a
        view."""
        if self._base is not None:
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        is_result = self._edge is not None and self._edge is not LEAF_EDGE
        result = number_of(self) if state.listener is not None else 0
        if is_result:
            counter_of(self)  # so that nodes check what they saved
            tensor_rare(self).detached = next_node_number()
        self._edge = None
        if state.listener is None:
            return self
        if is_result:  # a leaf on the memory of what it was
            rare = tensor_rare(self)
            rare.alias_of, rare.alias_whole = result, True
            self._depends = True
            announce(self, "detach_")
        else:
            state.listener.requires_grad_changed(sys._getframe(1), flags_state(self))
        return self

    @property
    def _version(self) -> int:
        """How often its memory was written to. Raises RuntimeError for a tensor made in inference mode."""
        if self.is_inference():
            raise RuntimeError("Inference tensors do not track version counter.")
        return self._writes

    @property
    def _writes(self) -> int:
        rare = self._rare
        return rare.counter.n if rare is not None and rare.counter is not None else 0

    @property
    def _base(self) -> Tensor | None:
        return self._rare.base if self._rare is not None else None

    def _is_view(self) -> bool:
        return self._base is not None

    def is_inference(self) -> bool:
        """Whether it was made in inference mode, or is a view of such a tensor."""
        return self._rare is not None and self._rare.inference

    def numpy(self) -> np.ndarray:
        """The memory as an array. Raises RuntimeError where the tensor requires grad."""
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        self._tell_read("numpy")
        return self.array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        self._tell_read("numpy")
        return np.array(array, dtype=dtype, copy=copy)

    def _tell_read(self, how: str) -> None:
        """Tell the listener that the program reads numbers out of a tensor that depends on a leaf that requires grad.
        The engine's own reads are none of the program's."""
        if state.listener is not None and depends(self):
            frame = sys._getframe(2)
            if not frame.f_code.co_filename.startswith(_ENGINE):
                state.listener.number_read(frame, number_of(self), how)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in TENSOR_LACKS]

    def __hash__(self) -> int:
        return id(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("gradviz does not pickle tensors; keep their arrays: np.savez(file, t=t.detach().numpy())")

    def __deepcopy__(self, memo: dict) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol "
                "at the moment. Use .clone() or .detach().clone()."
            )
        copy = new_tensor(self.array.copy(), self._edge, type(self))
        announce(copy, "deepcopy", self)
        memo[id(self)] = copy
        return copy

    # --- as text

    def __repr__(self) -> str:
        suffixes = []
        node = node_of(self)
        if node is not None:
            suffixes.append(f"grad_fn=<{node.label}>")
        elif self.requires_grad:
            suffixes.append("requires_grad=True")
        tangent = self._rare.tangent if self._rare is not None else None
        if tangent is not None and tangent[0] == state.dual_level:
            suffixes.append(f"tangent={tangent[1]!r}")
        return format_array(self.array, suffixes=suffixes)

    def __format__(self, spec: str) -> str:
        return str(self) if self.array.ndim and not spec else format_with_spec(self.array, spec)


_allocate = object.__new__


def new_tensor(array: np.ndarray, edge: Any = None, cls: type[Tensor] = Tensor) -> Any:
    """A Tensor on the memory of `array`, with its edge in the graph."""
    tensor = _allocate(cls)
    tensor.array = array
    tensor._edge = edge
    tensor._rare = None
    return tensor


_making = new_own_turn()  # of what tensors get later: two threads may want it at once


def tensor_rare(tensor: Tensor) -> TensorRare:
    """The tensor's rare part. It is made if it is missing."""
    if tensor._rare is None:
        rare = TensorRare()
        with _making:
            if tensor._rare is None:
                tensor._rare = rare
    return tensor._rare


def counter_of(tensor: Tensor) -> Counter:
    """The tensor's version counter. It is made if it is missing.

    A node that saved the tensor as its output gets the counter too, so that it notices a later modification."""
    rare = tensor_rare(tensor)
    if rare.counter is None:
        counter = Counter()
        with _making:
            if rare.counter is None:
                rare.counter = counter
                node = node_of(tensor)
                if node is not None and hasattr(node, "out"):
                    node.out_counter, node.out_version = rare.counter, 0  # type: ignore[attr-defined]
    return rare.counter


def saved_version(tensor: Tensor) -> int:
    """The version of a tensor that a node saves. Raises RuntimeError for a tensor made in inference mode."""
    rare = tensor._rare
    if rare is None:
        return 0
    if rare.inference:
        raise inference_saved()
    return 0 if rare.counter is None else rare.counter.n


def note_inference(*made: Any) -> None:
    """Remember of new tensors that they were made in inference mode."""
    for tensor in made:
        if isinstance(tensor, Tensor):
            tensor_rare(tensor).inference = True


def node_of(tensor: Tensor) -> Node | None:
    """The node behind `grad_fn`. None for a leaf."""
    return None if tensor.is_leaf else edge_node(tensor._edge)


def accumulator(leaf: Tensor) -> AccumulateGrad:
    """The AccumulateGrad node of a leaf that requires grad.

    The leaf holds it by a weak reference. The graph keeps it alive, as in PyTorch."""
    rare = tensor_rare(leaf)
    node = rare.accumulator() if rare.accumulator is not None else None
    if node is None:
        made = AccumulateGrad(leaf)
        with _making:
            node = rare.accumulator() if rare.accumulator is not None else None
            if node is None:
                node = made
                rare.accumulator = weakref.ref(node)
    return node


def gradient_edge(tensor: Tensor) -> Edge:
    """The edge that gradients of this tensor flow to. None where it does not require grad."""
    edge = tensor._edge
    return accumulator(tensor) if edge is LEAF_EDGE else edge


def alias(tensor: Tensor, counter: Counter, how: str) -> Tensor:
    """A tensor on the same memory, outside of the graph, with that version counter."""
    twin = new_tensor(tensor.array)
    tensor_rare(twin).counter = counter
    if state.listener is not None:
        rare = tensor_rare(twin)
        rare.alias_of, rare.alias_whole = number_of(tensor), True
        twin._depends = depends(tensor)
        announce(twin, how)
    return twin


# --- what a listener hears of tensors


def depends(tensor: Tensor) -> bool:
    """Whether a tensor was computed from a leaf that requires grad since the listener listens, also without grad
    mode."""
    rare = tensor._rare
    if rare is not None and rare.spoiled:  # to read its edge would raise
        return True
    return tensor._edge is not None or getattr(tensor, "_depends", False)


def flags_of(tensor: Tensor) -> int:
    """LEAF, REQUIRES_GRAD, VIEW and WHOLE, as events carry them."""
    rare = tensor._rare
    if rare is not None and rare.spoiled:  # to read its edge would raise
        return REQUIRES_GRAD | VIEW
    edge = tensor._edge
    flags = LEAF if edge is None else REQUIRES_GRAD | (LEAF if edge is LEAF_EDGE else 0)
    if rare is not None and (rare.base is not None or rare.alias_of):
        return flags | VIEW | (WHOLE if rare.alias_whole else 0)
    return flags


def base_of(tensor: Tensor) -> int:
    """The number of the tensor whose memory a tensor shares, 0 for none that the listener knows."""
    rare = tensor._rare
    return rare.alias_of if rare is not None and rare.alias_of >= state.first_number else 0


def state_of(tensor: Tensor) -> State:
    """What a tensor that the listener knows is now, as events carry it."""
    rare = tensor._rare
    if rare is None:
        return State(tensor._number, tensor.array, flags_of(tensor))
    version = 0 if rare.counter is None else rare.counter.n
    return State(tensor._number, tensor.array, flags_of(tensor), version, base_of(tensor))


def flags_state(tensor: Tensor) -> State:
    """The same without its value."""
    return state_of(tensor)._replace(value=None)


def number_of(tensor: Tensor) -> int:
    """The tensor's number. A tensor from before the recording gets its number now, and the listener hears of it, and of
    the gradient that it has."""
    number = getattr(tensor, "_number", -1)
    if number < state.first_number and number != 0:
        announce(tensor, "earlier")
        rare = tensor._rare
        if state.listener is not None and rare is not None and rare.grad is not None and tensor.is_leaf:
            state.listener.grad_assigned(None, tensor._number, number_of(rare.grad))
        return getattr(tensor, "_number", 0)
    return number


def announce(tensor: Tensor, how: str, source: Tensor | None = None) -> None:
    """Number a tensor that no op made, and tell the listener, if there is one. `how` says what made it, `source` is
    the tensor that it was copied or made from."""
    if state.special and state.modes.inference and how != "earlier":
        note_inference(tensor)
    if state.listener is not None:
        origin = 0 if source is None else number_of(source)
        give_number(tensor, next_tensor_number())
        if tensor.is_of_module:
            state.nameless[tensor._number] = tensor
        state.listener.tensor(sys._getframe(1), how, state_of(tensor), origin)


def give_number(tensor: Tensor, number: int) -> None:
    """Number a tensor. Inside of `heard_by` it is remembered which number it had."""
    if state.renumbered is not None:
        state.renumbered.append((tensor, getattr(tensor, "_number", None)))
    tensor._number = number
