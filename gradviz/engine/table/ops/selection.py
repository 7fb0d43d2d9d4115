"""Choosing along a dimension: pairs of values and the indices they were at."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops.elementwise import maximum, minimum
from gradviz.engine.table.ops.reductions import dims_of


def _pair(name: str) -> Any:
    return namedtuple(name, ["values", "indices"])


_max, _min, _median, _nanmedian, _kthvalue, _cummax, _cummin, _sort, _topk, _mode = (
    _pair(name) for name in "max min median nanmedian kthvalue cummax cummin sort topk mode".split()
)


def max(x: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The greatest element; along `dim`, with its indices; of two tensors, the greater elements."""
    other = dim if isinstance(dim, Tensor) else other
    if other is not None:
        return maximum(x, other)
    if dim is None:
        return apply(TABLE["max_all"], (_not_empty("max", x),))
    return _max(*apply(TABLE["max_dim"], (x,), (dims_of(x, dim), keepdim)))


def _not_empty(name: str, x: Tensor) -> Tensor:
    if not x.array.size:
        raise RuntimeError(
            f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with "
            "the 'dim' argument."
        )
    return x


def min(x: Any, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
    """The least element; along `dim`, with its indices; of two tensors, the lesser elements."""
    other = dim if isinstance(dim, Tensor) else other
    if other is not None:
        return minimum(x, other)
    if dim is None:
        return apply(TABLE["min_all"], (_not_empty("min", x),))
    return _min(*apply(TABLE["min_dim"], (x,), (dims_of(x, dim), keepdim)))


def median(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The median, the lower of two; along `dim`, with its indices."""
    if dim is None:
        return apply(TABLE["median_all"], (x,))
    return _median(*apply(TABLE["median_dim"], (x,), (dims_of(x, dim), keepdim)))


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest elements along `dim`, with their indices."""
    return _kthvalue(*apply(TABLE["kthvalue"], (x,), (k, dims_of(x, dim), keepdim)))


def cummax(x: Tensor, dim: int) -> Any:
    """The greatest of all up to each element, with its index."""
    return _cummax(*apply(TABLE["cummax"], (x,), (dims_of(x, dim) or 0,)))


def cummin(x: Tensor, dim: int) -> Any:
    """The least of all up to each element, with its index."""
    return _cummin(*apply(TABLE["cummin"], (x,), (dims_of(x, dim) or 0,)))


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    """x in order along `dim`, with the index each element had."""
    row = TABLE["sort" if stable is None else "sort_stable"]  # the order is stable in any case
    return _sort(*apply(row, (x,), (dims_of(x, dim), descending)))


def msort(x: Tensor) -> Tensor:
    """x in order along its first dimension."""
    return sort(x, 0).values


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that put x in order along `dim`."""
    return sort(x.detach(), dim, descending).indices


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k greatest (or least) elements along `dim`, with their indices."""
    along = x.array.shape[dims_of(x, dim)] if x.array.ndim else 1
    if not 0 <= k <= along:
        raise RuntimeError("selected index k out of range")
    return _topk(*apply(TABLE["topk"], (x,), (k, dims_of(x, dim), largest)))


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """The different elements in order; also where each is in them, and how often it is there."""
    values, inverse, counts = np.unique(x.array, return_inverse=True, return_counts=True, axis=dim)
    wanted = [True, return_inverse, return_counts]
    parts = [new_tensor(part) for part, want in zip((values, inverse, counts), wanted, strict=True) if want]
    return parts[0] if len(parts) == 1 else tuple(parts)
