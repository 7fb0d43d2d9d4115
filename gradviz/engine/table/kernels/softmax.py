"""Softmax, its logarithm, and sums along short rows, where the way of summing makes a difference."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.core.broadcasting import is_for_blas, row_of_ones


def total(x: Any, dim: int) -> Any:
    """Σ x along one dimension, which is kept.

    `np.sum` is slow for many short rows. They are multiplied by ones instead."""
    if _goes_along_short_rows(x, dim) and is_for_blas(x):
        row = row_of_ones(x.shape[-1], x.dtype)
        return x.dot(row)[:, None] if x.ndim == 2 else np.matmul(x, row)[..., None]
    return x.sum(dim, keepdims=True)


def dot_along(x: Any, y: Any, dim: int) -> Any:
    """Σ x y along one dimension, which is kept."""
    if _goes_along_short_rows(x, dim) and is_for_blas(x) and type(y) is np.ndarray and x.dtype is y.dtype:
        return np.vecdot(x, y)[..., None]
    return (x * y).sum(dim, keepdims=True)


def _goes_along_short_rows(x: Any, dim: int) -> bool:
    return x.ndim > 1 and dim in (-1, x.ndim - 1) and x.shape[-1] <= 1024


def _top(x: np.ndarray, dim: int) -> np.ndarray:
    """The maximum along one dimension, which is kept. Many short rows are transposed first, which is faster."""
    if x.ndim == 2 and dim in (1, -1) and 1 < x.shape[1] < 16 <= x.shape[0]:
        return np.maximum.reduce(np.ascontiguousarray(x.T), 0)[:, None]
    return x.max(dim, keepdims=True, initial=-np.inf)


def softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """exp(x) / Σ exp(x) along `dim`. x is shifted by its maximum, so that nothing overflows."""
    e = np.asarray(x - _top(x, dim))
    np.exp(e, out=e)
    e /= total(e, dim)
    return e


def safe_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """`softmax`, and 0 where all elements along `dim` are −∞."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(x).all(dim, keepdims=True), x.dtype.type(0), softmax(x, dim))


def log_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """ln softmax(x) along `dim`. x is shifted by its maximum, so that nothing overflows."""
    shifted = np.asarray(x - _top(x, dim))
    shifted -= np.log(total(np.exp(shifted), dim))
    return shifted
