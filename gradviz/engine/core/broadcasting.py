"""The transpose of broadcasting: the gradient of a repeated input is summed."""

from __future__ import annotations

from typing import Any

import numpy as np

_ONES = {np.dtype(kind): np.ones(4096, kind) for kind in "fd"}


def row_of_ones(n: int, dtype: np.dtype) -> np.ndarray:
    """n ones of that dtype (float32 or float64)."""
    return _ONES[dtype][:n] if n <= 4096 else np.ones(n, dtype)


def is_for_blas(x: Any) -> bool:
    """Whether BLAS can sum an array as it lies in memory, and is worth its cost.

    BLAS adds in an order that depends on the processor. Small arrays are not for it, so that small programs print
    the same numbers everywhere."""
    return type(x) is np.ndarray and x.size >= 512 and x.dtype in _ONES and x.flags.c_contiguous


def sum_of_rows(x: Any) -> Any:
    """Σ x along its first dimension. Large matrices are multiplied by ones, which takes half the time."""
    return row_of_ones(len(x), x.dtype).dot(x) if x.ndim == 2 and is_for_blas(x) else x.sum(0)


def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum g over what broadcasting repeated. g has the shape that `shape` was broadcast to; the result has `shape`."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    if g.shape[extra:] == shape:
        return sum_of_rows(g) if extra == 1 else g.sum((*range(extra),))
    repeated = [extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1]
    return g.sum((*range(extra), *repeated)).reshape(shape)
