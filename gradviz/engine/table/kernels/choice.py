"""Selection by a condition, conversion, copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.basics.memory_format import laid_out


def where(x: Any, y: Any, condition: Any) -> Any:
    """x where the condition holds, else y."""
    return np.where(condition, x, y)


def to(x: Any, dtype: Any) -> Any:
    """x in another dtype."""
    return x.astype(dtype)


def cast(x: Any, dtype: Any, memory_format: Any) -> Any:
    """A copy of x in another dtype, in that memory format. None keeps the order of the elements."""
    copy = x.astype(dtype)
    return copy if memory_format is None else laid_out(copy, memory_format)


def clone(x: Any, memory_format: Any) -> Any:
    """A copy of x, in that memory format. None keeps the order of the elements."""
    laid = x if memory_format is None else laid_out(x, memory_format)
    return np.copy(x) if laid is x else laid


def filled(x: Any, value: Any) -> Any:
    """An array of the shape and dtype of x, filled with one value."""
    return np.full(x.shape, value, x.dtype)


def same(x: Any) -> Any:
    """x."""
    return x


def with_masked_fill(x: Any, value: Any, mask: Any) -> Any:
    """x, but `value` where `mask`."""
    return np.asarray(np.where(mask, value, x), order="C")


def with_number_masked(x: Any, value: Any, mask: Any) -> Any:
    """`with_masked_fill` for a Python number."""
    return np.asarray(np.where(mask, np.asarray(value, x.dtype), x), order="C")
