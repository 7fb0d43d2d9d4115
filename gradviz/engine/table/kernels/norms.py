"""Norms and the distances that they measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.table.kernels.elementwise import sgn
from gradviz.engine.table.kernels.indexing import put_back
from gradviz.engine.table.kernels.reductions import spread


def vector_norm(x: Any, ord: float, dim: Any, keepdim: bool) -> Any:
    """(Σ |x|^ord)^(1/ord); for ±inf the greatest or least of |x|, for 0 how many are not 0."""
    magnitudes = np.abs(x)
    if ord == np.inf:
        return np.max(magnitudes, axis=dim, keepdims=keepdim)
    if ord == -np.inf:
        return np.min(magnitudes, axis=dim, keepdims=keepdim)
    if ord == 0:
        return np.sum(x != 0, axis=dim, keepdims=keepdim).astype(x.dtype)
    if ord == 1:
        return np.sum(magnitudes, axis=dim, keepdims=keepdim)
    if ord == 2:
        return np.sqrt(np.sum(np.square(x), axis=dim, keepdims=keepdim))
    return np.sum(magnitudes**ord, axis=dim, keepdims=keepdim) ** (1 / ord)


def dist(x: Any, y: Any, p: float) -> Any:
    """The p-norm of x − y."""
    return vector_norm(x - y, p, None, False)


def norm_back(slope: Callable, g: Any, x: Any, out: Any, ord: float, dim: Any, keepdim: bool) -> Any:
    """The gradient of a norm: g times its slope, which is one of the functions below."""
    g, out = spread(g, x.shape, dim, keepdim), spread(out, x.shape, dim, keepdim)
    return g * slope(x, out, ord, dim)


def slope_of_count(x: Any, out: Any, ord: float, dim: Any) -> Any:
    """The slope of the norm of order 0: 0."""
    return 0


def slope_of_sum(x: Any, out: Any, ord: float, dim: Any) -> Any:
    """The slope of the norm of order 1: the sign of x."""
    return sgn(x)


def slope_of_length(x: Any, out: Any, ord: float, dim: Any) -> Any:
    """The slope of the norm of order 2: x / out, and 0 where out is 0."""
    return np.where(out == 0, 0, x / np.where(out == 0, 1, out))


def slope_of_extreme(x: Any, out: Any, ord: float, dim: Any) -> Any:
    """The slope of the norms of orders ∞ and −∞: the sign of x where it is the extreme, shared by ties."""
    taken = np.abs(x) == out
    ties = np.sum(taken, axis=dim, keepdims=True)
    return np.sign(x) * (taken / ties)


def slope_of_norm(x: Any, out: Any, ord: float, dim: Any) -> Any:
    """The slope of any other norm: sign(x) |x|^(ord−1) / out^(ord−1), and 0 where that has no value."""
    zero = (x == 0) if ord < 2 else np.zeros(x.shape, bool)
    size = np.where(zero, 1, np.abs(x))
    powers = np.sign(x) * size ** (ord - 1) / np.where(out == 0, 1, out) ** (ord - 1)
    return np.where(zero | (out == 0), 0, powers)


def cdist(x: Any, y: Any, p: float) -> Any:
    """The p-norm distances between the rows of x and those of y."""
    return vector_norm(np.expand_dims(x, -2) - np.expand_dims(y, -3), p, -1, False)


def cdist_back(slope: Callable, g: Any, x: Any, y: Any, out: Any, p: float) -> Any:
    """The gradient of each difference of a row of x and one of y."""
    return norm_back(slope, g, np.expand_dims(x, -2) - np.expand_dims(y, -3), out, p, -1, False)


def pdist(x: Any, p: float) -> Any:
    """The p-norm distances between every two rows of a matrix, as one vector."""
    rows, columns = np.triu_indices(x.shape[0], 1)
    return vector_norm(x[rows] - x[columns], p, -1, False)


def pdist_back(slope: Callable, g: Any, x: Any, out: Any, p: float) -> Any:
    """The gradient of `pdist`."""
    rows, columns = np.triu_indices(x.shape[0], 1)
    apart = norm_back(slope, g, x[rows] - x[columns], out, p, -1, False)
    return put_back(apart, x.shape, rows) - put_back(apart, x.shape, columns)
