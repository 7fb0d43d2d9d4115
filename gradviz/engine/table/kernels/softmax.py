"""Softmax and its logarithm, and sums along rows so short that how they are taken matters."""

from __future__ import annotations

from typing import Any

import numpy as np

_ONES = {np.dtype(kind): np.ones(4096, kind) for kind in "fd"}


def _ones(n: int, dtype: np.dtype) -> np.ndarray:
    return _ONES[dtype][:n] if n <= 4096 else np.ones(n, dtype)


def _is_for_blas(x: Any) -> bool:
    """Whether BLAS takes an array as it lies, and it is worth while: BLAS adds in an order that depends on the
    processor, and small programs are to print the same everywhere."""
    return type(x) is np.ndarray and x.size >= 512 and x.dtype in _ONES and x.flags.c_contiguous


def sum_of_rows(x: Any) -> Any:
    """Σ x along its first dimension: of a matrix as a product with ones, which takes half the time."""
    return _ones(len(x), x.dtype).dot(x) if x.ndim == 2 and _is_for_blas(x) else x.sum(0)


def total(x: Any, dim: int) -> Any:
    """Σ x along one dimension, which stays.

    `np.sum` goes along each row with the care that long ones need; short ones are multiplied by ones."""
    if _goes_along_short_rows(x, dim) and _is_for_blas(x):
        ones = _ones(x.shape[-1], x.dtype)
        return x.dot(ones)[:, None] if x.ndim == 2 else np.matmul(x, ones)[..., None]
    return x.sum(dim, keepdims=True)


def dot_along(x: Any, y: Any, dim: int) -> Any:
    """Σ x y along one dimension, which stays."""
    if _goes_along_short_rows(x, dim) and _is_for_blas(x) and type(y) is np.ndarray and x.dtype is y.dtype:
        return np.vecdot(x, y)[..., None]
    return (x * y).sum(dim, keepdims=True)


def _goes_along_short_rows(x: Any, dim: int) -> bool:
    return x.ndim > 1 and dim in (-1, x.ndim - 1) and x.shape[-1] <= 1024


def _top(x: np.ndarray, dim: int) -> np.ndarray:
    """The greatest along one dimension, which stays. Short rows take longer than turning them into columns."""
    if x.ndim == 2 and dim in (1, -1) and 1 < x.shape[1] < 16 <= x.shape[0]:
        return np.maximum.reduce(np.ascontiguousarray(x.T), 0)[:, None]
    return x.max(dim, keepdims=True, initial=-np.inf)


def softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """exp(x) / Σ exp(x), shifted by the maximum so that it cannot overflow."""
    e = np.asarray(x - _top(x, dim))
    np.exp(e, out=e)
    e /= total(e, dim)
    return e


def safe_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """`softmax`, but 0 where all along `dim` is −∞."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(x).all(dim, keepdims=True), x.dtype.type(0), softmax(x, dim))


def log_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """ln softmax(x), shifted by the maximum so that it cannot overflow."""
    shifted = np.asarray(x - _top(x, dim))
    shifted -= np.log(total(np.exp(shifted), dim))
    return shifted
