"""Quantiles, counts, covariances, distances, integrals."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.op import in_place_form
from gradviz.engine.core.tell import without_node
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops.broadcasting import meshgrid
from gradviz.engine.table.ops.choice import where
from gradviz.engine.table.ops.elementwise import add, div, div_number, functions, lerp, mul, mul_number, sub
from gradviz.engine.table.ops.indexing import gather, masked_select
from gradviz.engine.table.ops.joining import stack
from gradviz.engine.table.ops.pieces import narrow, select
from gradviz.engine.table.ops.products import matmul
from gradviz.engine.table.ops.reductions import checked_dim, cumsum, dims_of, sum
from gradviz.engine.table.ops.selection import _mode, _nanmedian, distinct, sort
from gradviz.engine.table.ops.shape import diagonal, flatten, reshape, squeeze, transpose, unsqueeze, view

_HOW = ("linear", "lower", "higher", "midpoint", "nearest")


def quantile(x: Tensor, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """The q-quantiles over `dim`, NaN where there is a NaN. Several q are the first dimension of the result.

    q is a number or a tensor of at most one dimension, in [0, 1]."""
    return _quantile(x, q, dim, keepdim, interpolation, skip_nan=False)


def nanquantile(x: Tensor, q: Any, dim: Any = None, keepdim: bool = False, *, interpolation: str = "linear") -> Tensor:
    """`quantile` of the elements that are not NaN."""
    return _quantile(x, q, dim, keepdim, interpolation, skip_nan=True)


def _quantile(x: Tensor, q: Any, dim: Any, keepdim: bool, how: str, skip_nan: bool) -> Tensor:
    if x.array.dtype.kind != "f":
        raise RuntimeError("quantile() input tensor must be either float or double dtype")
    if how not in _HOW:
        raise RuntimeError(
            "quantile() interpolation must be one of linear, lower, higher, midpoint or nearest, but got " + how
        )
    wanted = q if isinstance(q, Tensor) else new_tensor(np.asarray(q, x.array.dtype))
    if ((wanted.array < 0) | (wanted.array > 1)).any():
        raise RuntimeError("quantile() q values must be in the range [0, 1]")
    if not x.array.size:
        raise RuntimeError("quantile() input tensor must be non-empty")
    rows = _rows_for(x, dim)
    shape = _without(dim, x.array.shape, keepdim)
    ordered = view(sort(rows, -1).values, *shape, rows.array.shape[-1])  # NaN is sorted last
    place = _places(ordered.array, wanted if wanted.array.ndim else unsqueeze(wanted, 0), skip_nan)
    picked = _between(ordered, place, how)
    if wanted.array.ndim:
        picked = apply(in_place_form(TABLE["unsqueeze"]), (picked,), (0,))
        picked = apply(in_place_form(TABLE["transpose"]), (picked,), (0, picked.array.ndim - 1))
    return apply(TABLE["squeeze_dim_"], (picked,), (picked.array.ndim - 1,))


def _rows_for(x: Tensor, dim: Any) -> Tensor:
    """x with the dimensions that quantiles are taken over as its last dimension."""
    if dim is None or not x.array.ndim:
        return flatten(x)
    dim = checked_dim(dim, x.array.ndim)
    return x if dim == x.array.ndim - 1 else transpose(unsqueeze(x, -1), dim, -1)


def _without(dim: Any, shape: tuple[int, ...], keepdim: bool) -> list[int]:
    """The shape that is left when `dim` is reduced; None: all dimensions."""
    gone = range(len(shape)) if dim is None else (checked_dim(dim, len(shape)),)
    return [1 if i in gone else n for i, n in enumerate(shape) if keepdim or i not in gone]


def _places(rows: np.ndarray, wanted: Tensor, skip_nan: bool) -> Tensor:
    """The positions of the quantiles in each sorted row; the last position where the result is NaN."""
    missing = np.isnan(rows)
    last = np.maximum((~missing).sum(-1, keepdims=True) - 1, 0) if skip_nan else rows.shape[-1] - 1
    place = mul(new_tensor(np.broadcast_to(last, (*rows.shape[:-1], 1)).astype(rows.dtype)), wanted)
    if skip_nan:
        return place
    spoiled = np.broadcast_to(missing.any(-1, keepdims=True), place.array.shape)
    return where(spoiled, new_tensor(np.asarray(rows.shape[-1] - 1, rows.dtype)), place) if spoiled.any() else place


def _between(ordered: Tensor, place: Tensor, how: str) -> Tensor:
    """The interpolated elements at positions that are no integers."""
    if how in ("lower", "higher", "nearest"):
        rounding: Any = {"lower": np.floor, "higher": np.ceil, "nearest": np.round}[how]
        return gather(ordered, -1, new_tensor(rounding(place.array).astype(np.int64)))
    below = np.floor(place.array)
    low, high = (new_tensor(part.astype(np.int64)) for part in (below, np.ceil(place.array)))
    half = new_tensor(np.full_like(below, 0.5))
    weight = half if how == "midpoint" else sub(place, new_tensor(below))
    return lerp(gather(ordered, -1, low), gather(ordered, -1, high), weight)


def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The most frequent element along `dim` (the least of several), and its last index."""
    return _mode(*apply(TABLE["mode"], (x,), (dims_of(x, dim), keepdim)))


