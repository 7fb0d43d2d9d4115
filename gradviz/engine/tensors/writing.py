"""Writing to the memory of a tensor: whether that is allowed, and what it changes in the graph and in the views.

Each write increments the version that saved tensors are checked against.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from gradviz.engine.basics import errors
from gradviz.engine.core.apply import apply
from gradviz.engine.core.forward_mode import set_tangent, tangent_of
from gradviz.engine.core.node import edge_node, edge_nr, node_rare
from gradviz.engine.core.state import is_grad_enabled, state
from gradviz.engine.core.tell_in_place import InPlace, tell_copy_slices
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, counter_of, new_tensor, number_of, state_of
from gradviz.engine.core.views import WRITTEN, complaint, spoil, spoil_several, views_of
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import geometry_of
from gradviz.engine.tensors.copy_slices import CopySlices
from gradviz.events.handles import Changed
from gradviz.events.listener import Where


def check_writable(x: Tensor, *others: Tensor, part: np.ndarray | None = None) -> None:
    """Raise RuntimeError where autograd forbids an in-place operation on `x`, or on `part` of its array.

    From here on the versions of x are counted."""
    counter_of(x)  # this comes before its node changes: the node that made it has to notice
    if x.is_inference() and not state.modes.inference:
        raise RuntimeError("Inplace update to inference tensor outside InferenceMode is not allowed. Clone it first.")
    if is_grad_enabled():
        _check_place_in_graph(x, others)
    if is_overlapping(x.array if part is None else part):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory "
            "location. Please clone() the tensor before performing the operation."
        )
    written = x.array if part is None else part
    for other in others:
        if other._rare is not None and other._rare.counter is counter_of(x) and overlap_in_part(written, other.array):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single "
                "memory location. Please clone() the tensor before performing the operation."
            )


def _check_place_in_graph(x: Tensor, others: tuple[Tensor, ...]) -> None:
    base = x._base
    if base is None:
        if x._edge is LEAF_EDGE:
            raise errors.leaf_in_place()
        return
    differentiable = x.requires_grad or base.requires_grad or any(other.requires_grad for other in others)
    if differentiable and (why := complaint(x, "is being")):
        raise RuntimeError(why)
    if base._edge is LEAF_EDGE or x._edge is LEAF_EDGE:
        raise errors.leaf_view_in_place()


def rebase(x: Tensor, result: Tensor, how: str, told: InPlace) -> None:
    """Move x, which `result` was written to, to the place of `result` in the graph, with all that shares its memory.

    For a view, the base becomes CopySlices of itself and the result. Every view gets a new node,
    AsStridedBackward0."""
    base = x._base
    if base is None:
        move_to(x, result._edge)
        take_tangent(x, result, how)
        base = x
    else:
        after = with_slices(base, x, result)
        move_to(base, after._edge)
        take_tangent(base, after, how)
        told.follows(base)
    for view in views_of(base):
        why = complaint(view, WRITTEN)
        if why:
            spoil(view, why)
            continue
        again = apply(TABLE["as_strided"], (base,), (geometry_of(view.array, base.array),))
        move_to(view, again._edge)
        take_tangent(view, again, how)
        told.follows(view)


def with_slices(base: Tensor, view: Tensor, result: Tensor) -> Tensor:
    """The base after `result` was written to its view: PyTorch's CopySlices of the op that made the result.

    Where several ops made the result, or tangents flow, CopySlices is a node of its own."""
    geometry = geometry_of(view.array, base.array)
    inner = edge_node(result._edge)
    fused = inner is not None and inner.outputs == 1 and inner.edges[0] is view._edge
    fused = fused and (view._edge is not None or base._edge is None)
    if not fused or state.dual_level:
        return apply(TABLE["copy_slices"], (base, result), (geometry,))
    node = CopySlices(base._edge, inner, geometry)  # type: ignore[arg-type]
    if state.listener is not None:
        tell_copy_slices(node, inner, base)  # type: ignore[arg-type]
    return new_tensor(base.array, node)


def move_to(x: Tensor, edge: Any) -> None:
    """Move x to another edge of the graph. Its hooks stay with the old node. `retain_grad` moves with it."""
    rare = x._rare
    if rare is not None and x._edge is not None and x._edge is not LEAF_EDGE:
        rare.hooks = None
        if rare.retains_grad:
            old: Any = edge_node(x._edge)
            new: Any = edge_node(edge)
            retainer = node_rare(old).retainers.pop(edge_nr(x._edge))
            node_rare(new).retainers[edge_nr(edge)] = retainer
    x._edge = edge


def write(x: Tensor, array: Any) -> None:
    """Write `array` to the memory of x, and increment the version."""
    if array is not x.array:
        x.array[...] = array
    counter_of(x).n += 1
    if not state.modes.grad_enabled:
        spoil_several(x if x._base is None else x._base)


def overwrite(x: Tensor, array: Any, how: str, source: Tensor | None = None, where: Where = None) -> Tensor:
    """Write `array`, which is the value of `source`, to the memory of x other than by an op, and tell the listener.
    Whoever writes to many tensors at one place says which it is, so that it is looked for only once."""
    write(x, array)
    if state.listener is not None:
        number_of(x)
        running = state.modes.running
        in_pass = 0 if running is None else running.number
        number = 0 if source is None else number_of(source)
        where = sys._getframe(1) if where is None else where
        state.listener.mutated(where, how, state_of(x), number, in_pass)
    return x


def tell_written(tensors: Sequence[Tensor], how: str, where: Where, norms: Sequence[float | None] = ()) -> None:
    """Tell the listener, if there is one, that `write` wrote to these tensors, with the norms of the changes as far as
    they are known."""
    if state.listener is not None and tensors:
        running = state.modes.running
        for x in tensors:
            number_of(x)
        in_pass = 0 if running is None else running.number
        states = [state_of(x) for x in tensors]
        for at, norm in enumerate(norms):
            if norm is not None:
                states[at] = states[at]._replace(value=Changed(states[at].value, norm))
        state.listener.all_mutated(where, how, states, in_pass)


def keep_original(node: Any, x: Tensor) -> None:
    """Replace x, where a node saved it, by a copy of its value before x is written over."""
    copy = None
    for slot in ("x", "y"):
        if getattr(node, slot, None) is x:
            copy = copy or new_tensor(x.array.copy(), x._edge)
            setattr(node, slot, copy)
            if hasattr(node, f"{slot}_version"):
                setattr(node, f"{slot}_version", 0)
    tensors = getattr(node, "tensors", None)
    if tensors is not None and any(tensor is x for tensor in tensors):
        copy = new_tensor(x.array.copy(), x._edge)
        node.versions = tuple(
            0 if tensor is x else version for tensor, version in zip(tensors, node.versions, strict=True)
        )
        node.tensors = tuple(copy if tensor is x else tensor for tensor in tensors)


def take_tangent(x: Tensor, result: Tensor, how: str) -> None:
    """Give x, which was written over, the tangent of the result, or none."""
    if not state.dual_level:
        return
    tangent = tangent_of(result)
    if tangent is not None:
        set_tangent(x, tangent, how)
    elif x._rare is not None:
        x._rare.tangent = None


def overlap_in_part(written: np.ndarray, read: np.ndarray) -> bool:
    """Whether two arrays without gaps share part of their memory, or all of it in another order (`get_overlap_status`
    in aten/src/ATen/MemoryOverlap.cpp)."""
    if written is read or not (written.size and read.size):
        return False
    (low, high), (first, last) = byte_bounds(written), byte_bounds(read)
    if high - low != written.nbytes or last - first != read.nbytes:
        return False
    if (low, high) == (first, last):
        return written.strides != read.strides
    return low < last and first < high


def is_overlapping(array: np.ndarray) -> bool:
    """Whether several elements have the same place in memory, as after `expand`."""
    return array.size > 0 and any(stride == 0 and n > 1 for n, stride in zip(array.shape, array.strides, strict=True))
