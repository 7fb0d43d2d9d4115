"""Indexing: elements are taken by their indices, and put there."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.table.kernels.row import row


def at(dim: int, index: Any) -> tuple:
    """The index of `index` along `dim`, and of everything along the other dimensions."""
    return (slice(None),) * dim + (index,)


def index(x: Any, index: Any) -> Any:
    """x[index]. Of an array, a single element is a view too, and a copy is contiguous."""
    taken = x[index]
    if isinstance(taken, np.generic):
        return x[(*index, ...) if isinstance(index, tuple) else (index, ...)]
    return taken if takes_each_once(index) else in_order(taken)


def in_order(x: Any) -> Any:
    """x, copied where it is an array that is not contiguous."""
    return np.asarray(x, order="C") if isinstance(x, np.ndarray) else x


def select(x: Any, dim: int, index: int) -> Any:
    """x[:, ..., index] along `dim`. Of an array, a single element is a view too."""
    return x[(*at(dim, index), ...)] if isinstance(x, np.ndarray) else x[at(dim, index)]


@row("put_back")
def put_back(g: Any, shape: tuple[int, ...], index: Any) -> Any:
    """The transpose of indexing: zeros of `shape` with `g` added at `index`."""
    whole = np.zeros(shape, g.dtype)
    if takes_each_once(index):
        whole[index] = g
    else:
        np.add.at(whole, index, g)
    return whole


def takes_each_once(index: Any) -> bool:
    """Whether an index consists of slices and integers only, so that it takes no element twice."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)


def along(index: np.ndarray, dim: int) -> tuple:
    """The index of the elements that `index` names along `dim`."""
    if index.ndim == 0:
        return (index.reshape(1),) if dim is None else (index,)
    places = list(np.ix_(*(np.arange(n) for n in index.shape)))
    places[dim] = index
    return tuple(places)


@row("gather")
def gather(x: Any, dim: int, index: np.ndarray) -> Any:
    """The elements of x that `index` names along `dim`."""
    if x.ndim == 0 or not index.size:
        return np.broadcast_to(x.reshape(-1)[:1].sum(), index.shape).copy()
    return x[along(index.reshape(1) if index.ndim == 0 else index, dim)].reshape(index.shape)


@row("spread_out")
def spread_out(g: Any, shape: tuple[int, ...], dim: int, index: np.ndarray) -> Any:
    """The transpose of `gather`: zeros of `shape` with `g` added where `index` names along `dim`."""
    return scatter_add(np.zeros(shape, g.dtype), g, dim, index)


def placed(index: np.ndarray, source: Any) -> tuple[np.ndarray, Any]:
    """The index as an array of at least one dimension, and the elements of the source that it reaches."""
    if np.ndim(source) == 0:
        return np.atleast_1d(index), source
    index = np.atleast_1d(index)
    return index, source[tuple(slice(n) for n in index.shape)]


def scatter(x: Any, source: Any, dim: int, index: np.ndarray) -> Any:
    """x with the elements of `source` put where `index` names along `dim`."""
    out = np.array(x, ndmin=1)
    index, source = placed(index, source)
    if index.size:
        out[along(index, dim or 0)] = source
    return out.reshape(x.shape)


def scatter_add(x: Any, source: Any, dim: int, index: np.ndarray) -> Any:
    """x with the elements of `source` added where `index` names along `dim`."""
    out = np.array(x, ndmin=1)
    index, source = placed(index, source)
    if index.size:
        np.add.at(out, along(index, dim or 0), source)
    return out.reshape(x.shape)


def gather_within(g: Any, shape: tuple[int, ...], dim: int, index: np.ndarray) -> Any:
    """The gradient of the source of a scatter, in the shape of the source."""
    return in_source(gather(g, dim, index), shape)


def in_source(taken: Any, shape: tuple[int, ...]) -> Any:
    """Elements that a scatter took from its source, in the shape of the source; 0 where the index did not reach."""
    if tuple(shape) == tuple(taken.shape):
        return taken
    return put_back(taken, shape, tuple(slice(n) for n in taken.shape))


