"""Computes the statistics that predicates use, one value at a time and only as needed."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from gradviz.events.handles import elements_of
from gradviz.events.values import stats_of


def is_finite(value: Any) -> bool:
    """Whether a value has no NaN and no infinity, as far as its elements can be read."""
    values = elements_of(value)
    if values is None or values.dtype.kind not in "fc":
        return True
    # A finite sum of squares proves in one call that every element is finite. The reverse is not true: it may
    # overflow.
    if values.dtype.itemsize >= 4 and isfinite(abs(np.vdot(values, values))):
        return True
    return bool(np.isfinite(values).all())


def measured(values: Any, statistic: str) -> float:
    """One statistic of an array or a snapshot, as `stats_of` defines it; NaN if it is unknown."""
    array = getattr(values, "array", None)
    if hasattr(values, "stats") and array is None:
        return _of_snapshot(values, statistic)
    array = elements_of(values) if array is None else np.asarray(array)
    if array is None:
        return float("nan")
    if statistic in _EXTENTS:
        return _EXTENTS[statistic](array)
    if statistic in _QUICK and array.size and array.dtype.kind == "f" and is_finite(array):
        return float(_QUICK[statistic](array))
    return _of_stats(stats_of(array), statistic)


def _of_snapshot(snapshot: Any, statistic: str) -> float:
    if statistic == "size":
        return float(np.prod(snapshot.shape))
    if statistic == "ndim":
        return float(len(snapshot.shape))
    return float("nan") if snapshot.stats is None else _of_stats(snapshot.stats, statistic)


def _of_stats(stats: Any, statistic: str) -> float:
    if statistic == "absmax":
        return max(abs(stats.min), abs(stats.max))
    return float(getattr(stats, statistic))


_EXTENTS: dict[str, Callable[[np.ndarray], float]] = {
    "size": lambda array: float(array.size),
    "ndim": lambda array: float(array.ndim),
    "zeros": lambda array: float(array.size - np.count_nonzero(array)),
}
# Statistics in one pass, for floating-point arrays with only finite elements.
_QUICK: dict[str, Callable[[np.ndarray], Any]] = {
    "min": np.min,
    "max": np.max,
    "absmax": lambda array: np.abs(array).max(),
    "nan": lambda array: 0,
    "inf": lambda array: 0,
    "mean": lambda array: array.mean(dtype=np.float64),
    "rms": lambda array: np.sqrt(np.square(array, dtype=np.float64).mean()),
}
