"""Choosing, converting, being the same."""

from __future__ import annotations

from typing import Any

import numpy as np


def where(x: Any, y: Any, condition: Any) -> Any:
    """x where the condition holds, else y."""
    return np.where(condition, x, y)


def to(x: Any, dtype: Any) -> Any:
    """x in another dtype."""
    return x.astype(dtype)


def same(x: Any) -> Any:
    """x."""
    return x


def cloned(x: Any, contiguous: bool) -> Any:
    """A copy of x, with its elements in order in memory or laid out as they are."""
    return np.array(x, order="C" if contiguous else "K")


def with_masked_fill(x: Any, value: Any, mask: Any) -> Any:
    """x, but `value` where `mask`."""
    return np.where(mask, value, x)


def with_number_masked(x: Any, value: Any, mask: Any) -> Any:
    """`masked_fill` with a number."""
    return np.where(mask, np.asarray(value, x.dtype), x)
