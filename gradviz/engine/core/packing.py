"""Hooks on saved tensors: a pack hook takes a tensor when it is saved, and an unpack hook returns it when it is
needed.

A node with such tensors gets another class of the same name. The derivative of that class first calls the unpack
hooks. All other nodes pay nothing for hooks. See PyTorch's `torch.autograd.graph.saved_tensors_hooks`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from gradviz.engine.basics.errors import after_freeing
from gradviz.engine.basics.turns import new_own_turn
from gradviz.engine.core.needs import Need, OneOutput
from gradviz.engine.core.node import AccumulateGrad, Node, node_rare, output_edge
from gradviz.engine.core.state import no_grad, note_special, state
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, gradient_edge, new_tensor, tensor_rare

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class Packed:
    """What a pack hook returned for a tensor.

    `nr` is set where the tensor is an output of the node itself, and says which. The hook gets `shown` where it is
    given, else the tensor."""

    __slots__ = ("edge", "nr", "thing", "unpack_hook")

    def __init__(self, tensor: Tensor, hooks: Hooks, nr: int | None = None, shown: Tensor | None = None) -> None:
        pack_hook, self.unpack_hook = hooks
        version = tensor._writes
        with no_grad():
            self.thing = pack_hook(tensor if shown is None else shown)
        if tensor._writes != version:
            raise RuntimeError(
                "A saved tensor pack hook is modifying its input in place. Tensors provided as input to pack hook "
                "cannot be modified by in-place operations as this can lead to unexpected side-effects. Please open "
                "an issue if you need to perform in-place operations on the input to a pack hook."
            )
        self.nr = nr if tensor.requires_grad else None
        self.edge = gradient_edge(tensor) if nr is None else None

    def unpacked(self, node: Node) -> Tensor:
        """The tensor, with its edge in the graph. Raises TypeError where the unpack hook does not return a Tensor."""
        given = self.unpack_hook(self.thing)
        if not isinstance(given, Tensor):
            raise TypeError(
                "Output of saved tensor unpack_hook expected to be a Tensor but got result of type "
                f"{type(given).__name__}"
            )
        edge = self.edge if self.nr is None else output_edge(node, self.nr)
        if not isinstance(edge, AccumulateGrad):
            return new_tensor(given.array, edge)
        leaf = new_tensor(given.array, LEAF_EDGE)
        tensor_rare(leaf).accumulator = weakref.ref(edge)
        return leaf


class Packing:
    """What is packed of one node, by place. Threads take turns with it."""

    __slots__ = ("entries", "turn")

    def __init__(self) -> None:
        self.entries: dict[Need, Packed] = {}
        self.turn = new_own_turn()


def packing_of(node: Node) -> Packing | None:
    """What is packed of a node, or None."""
    return None if node.rare is None else node.rare.packing


def look_into(node: Any, place: Need) -> Any:
    """What a node keeps in a place. Where it is packed, the unpack hook is called."""
    packing = packing_of(node)
    packed = None if packing is None else packing.entries.get(place)
    return place.kept(node) if packed is None else packed.unpacked(node)


# --- packing


def pack(node: Any, outputs: Sequence[Tensor]) -> None:
    """Call the current pack hook for all that a node has saved. During an in-place operation this waits until its
    end."""
    modes = state.modes
    if modes.held_nodes is not None:
        modes.held_nodes.append((node, outputs))
        return
    for place in node.op.saved.values():
        tensor = place.kept(node) if place.is_tensor else None
        if not isinstance(tensor, Tensor) or _is_number(tensor):
            continue
        if isinstance(place, OneOutput) and outputs[place.nr].array is tensor.array:
            tensor = outputs[place.nr]
        _pack_place(node, place, tensor, modes.saved_tensors_hooks[-1], tensor)


def _is_number(tensor: Tensor) -> bool:
    """Whether the tensor stands for a Python number. Hooks do not see it, as in PyTorch."""
    return getattr(tensor, "_number", None) == 0


def _pack_place(node: Any, place: Need, tensor: Tensor, hooks: Hooks, shown: Tensor) -> None:
    """Replace the tensor in a place by what its pack hook returns. The hook gets `shown`."""
    packed = Packed(tensor, hooks, place.nr if isinstance(place, OneOutput) else None, shown)
    rare = node_rare(node)
    if rare.packing is None:
        rare.packing = Packing()
        node.__class__ = _packed_class(type(node))
        state.watched = True
    rare.packing.entries[place] = packed
    place.put(node, None)


@contextmanager
def nodes_held() -> Iterator[None]:
    """Pack what the block saves when the block ends, so that tensors which are written over are copied first."""
    modes = state.modes
    modes.held_nodes, nodes = [], []
    try:
        yield
        nodes = modes.held_nodes
    finally:
        modes.held_nodes = None
    for node, outputs in nodes:
        pack(node, outputs)


_packed_classes: dict[type, type] = {}


def _packed_class(cls: Any) -> type:
    if cls not in _packed_classes:
        body = {
            "__slots__": (),
            "__module__": cls.__module__,
            "vjp": _with_unpacked(cls, "vjp"),
            "vjp_recorded": _with_unpacked(cls, "vjp_recorded"),
            "release": _release(cls.release),
        }
        _packed_classes[cls] = type(cls.__name__, (cls,), body)
    return _packed_classes[cls]


def _with_unpacked(cls: Any, name: str) -> Callable:
    def call(node: Any, g: Any) -> Any:
        packing = node.rare.packing
        if packing is None:  # it is freed: the derivative raises the error
            return getattr(cls, name)(node, g)
        with packing.turn:
            try:
                for place, packed in packing.entries.items():
                    place.put(node, packed.unpacked(node))
                return getattr(cls, name)(node, g)
            finally:
                _empty(node, packing)

    return call


def _empty(node: Any, packing: Packing) -> None:
    for place in packing.entries:
        place.put(node, None)


def _release(release: Callable) -> Callable:
    def call(node: Any) -> None:
        node.rare.packing = None
        release(node)

    return call


# --- the hooks in force


def push_hooks(hooks: Hooks) -> None:
    """Use a pair of hooks in this thread from now on. Raises RuntimeError where hooks are disabled."""
    modes = state.modes
    if modes.hooks_disabled is not None:
        raise RuntimeError(modes.hooks_disabled)
    modes.saved_tensors_hooks += (hooks,)
    note_special(f"saved tensors hooks of thread {get_ident()}", True)


def pop_hooks() -> None:
    """Use the pair of hooks before the last one again."""
    modes = state.modes
    modes.saved_tensors_hooks = modes.saved_tensors_hooks[:-1]
    note_special(f"saved tensors hooks of thread {get_ident()}", bool(modes.saved_tensors_hooks))


@contextmanager
def disable_saved_tensors_hooks(error_message: str) -> Iterator[None]:
    """Inside the block, `saved_tensors_hooks` raises RuntimeError with this message.

    Raises it at once where hooks are in use already."""
    modes = state.modes
    if modes.saved_tensors_hooks:
        raise RuntimeError(error_message)
    previous, modes.hooks_disabled = modes.hooks_disabled, error_message
    try:
        yield
    finally:
        modes.hooks_disabled = previous


class SavedTensor:
    """One tensor that a node saved: `grad_fn._raw_saved_self`."""

    def __init__(self, node: Any, place: Need) -> None:
        self._node, self._place = node, place

    def register_hooks(self, pack_hook: Callable, unpack_hook: Callable) -> None:
        """Pack the tensor now, and unpack it when it is needed.

        Raises RuntimeError where it has hooks already, where it is freed, and where nothing was saved."""
        packing = packing_of(self._node)
        if packing is not None and self._place in packing.entries:
            raise RuntimeError(
                "Calling register_hooks on a saved tensor whose hooks have already been set. Hint: only one pair of "
                "hooks is allowed at a time."
            )
        try:
            tensor = self._place.kept(self._node)
        except RuntimeError as error:
            raise after_freeing() from error
        if not isinstance(tensor, Tensor):
            raise RuntimeError("Calling register_hooks on a saved tensor with value None is forbidden")
        _pack_place(self._node, self._place, tensor, (pack_hook, unpack_hook), tensor.detach())

    def unpack(self) -> Tensor | None:
        """The tensor, as `_saved_self` shows it."""
        return look_into(self._node, self._place)


def properties_of_saved(saved: Mapping[str, Need]) -> dict[str, property]:
    """The attributes of a node class that show what its op saves: `_saved_…`, and for tensors `_raw_saved_…`."""
    tensors = {name: place for name, place in saved.items() if place.is_tensor}
    shown = {f"_saved_{name}": _shown(place) for name, place in saved.items()}
    return shown | {f"_raw_saved_{name}": _raw(place) for name, place in tensors.items()}


def _shown(place: Need) -> property:
    return property(lambda node: look_into(node, place))


def _raw(place: Need) -> property:
    return property(lambda node: SavedTensor(node, place))
