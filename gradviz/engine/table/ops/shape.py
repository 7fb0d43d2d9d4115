"""Views, and functions that rearrange elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import dtype
from gradviz.engine.basics.shape_errors import not_expandable, too_few_sizes
from gradviz.engine.core.apply import apply
from gradviz.engine.core.op import Op, called
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import Geometry, geometry_of
from gradviz.engine.table.ops.choice import contiguous
from gradviz.engine.table.ops.reductions import checked_dim, dims_of


def sizes(shape: tuple) -> tuple[int, ...]:
    """Sizes that are given one by one, or as one sequence, as a tuple of ints."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    return tuple(map(int, shape))


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """x in another shape. One size may be −1. It is a view where that is possible, else a copy."""
    return reshaped(x, _resolved(sizes(shape), x))


def reshaped(x: Tensor, wanted: tuple[int, ...], name: str = "reshape") -> Tensor:
    """x in a shape that its elements fit into. Under another name the program does not write the shape."""
    hidden = () if name == "reshape" else ("shape",)
    if x.array.flags.c_contiguous:
        return apply(called(TABLE["reshape"], name, hidden), (x,), (wanted,))
    if _is_viewable(x.array, wanted):
        return apply(called(TABLE["reshape_alias"], name, hidden), (x,), (wanted,))
    return unsafe_view(contiguous(x), wanted)


def view(x: Tensor, *shape: Any) -> Tensor:
    """A view of x in another shape. One size may be −1.

    Raises RuntimeError where the elements do not fit, or where that needs a copy; NotImplementedError for a dtype."""
    if len(shape) == 1 and isinstance(shape[0], dtype):
        raise NotImplementedError("gradviz does not see memory as another dtype; use .to(dtype) to convert")
    wanted = _resolved(sizes(shape), x)
    if not (x.array.flags.c_contiguous or _is_viewable(x.array, wanted)):
        raise RuntimeError(
            "view size is not compatible with input tensor's size and stride (at least one dimension spans "
            "across two contiguous subspaces). Use .reshape(...) instead."
        )
    return apply(called(TABLE["reshape"], "view"), (x,), (wanted,))


