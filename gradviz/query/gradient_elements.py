"""The elements of gradients: of a whole gradient, or of a region that an element is broadcast to."""

from __future__ import annotations

import numpy as np

from gradviz.query.query import Query
from gradviz.tracefile.sound import dtype_of

Region = (
    tuple[int | None, ...] | None
)  # an element, with None for the whole of a dimension; None for the whole tensor
_COARSE = {"bfloat16": 2.0**-7}


def elements(query: Query, tensor: int, event: int, region: Region) -> np.ndarray | None:
    """The elements of a region of a tensor just after an event, in double precision; None if they were not kept."""
    snapshot = query.memory.value(tensor, event)
    if snapshot is None or snapshot.array is None:
        return None
    return part_of(snapshot.array, region)


def part_of(array: np.ndarray, region: Region) -> np.ndarray:
    """A region of an array, in double precision."""
    wide = np.complex128 if array.dtype.kind == "c" else np.float64
    at = () if region is None else tuple(slice(None) if at is None else at for at in region)
    return np.asarray(array[at].astype(wide))


def shape(query: Query, tensor: int, event: int) -> tuple[int, ...] | None:
    """The shape of a tensor just after an event; None if it is not known."""
    snapshot = query.memory.value(tensor, event)
    return None if snapshot is None else snapshot.shape


def rounding(query: Query, tensor: int, event: int) -> float:
    """The relative rounding error of a tensor's dtype; 0 for a dtype of whole numbers."""
    snapshot = query.memory.value(tensor, event)
    name = "float32" if snapshot is None else snapshot.dtype
    dtype = dtype_of(name)
    is_rounded = dtype is not None and dtype.kind in "fc"
    return _COARSE.get(name) or (float(np.finfo(dtype).eps) if is_rounded else 0.0)


def broadcast(region: Region, below: tuple[int, ...] | None, above: tuple[int, ...] | None) -> Region:
    """The part of an elementwise op's result (of shape `above`) that a region of an input (of shape `below`) goes to;
    None, the whole result, if that part is not known."""
    if region is None or below is None or above is None or len(below) > len(above):
        return None
    new = len(above) - len(below)
    if any(size not in (1, wide) for size, wide in zip(below, above[new:], strict=True)):
        return None
    spread = [
        None if size == 1 and wide != 1 else at
        for at, size, wide in zip(region, below, above[new:], strict=True)
    ]
    return (*[None] * new, *spread)