def histc(x: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
    """How many elements lie in each of `bins` equal intervals from min to max. Where these are equal, the range of x
    is used."""
    low, high = (x.array.min(), x.array.max()) if min == max and x.array.size else (min, max)
    if low == high:
        low, high = low - 1, high + 1
    counts = np.histogram(x.array, bins, (low, high))[0].astype(x.array.dtype)
    return without_node("histc", (x,), new_tensor(counts))


def unique_consecutive(x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    """x without consecutive duplicates. On request also the index of each element in the result, and the counts."""
    return distinct("unique_consecutive", x, dim, return_inverse, return_counts)


def cov(x: Tensor, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Tensor:
    """The covariances of the rows of x. Columns are observations, with frequencies `fweights` and weights
    `aweights`."""
    if x.array.ndim > 2:
        raise RuntimeError("cov(): expected input to have two or fewer dimensions")
    rows = x if x.array.ndim == 2 else reshape(x, 1, x.array.size)
    given = [weights for weights in (fweights, aweights) if weights is not None]
    w = given[0] if given else new_tensor(np.ones(rows.array.shape[1], rows.array.dtype))
    w = mul(w, given[1]) if len(given) == 2 else w
    total = sum(w)
    centred = sub(rows, div(sum(mul(rows, w), 1, True), total))
    lost = correction if aweights is None else div(mul(sum(mul(w, aweights)), correction), total)
    norm = sub(total, lost)
    if norm.array <= 0:
        norm = new_tensor(np.zeros((), norm.array.dtype))
    return squeeze(div(matmul(centred, transpose(mul(centred, w), 0, 1)), norm))


def corrcoef(x: Tensor) -> Tensor:
    """The correlation coefficients of the rows of x."""
    c = cov(x)
    if not c.array.ndim:
        return div(c, c)
    deviations = functions["sqrt"](diagonal(c))
    scaled = div(div(c, unsqueeze(deviations, 1)), unsqueeze(deviations, 0))
    return scaled.clip(-1, 1)


def cdist(x1: Tensor, x2: Tensor, p: float = 2.0, compute_mode: Any = None) -> Tensor:
    """The distances in the p-norm between the rows of x1 (..., n, d) and the rows of x2 (..., m, d): (..., n, m)."""
    for name, x in (("X1", x1), ("X2", x2)):
        if x.array.ndim < 2:
            raise RuntimeError(f"cdist only supports at least 2D tensors, {name} got: {x.array.ndim}D")
    n, m = x1.array.shape[-1], x2.array.shape[-1]
    if n != m:
        raise RuntimeError(f"X1 and X2 must have the same number of columns. X1: {n} X2: {m}")
    return apply(TABLE["cdist"], (x1, x2), (float(p),))


def trapezoid(y: Tensor, x: Any = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integral of y along `dim` by the trapezoidal rule."""
    if x is None:
        ends = add(select(y, dim, 0), select(y, dim, -1))
        return mul_number(sub(sum(y, dim), mul_number(ends, 0.5)), dx)
    left, right, steps = _trapezoids(y, x, dim)
    return div_number(sum(mul(add(left, right), steps), dim), 2)


trapz = trapezoid


def cumulative_trapezoid(y: Tensor, x: Any = None, *, dx: float = 1, dim: int = -1) -> Tensor:
    """The integral of y along `dim` up to each element but the first, by the trapezoidal rule."""
    if x is None:
        left, right = _neighbours(y, dim)
        return cumsum(mul_number(add(right, left), dx / 2), dim)
    left, right, steps = _trapezoids(y, x, dim)
    return div_number(cumsum(mul(steps, add(right, left)), dim), 2)


def _trapezoids(y: Tensor, x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """The left sides, right sides and widths of the trapezoids."""
    if x.array.ndim == 1:
        shape = [1] * y.array.ndim
        shape[dim] = -1
        x = view(x, *shape)
    before, after = _neighbours(x, dim)
    return *_neighbours(y, dim), sub(after, before)


def _neighbours(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """All elements along `dim` but the last, and all but the first."""
    n = x.array.shape[dim]
    return narrow(x, dim, 0, n - 1), narrow(x, dim, 1, n - 1)


def cartesian_prod(*tensors: Tensor) -> Tensor:
    """The Cartesian product of vectors: one row for each combination of their elements."""
    if len(tensors) == 1:
        return tensors[0]
    return stack([reshape(grid, -1) for grid in meshgrid(*tensors)], 1)


def combinations(x: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All combinations of r elements of a vector, one row each."""
    if not r:
        return new_tensor(np.empty(0, x.array.dtype))
    places = np.indices((x.array.size,) * r)
    rising = (places[:-1] <= places[1:]) if with_replacement else (places[:-1] < places[1:])
    mask = new_tensor(np.asarray(rising.all(0)))
    return stack([masked_select(grid, mask) for grid in meshgrid(*[x] * r)], 1)


def nanmedian(x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
    """The median of the elements that are not NaN. With `dim`: the medians along it, and their indices."""
    if dim is None:
        return apply(TABLE["nanmedian_all"], (x,))
    return _nanmedian(*apply(TABLE["nanmedian_dim"], (x,), (dims_of(x, dim), keepdim)))