def unsafe_view(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """x in another shape, for an x that nobody else has. It is no view for autograd."""
    return apply(TABLE["unsafe_view"], (x,), (shape,))


def _is_viewable(array: np.ndarray, shape: tuple[int, ...]) -> bool:
    """Whether an array can have another shape without a copy."""
    return not array.size or np.may_share_memory(array, array.reshape(shape))


def _resolved(wanted: tuple[int, ...], x: Tensor) -> tuple[int, ...]:
    """The wanted shape, with a size in the place of −1. Raises RuntimeError where the elements of x do not fit."""
    if math.prod(wanted) == x.array.size and min(wanted, default=0) >= 0:
        return wanted
    try:
        return np.broadcast_to(np.empty(()), x.array.shape).reshape(wanted).shape
    except ValueError:
        raise RuntimeError(f"shape '{list(wanted)}' is invalid for input of size {x.array.size}") from None


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """x with the dimensions from `start_dim` to `end_dim` merged."""
    ndim = x.array.ndim
    start, end = checked_dim(start_dim, ndim), checked_dim(end_dim, ndim)
    if ndim == 0:
        return reshaped(x, (1,), "flatten")
    if start == end:
        return x
    wanted = (*x.array.shape[:start], math.prod(x.array.shape[start : end + 1]), *x.array.shape[end + 1 :])
    return reshaped(x, wanted, "flatten")


Plan = tuple[Op, tuple]  # a row, and the arguments to apply it with


def plan_of_as_strided(x: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Plan:
    """The row and arguments of `as_strided`. Raises RuntimeError where the view would exceed the memory of x."""
    base = x._base if x._base is not None else x
    own = geometry_of(x.array, base.array)
    offset = (own.offset if storage_offset is None else storage_offset) - own.offset
    wanted = Geometry(tuple(size), tuple(stride), offset, own.stride)
    last = offset + sum((n - 1) * s for n, s in zip(wanted.size, wanted.stride, strict=True))
    reach = sum((n - 1) * s for n, s in zip(x.array.shape, own.stride, strict=True))
    if offset < 0 or (last > reach and 0 not in wanted.size):
        raise RuntimeError(
            f"as_strided: size {list(wanted.size)}, stride {list(wanted.stride)} and storage offset "
            f"{storage_offset or 0} reach beyond the {x.array.size} elements of the tensor"
        )
    return TABLE["as_strided"], (wanted,)


def as_strided(x: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """The view of the memory of x with that size. `stride` and `storage_offset` are counted in elements.

    Raises RuntimeError where the view would exceed the memory of x."""
    op, args = plan_of_as_strided(x, size, stride, storage_offset)
    return apply(op, (x,), args)


def plan_of_t(x: Tensor) -> Plan:
    """The row and arguments of `t`. Raises RuntimeError for more than two dimensions."""
    if x.array.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.array.ndim}D")
    return TABLE["t"], ()


def t(x: Tensor) -> Tensor:
    """The transpose of a matrix; a vector is returned as it is. Raises RuntimeError for more than two dimensions."""
    op, args = plan_of_t(x)
    return apply(op, (x,), args)


def plan_of_transpose(x: Tensor, dim0: int, dim1: int) -> Plan:
    """The row and arguments of `transpose`."""
    n = x.array.ndim
    return TABLE["transpose"], (checked_dim(dim0, n), checked_dim(dim1, n))


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """A view of x with two dimensions swapped."""
    op, args = plan_of_transpose(x, dim0, dim1)
    return apply(op, (x,), args)


def permute(x: Tensor, *dims: Any) -> Tensor:
    """A view of x with its dimensions in another order. `dims` has all of them."""
    order = sizes(dims)
    if len(order) != x.array.ndim:
        raise RuntimeError(
            "permute(sparse_coo): number of dimensions in the tensor input does not match the length of the desired "
            f"ordering of dimensions i.e. input.dim() = {x.array.ndim} is not equal to len(dims) = {len(order)}"
        )
    return apply(TABLE["permute"], (x,), (tuple(checked_dim(i, x.array.ndim) for i in order),))


def expand(x: Tensor, *size: Any) -> Tensor:
    """A view of x in which dimensions of size 1 are repeated. −1 keeps a size."""
    wanted = sizes(size)
    extra = len(wanted) - x.array.ndim
    if extra < 0:
        raise too_few_sizes(x.array, wanted)
    if (error := not_expandable(x.array.shape, wanted)) is not None:
        raise error
    full = tuple(x.array.shape[i - extra] if n == -1 else n for i, n in enumerate(wanted))
    return apply(TABLE["expand"], (x,), (full,))


def plan_of_squeeze(x: Tensor, dim: Any = None) -> Plan:
    """The row and arguments of `squeeze`."""
    if isinstance(dim, (tuple, list)):
        return TABLE["squeeze_dims"], (dims_of(x, dim) or (),)
    return TABLE["squeeze" if dim is None else "squeeze_dim"], (dims_of(x, dim),)


def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """A view of x without its dimensions of size 1: all of them, or those of `dim`."""
    op, args = plan_of_squeeze(x, dim)
    return apply(op, (x,), args)


def plan_of_unsqueeze(x: Tensor, dim: int) -> Plan:
    """The row and arguments of `unsqueeze`."""
    return TABLE["unsqueeze"], (checked_dim(dim, x.array.ndim + 1),)


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """A view of x with a new dimension of size 1."""
    op, args = plan_of_unsqueeze(x, dim)
    return apply(op, (x,), args)


def swapaxes(x: Tensor, axis0: int, axis1: int) -> Tensor:
    """A view of x with two dimensions swapped."""
    return transpose(x, axis0, axis1)


swapdims = swapaxes


def movedim(x: Tensor, source: Any, destination: Any) -> Tensor:
    """A view of x with some dimensions moved."""
    n = x.array.ndim
    if not n:
        return apply(TABLE["alias"], (x,))
    sources = [checked_dim(i, n) for i in _several(source)]
    places = [checked_dim(i, n) for i in _several(destination)]
    if len(set(sources)) != len(sources) or len(set(places)) != len(places) or len(sources) != len(places):
        raise RuntimeError("movedim: repeated dim in `source` or `destination`, or not as many of both")
    order = [i for i in range(n) if i not in sources]
    for place, i in sorted(zip(places, sources, strict=True)):
        order.insert(place, i)
    return permute(x, *order)


moveaxis = movedim


def _several(dims: Any) -> tuple:
    return tuple(dims) if isinstance(dims, (tuple, list)) else (dims,)


def ravel(x: Tensor) -> Tensor:
    """x in one dimension."""
    return reshape(x, -1)


def unflatten(x: Tensor, dim: int, sizes: Any) -> Tensor:
    """x with one dimension split into several. One size may be −1."""
    dim = checked_dim(dim, x.array.ndim)
    n = x.array.shape[dim]
    if -1 not in sizes and math.prod(sizes) != n:
        raise RuntimeError(
            f"unflatten: Provided sizes {list(sizes)} don't multiply up to the size of dim {dim} ({n}) in the input "
            "tensor"
        )
    return reshape(x, *x.array.shape[:dim], *sizes, *x.array.shape[dim + 1 :])


def diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    """A view of the diagonal of two dimensions, as the last dimension."""
    n = x.array.ndim
    dims = checked_dim(dim1, n), checked_dim(dim2, n)
    if dims[0] == dims[1]:
        raise RuntimeError(f"diagonal dimensions cannot be identical {dim1}, {dim2}")
    return apply(TABLE["diagonal"], (x,), (offset, *dims))


def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Square matrices that have the last dimension of x on a diagonal."""
    n = x.array.ndim + 1
    return apply(TABLE["diag_embed"], (x,), (offset, checked_dim(dim1, n), checked_dim(dim2, n)))


def diag(x: Tensor, diagonal: int = 0) -> Tensor:
    """A matrix with the vector x on a diagonal, or a copy of a diagonal of the matrix x."""
    if x.array.ndim == 1:
        return diag_embed(x, diagonal)
    if x.array.ndim != 2:
        raise RuntimeError(f"diag(): Supports 1D or 2D tensors. Got {x.array.ndim}D")
    return apply(TABLE["diagonal_copy"], (x,), (diagonal, 0, 1))


def diagflat(x: Tensor, offset: int = 0) -> Tensor:
    """A matrix with all elements of x on a diagonal."""
    return diag_embed(ravel(x), offset)


def _check_matrices(name: str, x: Tensor) -> None:
    if x.array.ndim < 2:
        raise RuntimeError(f"{name}: input tensor must have at least 2 dimensions")


def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    """The lower triangle of matrices, up to a diagonal. The rest is 0."""
    _check_matrices("tril", x)
    return apply(TABLE["tril"], (x,), (int(diagonal),))


def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    """The upper triangle of matrices, from a diagonal on. The rest is 0."""
    _check_matrices("triu", x)
    return apply(TABLE["triu"], (x,), (int(diagonal),))


def flip(x: Tensor, *axes: Any, dims: Any = ()) -> Tensor:
    """A copy of x reversed along `dims`."""
    dims = axes or ((dims,) if isinstance(dims, int) else dims)
    wanted = tuple(checked_dim(i, x.array.ndim) for i in sizes(dims))
    return apply(TABLE["flip"], (x,), (wanted if x.array.ndim else (),))


def fliplr(x: Tensor) -> Tensor:
    """A copy of x reversed along its second dimension."""
    return flip(x, 1)


def flipud(x: Tensor) -> Tensor:
    """A copy of x reversed along its first dimension."""
    return flip(x, 0)


def roll(x: Tensor, shifts: Any, dims: Any = None) -> Tensor:
    """x shifted along `dims`, or as if it were flat. Elements that fall off come back at the other end."""
    shifts = tuple(shifts) if isinstance(shifts, (tuple, list)) else shifts
    if not x.array.ndim and dims not in (None, (), []):
        raise IndexError(f"Dimension specified as {dims} but tensor has no dimensions")
    axis = dims_of(x, dims)
    if not x.array.ndim:
        axis = None
        shifts = 0
    elif axis is None and isinstance(shifts, tuple):
        (shifts,) = shifts
    return apply(TABLE["roll"], (x,), (shifts, axis))


def rot90(x: Tensor, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    """x rotated by k right angles in the plane of two dimensions."""
    return apply(TABLE["rot90"], (x,), (k, tuple(dims)))


def repeat(x: Tensor, *repeats: Any) -> Tensor:
    """x repeated along each dimension."""
    wanted = sizes(repeats)
    if len(wanted) < x.array.ndim:
        raise RuntimeError("Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor")
    return apply(TABLE["repeat"], (x,), (wanted,))


def tile(x: Tensor, *dims: Any) -> Tensor:
    """x repeated along each dimension. Dimensions that are not given are not repeated."""
    wanted = sizes(dims)
    return repeat(x, *(1,) * (x.array.ndim - len(wanted)), *wanted)


def unfold(x: Tensor, dimension: int, size: int, step: int) -> Tensor:
    """A view of all windows of `size` along a dimension, `step` apart, as a new last dimension."""
    dim = checked_dim(dimension, x.array.ndim)
    return apply(TABLE["unfold"], (x,), (dim, size, step))
