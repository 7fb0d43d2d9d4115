"""Combining elements that are brought to the same place: their sum, mean, product, maximum or minimum."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.table.kernels.indexing import along, gather, gather_within, in_source, placed, scatter_add
from gradviz.engine.table.kernels.row import raw, row

REDUCTIONS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "mean": np.add,
    "amax": np.maximum,
    "amin": np.minimum,
}


@row("scatter_reduce", inputs=2)
def scatter_reduce(x: Any, source: Any, dim: int, index: np.ndarray, reduce: str, include_self: bool) -> Any:
    """x, combined with the elements of `source` where `index` names along `dim`.

    Without `include_self`, the elements of x do not count where others are brought in."""
    shape, out = x.shape, np.array(x, ndmin=1)
    where, brought = placed(index, source)
    if where.size:
        places = along(where, dim or 0)
        if not include_self:
            out[places] = brought if reduce in ("amax", "amin") else reduce == "prod"
        REDUCTIONS[reduce].at(out, places, brought)
    out = out.reshape(shape)
    if reduce == "mean":
        divide = np.divide if out.dtype.kind in "fc" else np.floor_divide
        return divide(out, _how_many(out, dim, index, include_self))
    return out


def _how_many(x: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The number of elements that each mean is taken of, in the dtype of x; 1 where nothing is brought in."""
    own = np.full(x.shape, int(include_self))
    brought = scatter_add(own, np.ones(index.shape, own.dtype), dim, index)
    return np.maximum(brought, 1).astype(raw(x).dtype)


# --- the gradients of what was there (self) and of what is brought in (source), for each reduction


def self_in_sum(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of a term."""
    return g


def source_in_sum(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of the terms that are brought in."""
    return gather_within(g, y.shape, dim, index)


def self_in_mean(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of a term of a mean."""
    return g / _how_many(x, dim, index, include_self)


def source_in_mean(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of the terms of means that are brought in."""
    return gather_within(g / _how_many(x, dim, index, include_self), y.shape, dim, index)


def self_in_product(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of a factor: times the factors that are brought in."""
    return g * scatter_reduce(np.ones_like(raw(x)), _reached(y, index), dim, index, "prod", True)


def source_in_product(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of the factors that are brought in: each times all others."""
    return in_source(_of_others(g, x, _reached(y, index), out, dim, index, include_self), y.shape)


def self_in_extreme(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient goes to the extremes, in equal shares."""
    return g * _shares(x, y, out, dim, index)[0]


def source_in_extreme(g: Any, x: Any, y: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient goes to the extremes, in equal shares."""
    return in_source(gather(g, dim, index) * _shares(x, _reached(y, index), out, dim, index)[1], y.shape)


def _reached(source: Any, index: np.ndarray) -> Any:
    """The elements of the source that the index reaches."""
    return source[tuple(slice(n) for n in index.shape)]


def _shares(x: Any, source: Any, out: Any, dim: int, index: np.ndarray) -> tuple[np.ndarray, np.ndarray | np.generic]:
    """The shares of an extreme's gradient for what was there and for what was brought in. Ties share equally."""
    x, (where, source), out = raw(x), placed(index, raw(source)), raw(out)
    own, brought = (x == out).astype(x.dtype), (source == gather(out, dim, where)).astype(x.dtype)
    count = scatter_add(own, brought, dim, where)
    return own / count, (brought / gather(count, dim, where)).reshape(index.shape)


def _of_others(g: Any, x: Any, source: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of each factor: g times all others. Where a factor is 0, the others are multiplied again without
    it."""
    zero = np.asarray(raw(source) == 0)
    zeros = gather(scatter_add(np.zeros(x.shape, np.int64), zero, dim, index), dim, index)
    if not isinstance(g, np.ndarray | np.generic) and np.any(zeros > 1):
        raise RuntimeError(
            "scatter_reduce(): Double backward is unsupported for src when >1 zeros in src are scattered to the same "
            "position in self"
        )
    only = zero & (zeros == 1)
    without = scatter_reduce(x, np.where(only, 1, source), dim, index, "prod", include_self)
    return np.where(only, gather(g * without, dim, index), gather(g * out, dim, index) / np.where(zero, 1, source))
