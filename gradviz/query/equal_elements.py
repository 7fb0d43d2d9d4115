"""Whether two arrays have the same elements, and how far they are apart."""

from __future__ import annotations

import numpy as np


def same_elements(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same shape and elements; a NaN is equal to a NaN."""
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same dtype and elements; a NaN is equal to a NaN."""
    return one.dtype == other.dtype and same_elements(one, other)


def largest_change(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between elements of two arrays of one shape; infinite if only one of the elements is
    finite."""
    if not one.size:
        return 0.0
    wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    left, right = one.astype(wide), other.astype(wide)
    with np.errstate(all="ignore"):
        apart = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max())
