"""Views by strides: which elements of a tensor a view shows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided as numpy_view

from gradviz.engine.table.kernels.indexing import index, outside, put_back


class Geometry(NamedTuple):
    """Where a view lies in the memory of a tensor. Strides and offset are counted in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    within: tuple[int, ...]  # the strides of the tensor itself

    def __repr__(self) -> str:
        return f"size {self.size}, stride {self.stride}, offset {self.offset}"


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    """An array's strides, in elements."""
    return tuple(stride // array.itemsize for stride in array.strides)


def geometry_of(view: np.ndarray, whole: np.ndarray) -> Geometry:
    """Where `view` lies in `whole`, whose memory it shares."""
    offset = (view.ctypes.data - whole.ctypes.data) // whole.itemsize
    return Geometry(view.shape, strides_of(view), offset, strides_of(whole))


def places(shape: tuple[int, ...], geometry: Geometry) -> np.ndarray:
    """The flat index in the tensor of each element of the view; −1 where there is none."""
    count = int(np.prod(shape))
    reach = sum((n - 1) * s for n, s in zip(geometry.size, geometry.stride, strict=True)) + geometry.offset
    own = sum((n - 1) * s for n, s in zip(shape, geometry.within, strict=True))
    memory = np.full(max(reach, own, 0) + 1, -1)
    if count:
        _view(memory, shape, geometry.within)[...] = np.arange(count).reshape(shape)
    return _view(memory[geometry.offset :], geometry.size, geometry.stride).copy()


def _view(memory: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    return numpy_view(memory, shape, [stride * memory.itemsize for stride in strides])


def as_strided(x: Any, geometry: Geometry) -> Any:
    """The view of x. Where the memory of x does not lie as `geometry` says, a copy of the elements."""
    if isinstance(x, np.ndarray) and strides_of(x) == geometry.within:
        if not x.size:
            return x.reshape(geometry.size)
        memory = numpy_view(x, (max(1, geometry.offset + 1),), (x.itemsize,))
        return _view(memory[geometry.offset :], geometry.size, geometry.stride)
    return shown(x, geometry)


def shown(x: Any, geometry: Geometry) -> Any:
    """A copy of the elements of x that the view shows."""
    return index(x.reshape(-1), (places(x.shape, geometry),))


def strided_back(g: Any, shape: tuple[int, ...], geometry: Geometry) -> Any:
    """The transpose of `as_strided`: zeros of `shape`, with g added where the view lies."""
    flat = put_back(g, (int(np.prod(shape)),), (places(shape, geometry),))
    return flat.reshape(shape)


def with_slices(x: Any, y: Any, geometry: Geometry) -> Any:
    """x with y where the view lies."""
    flat = np.array(x, order="C").reshape(-1)
    flat[places(x.shape, geometry)] = y
    return flat.reshape(x.shape)


def outside_slices(g: Any, geometry: Geometry) -> Any:
    """g, with 0 where the view lies."""
    return outside(g.reshape(-1), (places(g.shape, geometry),)).reshape(g.shape)
