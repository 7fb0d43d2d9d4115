"""Bringing elements in by their place, where several may meet: their sum, mean, product, greatest or least."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.table.kernels.indexing import along, blank, gather, in_source, placed, scatter_add
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
    """x with the elements of `source` brought in where `index` names along `dim`.

    Without `include_self`, what x was does not count where something is brought in."""
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
    """Of how many each mean is taken, in the dtype of x; 1 where nothing is brought in."""
    own = np.full(x.shape, int(include_self))
    brought = scatter_add(own, np.ones(index.shape, own.dtype), dim, index)
    return np.maximum(brought, 1).astype(raw(x).dtype)


def scatter_reduce_back_to_self(
    g: Any, x: Any, source: Any, out: Any, dim: int, index: np.ndarray, reduce: str, include_self: bool
) -> Any:
    """The gradient of what was there before."""
    if reduce == "mean":
        g = g / _how_many(x, dim, index, include_self)
    elif reduce == "prod":
        g = g * scatter_reduce(np.ones_like(raw(x)), source, dim, index, "prod", True)
    elif reduce != "sum":
        g = g * _shares(x, source, out, dim, index)[0]
    return g if include_self else blank(g, dim, index)


def scatter_reduce_back_to_source(
    g: Any, x: Any, source: Any, out: Any, dim: int, index: np.ndarray, reduce: str, include_self: bool
) -> Any:
    """The gradient of what was brought in."""
    shape = source.shape
    source = source[tuple(slice(n) for n in index.shape)]
    if reduce == "prod":
        return in_source(_of_others(g, x, source, out, dim, index, include_self), shape)
    if reduce == "mean":
        g = g / _how_many(x, dim, index, include_self)
    taken = gather(g, dim, index)
    return in_source(
        taken if reduce in ("sum", "mean") else taken * _shares(x, source, out, dim, index)[1], shape
    )


def _shares(
    x: Any, source: Any, out: Any, dim: int, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray | np.generic]:
    """How much of the gradient of an extreme goes to what was there, and to what was brought in: equal shares."""
    x, (where, source), out = raw(x), placed(index, raw(source)), raw(out)
    own, brought = (x == out).astype(x.dtype), (source == gather(out, dim, where)).astype(x.dtype)
    count = scatter_add(own, brought, dim, where)
    return own / count, (brought / gather(count, dim, where)).reshape(index.shape)


def _of_others(g: Any, x: Any, source: Any, out: Any, dim: int, index: np.ndarray, include_self: bool) -> Any:
    """The gradient of each factor: times all others. Where one is 0, they are multiplied anew without it."""
    zero = np.asarray(raw(source) == 0)
    zeros = gather(scatter_add(np.zeros(x.shape, np.int64), zero, dim, index), dim, index)
    if not isinstance(g, np.ndarray | np.generic) and np.any(zeros > 1):
        raise RuntimeError(
            "scatter_reduce(): Double backward is unsupported for src when >1 zeros in src are scattered to the same "
            "position in self"
        )
    only = zero & (zeros == 1)
    without = scatter_reduce(x, np.where(only, 1, source), dim, index, "prod", include_self)
    return np.where(
        only, gather(g * without, dim, index), gather(g * out, dim, index) / np.where(zero, 1, source)
    )
