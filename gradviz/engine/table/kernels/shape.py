"""Views, joining, and their transposes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided as _view

from gradviz.engine.table.kernels.indexing import at, select
from gradviz.engine.table.kernels.row import raw, row


def inverse_permutation(dims: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `dims`."""
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim] = position
    return tuple(inverse)


def squeeze(x: Any, dim: Any) -> Any:
    """x without dimensions of size 1: all of them, or those of `dim`."""
    if dim is None:
        return np.squeeze(x)
    dims = (dim,) if isinstance(dim, int) else dim
    return np.squeeze(x, axis=tuple(i for i in dims if x.shape[i] == 1))


def cat(tensors: Sequence[Any], dim: int) -> Any:
    """Tensors concatenated along `dim`."""
    return np.concatenate(tensors, axis=dim)


def cut_apart(g: Any, dim: int, shapes: Sequence[tuple[int, ...]]) -> list:
    """The transpose of `cat`."""
    pieces, start = [], 0
    for shape in shapes:
        piece = slice(start, start + shape[dim])
        pieces.append(g[(slice(None),) * (dim % len(shape)) + (piece,)])
        start += shape[dim]
    return pieces


def stack(tensors: Sequence[Any], dim: int) -> Any:
    """Tensors stacked along a new dimension."""
    return np.stack(tensors, axis=dim)


def unstack(g: Any, dim: int, shapes: Sequence[tuple[int, ...]]) -> list:
    """The transpose of `stack`."""
    return [g[(slice(None),) * (dim % g.ndim) + (i,)] for i in range(len(shapes))]


def reshape(x: Any, shape: tuple[int, ...]) -> Any:
    """x in another shape."""
    return x.reshape(shape)


def expand(x: Any, size: tuple[int, ...]) -> Any:
    """x with dimensions of size 1 repeated, without a copy."""
    if x.shape == size:
        return x
    repeated = np.broadcast_to(x, size)
    if isinstance(repeated, np.ndarray):  # NumPy makes it read-only, even where no elements overlap
        repeated.flags.writeable = x.flags.writeable
    return repeated


def swapped(x: Any, dim0: int, dim1: int) -> Any:
    """x with two dimensions swapped. A 0-d x is returned as it is."""
    return x.swapaxes(dim0, dim1) if x.ndim else x


@row("diagonal")
def diagonal(x: Any, offset: int, dim1: int, dim2: int) -> Any:
    """The diagonal of two dimensions, as the last dimension."""
    return np.einsum("...ii->...i", _square(x, offset, dim1, dim2))


def _square(x: Any, offset: int, dim1: int, dim2: int) -> Any:
    x = np.moveaxis(x, (dim1, dim2), (-2, -1))
    x = x[..., max(-offset, 0) :, max(offset, 0) :]
    n = min(x.shape[-2:])
    return x[..., :n, :n]


@row("diagonal_back")
def diagonal_back(g: Any, shape: tuple[int, ...], offset: int, dim1: int, dim2: int) -> Any:
    """The transpose of `diagonal`: zeros of `shape` with `g` on the diagonal."""
    whole = np.zeros(shape, g.dtype)
    diagonal(whole, offset, dim1, dim2)[...] = g
    return whole


@row("diag_embed")
def diag_embed(x: Any, offset: int, dim1: int, dim2: int) -> Any:
    """Square matrices with the last dimension of x on their diagonal."""
    n = x.shape[-1] + abs(offset)
    shape = list(x.shape[:-1])
    for dim in sorted((dim1, dim2)):
        shape.insert(dim, n)
    return diagonal_back(x, tuple(shape), offset, dim1, dim2)


@row("tril")
def tril(x: Any, diagonal: int) -> Any:
    """The lower triangle of matrices."""
    return np.tril(x, diagonal)


@row("triu")
def triu(x: Any, diagonal: int) -> Any:
    """The upper triangle of matrices."""
    return np.triu(x, diagonal)


@row("flip")
def flip(x: Any, dims: tuple[int, ...]) -> Any:
    """x reversed along `dims`."""
    return np.flip(x, dims).copy()


@row("roll")
def roll(x: Any, shifts: Any, dims: Any) -> Any:
    """x shifted along `dims`. Elements that fall off come back at the other end."""
    return np.roll(x, shifts, dims)


def negated(shifts: Any) -> Any:
    """The opposite shift."""
    return tuple(-n for n in shifts) if isinstance(shifts, tuple) else -shifts


@row("rot90")
def rot90(x: Any, k: int, dims: tuple[int, int]) -> Any:
    """x rotated by k right angles in the plane of `dims`."""
    return np.rot90(x, k, dims).copy()


