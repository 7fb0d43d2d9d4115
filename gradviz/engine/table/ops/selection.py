"""Selection along a dimension: pairs of values and int64 indices."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.state import is_grad_enabled
from gradviz.engine.core.tell import without_node
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
    """The maximum of all elements. With `dim`: the maxima along it, and their indices. With a second tensor: the
    greater elements."""
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
    """The minimum of all elements. With `dim`: the minima along it, and their indices. With a second tensor: the
    lesser elements."""
    other = dim if isinstance(dim, Tensor) else other
    if other is not None:
        return minimum(x, other)
    if dim is None:
        return apply(TABLE["min_all"], (_not_empty("min", x),))
    return _min(*apply(TABLE["min_dim"], (x,), (dims_of(x, dim), keepdim)))


def median(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The median of all elements, the lower of two. With `dim`: the medians along it, and their indices."""
    if dim is None:
        return apply(TABLE["median_all"], (x,))
    return _median(*apply(TABLE["median_dim"], (x,), (dims_of(x, dim), keepdim)))


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    """The k-th smallest elements along `dim`, counted from 1, and their indices."""
    return _kthvalue(*apply(TABLE["kthvalue"], (x,), (k, dims_of(x, dim), keepdim)))


def cummax(x: Tensor, dim: int) -> Any:
    """The maximum of all elements up to each element along `dim`, and its index."""
    return _cummax(*apply(TABLE["cummax"], (x,), (dims_of(x, dim) or 0,)))


def cummin(x: Tensor, dim: int) -> Any:
    """The minimum of all elements up to each element along `dim`, and its index."""
    return _cummin(*apply(TABLE["cummin"], (x,), (dims_of(x, dim) or 0,)))


def sort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool | None = None) -> Any:
    """x sorted along `dim`, and the indices of its elements."""
    row = TABLE["sort" if stable is None else "sort_stable"]  # sorting is always stable
    return _sort(*apply(row, (x,), (dims_of(x, dim), descending)))


def msort(x: Tensor) -> Tensor:
    """x sorted along its first dimension."""
    return sort(x, 0).values


def argsort(x: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    """The indices that sort x along `dim`."""
    return sort(x.detach(), dim, descending).indices


def topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """The k greatest (or least) elements along `dim`, and their indices."""
    along = x.array.shape[dims_of(x, dim)] if x.array.ndim else 1
    if not 0 <= k <= along:
        raise RuntimeError("selected index k out of range")
    return _topk(*apply(TABLE["topk"], (x,), (k, dims_of(x, dim), largest)))


def unique(
    x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    """The distinct elements in order. On request also the index of each element among them, and their counts."""
    return distinct("unique" if dim is None else "unique_dim", x, dim, return_inverse, return_counts)


def distinct(key: str, x: Tensor, dim: int | None, inverse: bool, counts: bool) -> Any:
    """What that op of the table gives: the values, with the inverse and the counts where they are wanted."""
    op = TABLE[key]
    if is_grad_enabled() and x.requires_grad:
        return _wanted(apply(op, (x,), (dim,)), inverse, counts)
    outputs = tuple(new_tensor(np.asarray(array)) for array in op.forward(x.array, dim))
    return without_node(op.name, (x,), _wanted(outputs, inverse, counts))


def _wanted(outputs: tuple[Tensor, ...], inverse: bool, counts: bool) -> Any:
    values, *others = outputs
    parts = [part for part, is_wanted in zip(others, (inverse, counts), strict=True) if is_wanted]
    return (values, *parts) if parts else values
