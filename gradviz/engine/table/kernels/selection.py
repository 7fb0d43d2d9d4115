"""Selection along a dimension: values and their indices."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradviz.engine.table.kernels.indexing import spread_out
from gradviz.engine.table.kernels.row import raw


def chosen(x: Any, indices: np.ndarray, dim: int, keepdim: bool) -> tuple:
    """The elements that `indices` names along `dim`, and the indices. `indices` has kept `dim`."""
    if x.ndim == 0:
        return x.copy(), np.zeros((), np.int64)
    values = np.take_along_axis(x, indices, dim)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def max_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The maxima along `dim`, and their indices."""
    return chosen(x, np.argmax(x, axis=dim, keepdims=True) if x.ndim else x, dim, keepdim)


def min_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The minima along `dim`, and their indices."""
    return chosen(x, np.argmin(x, axis=dim, keepdims=True) if x.ndim else x, dim, keepdim)


def kth(x: Any, k: int, dim: int, keepdim: bool) -> tuple:
    """The k-th smallest elements along `dim`, counted from 1, and their indices."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    return chosen(x, at_place(np.argsort(x, axis=dim, kind="stable"), k - 1, dim), dim, keepdim)


def at_place(order: np.ndarray, place: int, dim: int) -> np.ndarray:
    """One slice along `dim`. The dimension is kept."""
    return np.take(order, [place], axis=dim)


def median_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The medians along `dim`, and their indices: the lower of two, and NaN where there is one."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    order = np.argsort(x, axis=dim, kind="stable")
    middle = at_place(order, (x.shape[dim] - 1) // 2, dim)
    nans = np.isnan(x)
    first_nan = np.argmax(nans, axis=dim, keepdims=True)
    return chosen(x, np.where(nans.any(axis=dim, keepdims=True), first_nan, middle), dim, keepdim)


def nanmedian_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The medians along `dim` of the elements that are not NaN, and their indices."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    last = np.maximum((~np.isnan(x)).sum(axis=dim, keepdims=True) - 1, 0)
    middle = np.take_along_axis(np.argsort(x, axis=dim, kind="stable"), last // 2, dim)  # NaN is sorted last
    return chosen(x, middle, dim, keepdim)


def nanmedian(x: Any) -> Any:
    """The median of all elements that are not NaN."""
    flat = x.reshape(-1)
    return nanmedian_along(flat, 0, False)[0] if flat.size else np.asarray(np.nan, x.dtype)


def mode(x: Any, dim: int, keepdim: bool) -> tuple:
    """The most frequent elements along `dim` (the least of several), and the last index of each."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    places = np.apply_along_axis(_place_of_mode, dim, x).astype(np.int64)
    return chosen(x, np.expand_dims(places, dim), dim, keepdim)


def _place_of_mode(row: np.ndarray) -> int:
    values, counts = np.unique(row, return_counts=True)
    best = values[counts.argmax()]
    same = np.isnan(row) if best != best else row == best
    return int(np.flatnonzero(same)[-1])


def cut_out(g: Any, shape: tuple[int, ...], indices: np.ndarray, dim: int, keepdim: bool) -> Any:
    """The transpose of a selection: zeros, with `g` where the selected elements were."""
    indices = np.asarray(raw(indices))
    if not shape:
        return g
    if not keepdim:
        g, indices = np.expand_dims(g, dim), np.expand_dims(indices, dim)
    return spread_out(g, shape, dim, indices)


def median(x: Any) -> Any:
    """The median of all elements: the lower of two, and NaN where there is one."""
    flat = x.reshape(-1)
    return median_along(flat, 0, False)[0] if flat.size else np.asarray(np.nan, x.dtype)


def cummax(x: Any, dim: int) -> tuple:
    """The maximum of all elements up to each element, and its index: the last of ties."""
    return _running(x, dim, lambda new, best: (new >= best) | np.isnan(new))


def cummin(x: Any, dim: int) -> tuple:
    """The minimum of all elements up to each element, and its index: the last of ties."""
    return _running(x, dim, lambda new, best: (new <= best) | np.isnan(new))


def _running(x: Any, dim: int, takes: Any) -> tuple:
    values, indices = np.array(x, ndmin=1), np.zeros(np.shape(x) or (1,), np.int64)
    by_place, at_places = np.moveaxis(values, dim, 0), np.moveaxis(indices, dim, 0)
    for i in range(1, len(by_place)):
        better = takes(by_place[i], by_place[i - 1])
        at_places[i] = np.where(better, i, at_places[i - 1])
        by_place[i] = np.where(better, by_place[i], by_place[i - 1])
    return values.reshape(x.shape), indices.reshape(x.shape)


def sort(x: Any, dim: int, descending: bool) -> tuple:
    """x sorted along `dim`, and the indices of its elements. Ties keep their order."""
    if x.ndim == 0:
        return x.copy(), np.zeros((), np.int64)
    return chosen(x, order_of(x, dim, descending), dim, True)


def order_of(x: Any, dim: int, descending: bool) -> np.ndarray:
    """The indices that sort x along `dim`; NaN counts as the greatest."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    backwards = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - backwards, dim).copy()


def topk(x: Any, k: int, dim: int, largest: bool) -> tuple:
    """The k greatest (or least) elements along `dim` in order, and their indices."""
    if x.ndim == 0:
        return x.copy(), np.zeros((), np.int64)
    return chosen(x, np.take(order_of(x, dim, largest), range(k), axis=dim), dim, True)


def unique(x: Any, dim: int | None) -> tuple:
    """The distinct elements (slices along `dim`) in order, the place of each among them, and their counts. NaNs are
    not equal."""
    return np.unique(x, return_inverse=True, return_counts=True, axis=dim, equal_nan=False)


def unique_consecutive(x: Any, dim: int | None) -> tuple:
    """x without consecutive duplicates, the place of each element in the result, and the counts."""
    rows = x.reshape(-1) if dim is None else np.moveaxis(x, dim, 0)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    begins = np.ones(len(rows), bool)
    begins[1:] = (flat[1:] != flat[:-1]).any(1)
    starts = np.flatnonzero(begins)
    values = rows[starts] if dim is None else np.moveaxis(rows[starts], 0, dim)
    inverse = (np.cumsum(begins) - 1).reshape(x.shape if dim is None else (len(rows),))
    return np.asarray(values, order="C"), inverse, np.diff(np.append(starts, len(rows)))