def blank(g: Any, dim: int, index: np.ndarray) -> Any:
    """g, with 0 where `index` names along `dim`."""
    mask = scatter(np.zeros(g.shape, bool), True, dim, index)
    return np.where(mask, 0, g)


def index_select(x: Any, dim: int, index: np.ndarray) -> Any:
    """The slices of x along `dim` that `index` names."""
    return in_order(x[at(dim, np.atleast_1d(index))]) if x.ndim else x


def select_back(g: Any, shape: tuple[int, ...], dim: int, index: np.ndarray) -> Any:
    """The transpose of `index_select`."""
    return put_back(g, shape, at(dim, np.atleast_1d(index))) if shape else g


def _writable(x: Any) -> Any:
    return np.array(x, ndmin=1)


def index_add(x: Any, source: Any, dim: int, index: np.ndarray, alpha: Any) -> Any:
    """x with slices of `source` times `alpha` added at the places along `dim` that `index` names."""
    out = _writable(x)
    np.add.at(out, at(dim or 0, np.atleast_1d(index)), np.reshape(source * alpha, _slices(out, dim, index)))
    return out.reshape(x.shape)


def index_copy(x: Any, source: Any, dim: int, index: np.ndarray) -> Any:
    """x with slices of `source` put at the places along `dim` that `index` names."""
    out = _writable(x)
    out[at(dim or 0, np.atleast_1d(index))] = np.reshape(source, _slices(out, dim, index))
    return out.reshape(x.shape)


def _slices(x: Any, dim: int, index: np.ndarray) -> tuple[int, ...]:
    dim = dim or 0
    return (*x.shape[:dim], np.size(index), *x.shape[dim + 1 :])


def index_fill(x: Any, value: Any, dim: int, index: np.ndarray) -> Any:
    """x with `value` at the places along `dim` that `index` names."""
    out = _writable(x)
    out[at(dim or 0, np.atleast_1d(index))] = value
    return out.reshape(x.shape)


def cleared(g: Any, dim: int, index: np.ndarray) -> Any:
    """g, with 0 at the indices along `dim` that `index` names."""
    return np.where(index_fill(np.zeros(g.shape, bool), True, dim, index), 0, g)


def taken_slices(g: Any, shape: tuple[int, ...], dim: int, index: np.ndarray) -> Any:
    """The gradient of the slices that were put or added at the indices."""
    return np.reshape(index_select(g, dim, index), shape)


def with_set(x: Any, y: Any, index: Any) -> Any:
    """x with y at `index`."""
    out = np.array(x)
    out[index] = y
    return out


def with_added(x: Any, y: Any, index: Any) -> Any:
    """x with y added at `index`."""
    out = np.array(x)
    np.add.at(out, index, y)
    return out


def outside(g: Any, index: Any) -> Any:
    """g, with 0 at `index`."""
    return np.where(with_set(np.zeros(g.shape, bool), True, index), 0, g)


def masked_scatter(x: Any, source: Any, mask: np.ndarray) -> Any:
    """x with the elements of `source`, in order, where `mask` holds."""
    out = np.array(np.broadcast_to(x, mask.shape), order="C")
    out[mask] = source.reshape(-1)[: int(mask.sum())]
    return out


def masked_source(g: Any, shape: tuple[int, ...], mask: np.ndarray) -> Any:
    """The gradient of the source of `masked_scatter`."""
    flat = put_back(g[mask], (int(np.prod(shape)),), (slice(int(mask.sum())),))
    return np.reshape(flat, shape)


def with_number_filled(x: Any, value: Any, dim: int, index: np.ndarray) -> Any:
    """`index_fill` for a Python number."""
    return index_fill(x, value, dim, index)


def with_number_scattered(x: Any, value: Any, dim: int, index: np.ndarray) -> Any:
    """`scatter` for a Python number."""
    return scatter(x, value, dim, index)