def repeat(x: Any, repeats: tuple[int, ...]) -> Any:
    """x repeated along each dimension."""
    return np.tile(x, repeats)


def gather_repeats(g: Any, x_shape: tuple[int, ...], repeats: tuple[int, ...]) -> Any:
    """The transpose of `repeat`: the sum of the copies."""
    shape = (1,) * (len(repeats) - len(x_shape)) + tuple(x_shape)
    apart = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    g = np.reshape(g, tuple(apart))
    return np.reshape(np.sum(g, axis=tuple(range(0, len(apart), 2))), x_shape)


def split(x: Any, sizes: tuple[int, ...], dim: int) -> tuple:
    """x split into pieces of `sizes` along `dim`."""
    starts = np.cumsum((0, *sizes))
    return tuple(x[at(dim, slice(start, end))] for start, end in pairwise(starts))


def block_diag(blocks: Sequence[Any]) -> Any:
    """A matrix with matrices on its diagonal and zeros elsewhere."""
    blocks = [np.atleast_2d(block) for block in blocks]
    whole = np.zeros(np.sum([block.shape for block in blocks], 0), np.result_type(*blocks))
    for block, place in zip(blocks, _on_diagonal([block.shape for block in blocks]), strict=True):
        whole[place] = block
    return whole


def diagonal_blocks(g: Any, shapes: Sequence[tuple[int, ...]]) -> list:
    """The transpose of `block_diag`: the blocks on the diagonal."""
    places = _on_diagonal([(1,) * (2 - len(shape)) + tuple(shape) for shape in shapes])
    return [np.reshape(g[place], shape) for place, shape in zip(places, shapes, strict=True)]


def _on_diagonal(shapes: Sequence[tuple[int, ...]]) -> list[tuple[slice, slice]]:
    ends = np.cumsum([(0, 0), *shapes], 0).tolist()
    return [(slice(a, b), slice(c, d)) for (a, c), (b, d) in pairwise(ends)]


def joined(pieces: Any, shape: tuple[int, ...], sizes: tuple[int, ...], dim: int) -> Any:
    """The transpose of `split`: the pieces concatenated. Zeros stand for a piece that is None."""
    present = next(piece for piece in pieces if piece is not None)
    filled = []
    for piece, size in zip(pieces, sizes, strict=True):
        blank = np.zeros((*shape[:dim], size, *shape[dim + 1 :]), _dtype_of(present))
        filled.append(blank if piece is None else piece)
    return _together(np.concatenate, filled, dim)


def unbind(x: Any, dim: int) -> tuple:
    """The slices of x along `dim`. The dimension goes away."""
    return tuple(select(x, dim, i) for i in range(x.shape[dim]))


def bound(slices: Any, shape: tuple[int, ...], dim: int) -> Any:
    """The transpose of `unbind`: the slices stacked. Zeros stand for a slice that is None."""
    present = next(piece for piece in slices if piece is not None)
    blank = np.zeros(present.shape, _dtype_of(present))
    return _together(np.stack, [blank if piece is None else piece for piece in slices], dim)


def _dtype_of(x: Any) -> Any:
    return raw(x).dtype


def _together(join: Any, pieces: list, dim: int) -> Any:
    """`np.concatenate` or `np.stack`, for Tensors too."""
    return join(pieces, axis=dim)


@row("unfold")
def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    """All windows of `size` along `dim`, as a new last dimension."""
    if x.ndim == 0:
        return x[None][:size]
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dim, writeable=x.flags.writeable)
    return windows[at(dim, slice(None, None, step))]


@row("fold_windows")
def fold_windows(g: Any, shape: tuple[int, ...], dim: int, size: int, step: int) -> Any:
    """The transpose of `unfold`: each window is added at its place."""
    if not shape:
        return g.sum().reshape(())
    whole = np.zeros(shape, g.dtype)
    for i in range(g.shape[dim]):
        whole[at(dim, slice(i * step, i * step + size))] += np.moveaxis(g[at(dim, i)], -1, dim)
    return whole


def copied_over(x: Any, y: Any) -> Any:
    """A copy of y, broadcast to the shape and cast to the dtype of x."""
    return np.array(np.broadcast_to(y, x.shape), x.dtype, order="C")


@row("view_as_real")
def pairs_of_complex(x: Any) -> Any:
    """The view of complex numbers as pairs of real numbers, in a new last dimension."""
    return _view(x.real, (*x.shape, 2), (*x.strides, x.itemsize // 2))


@row("view_as_complex")
def complex_of_pairs(x: Any) -> Any:
    """The complex numbers whose parts are in the last dimension."""
    return x[..., 0] + np.asarray(1j, np.result_type(x.dtype, np.complex64)) * x[..., 1]
