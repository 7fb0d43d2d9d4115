"""Sums, extremes, and their transposes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.kernels.elementwise import sgn
from gradviz.engine.kernels.indexing import put_back, spread_out
from gradviz.engine.kernels.row import row


def sum(x: Any, dim: Any, keepdim: bool) -> Any:
    """The sum over `dim` (None: over all); of bools and small integers in int64."""
    return np.sum(x, axis=dim, keepdims=keepdim, dtype=None if x.dtype.kind in "fc" else np.int64)


def mean(x: Any, dim: Any, keepdim: bool) -> Any:
    """The mean over `dim` (None: over all)."""
    return np.mean(x, axis=dim, keepdims=keepdim)


def count(shape: tuple[int, ...], dim: Any) -> int:
    """How many elements a reduction over `dim` takes into one."""
    dims = range(len(shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
    n = 1
    for i in dims:
        n *= shape[i]
    return n


def spread(g: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """The transpose of a sum: every element that went in gets the gradient of what came out."""
    if not keepdim and dim is not None and shape:
        g = np.expand_dims(g, dim)
    return np.broadcast_to(g, shape)


def sum_to(g: Any, shape: tuple[int, ...]) -> Any:
    """The transpose of broadcasting: summed over what was repeated."""
    if g.shape == shape:
        return g
    extra = g.ndim - len(shape)
    if g.shape[extra:] == shape:
        return _sum_of_rows(g) if extra == 1 else g.sum((*range(extra),))
    repeated = [extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1]
    return g.sum((*range(extra), *repeated)).reshape(shape)


def max_all(x: Any) -> Any:
    """The greatest element."""
    return np.max(x)


def min_all(x: Any) -> Any:
    """The least element."""
    return np.min(x)


def amax(x: Any, dim: Any, keepdim: bool) -> Any:
    """The greatest element along `dim`."""
    return np.max(x, axis=dim, keepdims=keepdim)


def amin_and_amax(x: Any, dim: Any, keepdim: bool) -> tuple[Any, Any]:
    """The least and the greatest element along `dim`."""
    return np.min(x, axis=dim, keepdims=keepdim), np.max(x, axis=dim, keepdims=keepdim)


def to_extremes(g: Any, x: Any, out: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The gradient goes to the elements that are the extreme, in equal shares."""
    taken = x == spread(out, x.shape, dim, keepdim)
    shares = taken / np.sum(taken, axis=dim, keepdims=True)
    return spread(g, x.shape, dim, keepdim) * shares.astype(g.dtype)


def to_the_extreme(g: Any, x: Any, out: Any) -> Any:
    """As `to_extremes` of all elements; the others get 0, even where the gradient is NaN."""
    taken = (x == out) | (np.isnan(x) & np.isnan(out))
    return np.where(taken, g / np.sum(taken), 0)


def logsumexp(x: Any, dim: Any, keepdim: bool) -> Any:
    """ln Σ exp(x), shifted by the maximum so that it cannot overflow."""
    top = np.max(x, axis=dim, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=dim, keepdims=True)) + top
    return total if keepdim else np.squeeze(total, axis=dim)


_ONES = {np.dtype(kind): np.ones(4096, kind) for kind in "fd"}


def _ones(n: int, dtype: np.dtype) -> np.ndarray:
    return _ONES[dtype][:n] if n <= 4096 else np.ones(n, dtype)


def _is_plain(x: Any) -> bool:
    """Whether x is an array that BLAS takes as it lies."""
    return type(x) is np.ndarray and x.dtype in _ONES and x.flags.c_contiguous


def _sum_of_rows(x: Any) -> Any:
    """Σ x along its first dimension: of a matrix as a product with ones, which takes half the time."""
    return _ones(len(x), x.dtype).dot(x) if x.ndim == 2 and _is_plain(x) else x.sum(0)


def total(x: Any, dim: int) -> Any:
    """Σ x along one dimension, which stays.

    `np.sum` goes along each row with the care that long ones need; short ones are multiplied by ones."""
    if _goes_along_short_rows(x, dim) and _is_plain(x):
        ones = _ones(x.shape[-1], x.dtype)
        return x.dot(ones)[:, None] if x.ndim == 2 else np.matmul(x, ones)[..., None]
    return x.sum(dim, keepdims=True)


def dot_along(x: Any, y: Any, dim: int) -> Any:
    """Σ x y along one dimension, which stays."""
    if _goes_along_short_rows(x, dim) and _is_plain(x) and type(y) is np.ndarray and x.dtype is y.dtype:
        return np.vecdot(x, y)[..., None]
    return (x * y).sum(dim, keepdims=True)


def _goes_along_short_rows(x: Any, dim: int) -> bool:
    return x.ndim > 1 and dim in (-1, x.ndim - 1) and x.shape[-1] <= 1024


def _top(x: np.ndarray, dim: int) -> np.ndarray:
    """The greatest along one dimension, which stays. Short rows take longer than turning them into columns."""
    if x.ndim == 2 and dim in (1, -1) and 1 < x.shape[1] < 16 <= x.shape[0]:
        return np.maximum.reduce(np.ascontiguousarray(x.T), 0)[:, None]
    return x.max(dim, keepdims=True, initial=-np.inf)


def softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """exp(x) / Σ exp(x), shifted by the maximum so that it cannot overflow."""
    e = np.asarray(x - _top(x, dim))
    np.exp(e, out=e)
    e /= total(e, dim)
    return e


def safe_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """`softmax`, but 0 where all along `dim` is −∞."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isneginf(x).all(dim, keepdims=True), x.dtype.type(0), softmax(x, dim))


def log_softmax(x: np.ndarray, dim: int) -> np.ndarray:
    """ln softmax(x), shifted by the maximum so that it cannot overflow."""
    shifted = np.asarray(x - _top(x, dim))
    shifted -= np.log(total(np.exp(shifted), dim))
    return shifted


def others(x: Any, dim: int) -> Any:
    """For each element the product of all the others along `dim`; exact where there are zeros."""
    x = np.expand_dims(np.swapaxes(x, dim, -1), -2)
    n = x.shape[-1]
    return np.swapaxes(np.prod(np.where(np.eye(n, dtype=bool), 1, x), axis=-1), -1, dim)


def has_zero(x: Any) -> bool:
    """Whether some element is 0."""
    return bool(np.any(getattr(x, "array", x) == 0))


def prod(x: Any, dim: Any, keepdim: bool) -> Any:
    """The product over `dim` (None: over all); of bools and small integers in int64."""
    return np.prod(x, axis=dim, keepdims=keepdim, dtype=None if x.dtype.kind in "fc" else np.int64)


def prod_back(g: Any, x: Any, out: Any, dim: Any, keepdim: bool) -> Any:
    """Each element's share of a product's gradient: times all the others."""
    if not x.shape:
        return g
    if not has_zero(x):
        return spread(g, x.shape, dim, keepdim) * (spread(out, x.shape, dim, keepdim) / x)
    if dim is None:
        return np.reshape(g * others(np.reshape(x, (-1,)), 0), x.shape)
    return spread(g, x.shape, dim, keepdim) * others(x, dim)


@row("cumsum")
def cumsum(x: Any, dim: int) -> Any:
    """Sums of all up to each element."""
    return np.cumsum(x, axis=dim, dtype=None if x.dtype.kind in "fc" else np.int64).reshape(x.shape)


@row("sum_from")
def sum_from(g: Any, dim: int) -> Any:
    """The transpose of `cumsum`: sums of all from each element on."""
    return np.flip(np.cumsum(np.flip(g, dim), axis=dim), dim) if g.ndim else g


@row("cumprod")
def cumprod(x: Any, dim: int) -> Any:
    """Products of all up to each element."""
    return np.cumprod(x, axis=dim, dtype=None if x.dtype.kind in "fc" else np.int64).reshape(x.shape)


def cumprod_back(g: Any, x: Any, dim: int) -> Any:
    """Σⱼ gⱼ ∏ of what is multiplied into the j-th product beside the element; exact where there are zeros."""
    if not x.shape:
        return g
    x, g = np.swapaxes(x, dim, -1), np.swapaxes(g, dim, -1)
    n = x.shape[-1]
    i, j, k = np.ogrid[:n, :n, :n]
    beside = np.where((k <= j) & (k != i), np.expand_dims(x, (-2, -3)), 1)
    products = np.where((i <= j)[..., 0], np.prod(beside, axis=-1), 0)
    return np.swapaxes(np.sum(np.expand_dims(g, -2) * products, axis=-1), -1, dim)


def logcumsumexp(x: Any, dim: int) -> Any:
    """ln Σ exp(x) of all up to each element."""
    return np.logaddexp.accumulate(x, axis=dim) if x.ndim else x.copy()


def logcumsumexp_back(g: Any, x: Any, out: Any, dim: int) -> Any:
    """Σ over the later j of gⱼ exp(xᵢ − outⱼ)."""
    if not x.shape:
        return g
    g, x, out = (np.swapaxes(a, dim, -1) for a in (g, x, out))
    n = x.shape[-1]
    i, j = np.ogrid[:n, :n]
    exponents = np.where(j >= i, np.expand_dims(x, -1) - np.expand_dims(out, -2), -np.inf)
    return np.swapaxes(np.sum(np.expand_dims(g, -2) * np.exp(exponents), axis=-1), -1, dim)


def amin(x: Any, dim: Any, keepdim: bool) -> Any:
    """The least element along `dim`."""
    return np.min(x, axis=dim, keepdims=keepdim)


def chosen(x: Any, indices: np.ndarray, dim: int, keepdim: bool) -> tuple:
    """The elements that `indices` (with `dim` kept) names along `dim`, and the indices."""
    if x.ndim == 0:
        return x.copy(), np.zeros((), np.int64)
    values = np.take_along_axis(x, indices, dim)
    return (values, indices) if keepdim else (values.squeeze(dim), indices.squeeze(dim))


def max_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The greatest elements along `dim`, and where they are."""
    return chosen(x, np.argmax(x, axis=dim, keepdims=True) if x.ndim else x, dim, keepdim)


def min_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The least elements along `dim`, and where they are."""
    return chosen(x, np.argmin(x, axis=dim, keepdims=True) if x.ndim else x, dim, keepdim)


def kth(x: Any, k: int, dim: int, keepdim: bool) -> tuple:
    """The k-th smallest elements along `dim` (counted from 1), and where they are."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    return chosen(x, at_place(np.argsort(x, axis=dim, kind="stable"), k - 1, dim), dim, keepdim)


def at_place(order: np.ndarray, place: int, dim: int) -> np.ndarray:
    """One slice along `dim`, which stays."""
    return np.take(order, [place], axis=dim)


def median_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The medians along `dim` (the lower of two; NaN where there is one), and where they are."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    order = np.argsort(x, axis=dim, kind="stable")
    middle = at_place(order, (x.shape[dim] - 1) // 2, dim)
    nans = np.isnan(x)
    first_nan = np.argmax(nans, axis=dim, keepdims=True)
    return chosen(x, np.where(nans.any(axis=dim, keepdims=True), first_nan, middle), dim, keepdim)


def nanmedian_along(x: Any, dim: int, keepdim: bool) -> tuple:
    """The medians along `dim` of what is not NaN, and where they are."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    last = np.maximum((~np.isnan(x)).sum(axis=dim, keepdims=True) - 1, 0)
    middle = np.take_along_axis(np.argsort(x, axis=dim, kind="stable"), last // 2, dim)  # NaN comes last
    return chosen(x, middle, dim, keepdim)


def nanmedian(x: Any) -> Any:
    """The median of all elements that are not NaN."""
    flat = x.reshape(-1)
    return nanmedian_along(flat, 0, False)[0] if flat.size else np.asarray(np.nan, x.dtype)


def mode(x: Any, dim: int, keepdim: bool) -> tuple:
    """The most frequent elements along `dim`, the least of several, and the last place each is at."""
    if x.ndim == 0:
        return chosen(x, x, dim, keepdim)
    places = np.apply_along_axis(_place_of_mode, dim, x).astype(np.int64)
    return chosen(x, np.expand_dims(places, dim), dim, keepdim)


def _place_of_mode(row: np.ndarray) -> int:
    values, counts = np.unique(row, return_counts=True)
    best = values[counts.argmax()]
    same = np.isnan(row) if best != best else row == best
    return int(np.flatnonzero(same)[-1])


def cut_out(g: Any, shape: tuple[int, ...], indices: np.ndarray, dim: int, keepdim: bool) -> Any:
    """The transpose of choosing: zeros with `g` where the chosen were."""
    indices = np.asarray(getattr(indices, "array", indices))
    if not shape:
        return g
    if not keepdim:
        g, indices = np.expand_dims(g, dim), np.expand_dims(indices, dim)
    return spread_out(g, shape, dim, indices)


def median(x: Any) -> Any:
    """The median of all elements: the lower of two, NaN if there is one."""
    flat = x.reshape(-1)
    return median_along(flat, 0, False)[0] if flat.size else np.asarray(np.nan, x.dtype)


def cummax(x: Any, dim: int) -> tuple:
    """The greatest of all up to each element, and where it is: the last of equals."""
    return _running(x, dim, lambda new, best: (new >= best) | np.isnan(new))


def cummin(x: Any, dim: int) -> tuple:
    """The least of all up to each element, and where it is: the last of equals."""
    return _running(x, dim, lambda new, best: (new <= best) | np.isnan(new))


def _running(x: Any, dim: int, takes: Any) -> tuple:
    values, indices = np.array(x, ndmin=1), np.zeros(np.shape(x) or (1,), np.int64)
    by_place, at_places = np.moveaxis(values, dim, 0), np.moveaxis(indices, dim, 0)
    for i in range(1, len(by_place)):
        better = takes(by_place[i], by_place[i - 1])
        at_places[i] = np.where(better, i, at_places[i - 1])
        by_place[i] = np.where(better, by_place[i], by_place[i - 1])
    return values.reshape(x.shape), indices.reshape(x.shape)


def sort(x: Any, dim: int, descending: bool) -> tuple:
    """x in order along `dim`, and where each element was; equals stay in their order."""
    if x.ndim == 0:
        return x.copy(), np.zeros((), np.int64)
    return chosen(x, order_of(x, dim, descending), dim, True)


def order_of(x: Any, dim: int, descending: bool) -> np.ndarray:
    """The indices that sort x along `dim`; NaN counts as the greatest."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    backwards = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return np.flip(x.shape[dim] - 1 - backwards, dim).copy()


def topk(x: Any, k: int, dim: int, largest: bool) -> tuple:
    """The k greatest (or least) elements along `dim`, in order, and where they are."""
    if x.ndim == 0:
        return x.copy(), np.zeros((), np.int64)
    return chosen(x, np.take(order_of(x, dim, largest), range(k), axis=dim), dim, True)


def var(x: Any, dim: Any, correction: float, keepdim: bool) -> Any:
    """The variance over `dim`: squared deviations over n − correction."""
    if dim is not None and not x.ndim:
        dim = None
    squares = np.square(x - np.mean(x, axis=dim, keepdims=True))
    free = count(x.shape, dim) - correction
    return np.sum(squares, axis=dim, keepdims=keepdim) / np.asarray(max(free, 0), x.dtype)


def std(x: Any, dim: Any, correction: float, keepdim: bool) -> Any:
    """The standard deviation over `dim`."""
    return np.sqrt(var(x, dim, correction, keepdim))


def var_back(g: Any, x: Any, dim: Any, correction: float, keepdim: bool) -> Any:
    """The derivative of `var`: 2 (x − mean) / (n − correction)."""
    if dim is not None and not x.shape:
        dim = None
    free = count(x.shape, dim) - correction
    factor = 2 / free if free > 0 else np.nan
    return spread(g, x.shape, dim, keepdim) * (factor * (x - np.mean(x, axis=dim, keepdims=True)))


def std_back(g: Any, x: Any, out: Any, dim: Any, correction: float, keepdim: bool) -> Any:
    """The derivative of `std`: that of `var`, over 2 std; 0 where std is 0."""
    half = np.where(out == 0, 0, g / (2 * np.where(out == 0, 1, out)))
    return var_back(half, x, dim, correction, keepdim)


def std_and_mean(x: Any, dim: Any, correction: float, keepdim: bool) -> tuple:
    """The standard deviation and the mean over `dim`."""
    return std(x, dim, correction, keepdim), np.mean(x, axis=dim, keepdims=keepdim)


def var_and_mean(x: Any, dim: Any, correction: float, keepdim: bool) -> tuple:
    """The variance and the mean over `dim`."""
    return var(x, dim, correction, keepdim), np.mean(x, axis=dim, keepdims=keepdim)


def mean_back(g: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """The transpose of a mean."""
    return spread(g, shape, dim, keepdim) / count(shape, dim)


def both(first: Any, second: Any) -> Any:
    """The sum of two gradients, of which one may not have come."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def nansum(x: Any, dim: Any, keepdim: bool) -> Any:
    """The sum over `dim`, NaN counting as 0."""
    return np.nansum(x, axis=dim, keepdims=keepdim)


def vector_norm(x: Any, ord: float, dim: Any, keepdim: bool) -> Any:
    """(Σ |x|^ord)^(1/ord); for ±inf the greatest or least of |x|, for 0 how many are not 0."""
    magnitudes = np.abs(x)
    if ord == np.inf:
        return np.max(magnitudes, axis=dim, keepdims=keepdim)
    if ord == -np.inf:
        return np.min(magnitudes, axis=dim, keepdims=keepdim)
    if ord == 0:
        return np.sum(x != 0, axis=dim, keepdims=keepdim).astype(x.dtype)
    if ord == 1:
        return np.sum(magnitudes, axis=dim, keepdims=keepdim)
    if ord == 2:
        return np.sqrt(np.sum(np.square(x), axis=dim, keepdims=keepdim))
    return np.sum(magnitudes**ord, axis=dim, keepdims=keepdim) ** (1 / ord)


def dist(x: Any, y: Any, p: float) -> Any:
    """The p-norm of x − y."""
    return vector_norm(x - y, p, None, False)


def vector_norm_back(g: Any, x: Any, out: Any, ord: float, dim: Any, keepdim: bool) -> Any:
    """sign(x) |x|^(ord−1) / out^(ord−1), and 0 where that has no value."""
    g, out = spread(g, x.shape, dim, keepdim), spread(out, x.shape, dim, keepdim)
    if ord == 0:
        return g * 0
    if ord == 1:
        return g * sgn(x)
    if ord == 2:
        return g * np.where(out == 0, 0, x / np.where(out == 0, 1, out))
    if ord in (np.inf, -np.inf):
        taken = np.abs(x) == out
        ties = np.sum(taken, axis=dim, keepdims=True)
        return g * (np.sign(x) * (taken / ties))
    zero = (x == 0) if ord < 2 else np.zeros(x.shape, bool)
    size = np.where(zero, 1, np.abs(x))
    powers = np.sign(x) * size ** (ord - 1) / np.where(out == 0, 1, out) ** (ord - 1)
    return g * np.where(zero | (out == 0), 0, powers)


def cdist(x: Any, y: Any, p: float) -> Any:
    """The p-norm distances between the rows of x and those of y."""
    return vector_norm(np.expand_dims(x, -2) - np.expand_dims(y, -3), p, -1, False)


def cdist_back(g: Any, x: Any, y: Any, out: Any, p: float) -> tuple[Any, Any]:
    """The gradients of both."""
    apart = vector_norm_back(g, np.expand_dims(x, -2) - np.expand_dims(y, -3), out, p, -1, False)
    return sum_to(np.sum(apart, axis=-2), x.shape), sum_to(-np.sum(apart, axis=-3), y.shape)


def pdist(x: Any, p: float) -> Any:
    """The p-norm distances between every two rows of a matrix, as one vector."""
    rows, columns = np.triu_indices(x.shape[0], 1)
    return vector_norm(x[rows] - x[columns], p, -1, False)


def pdist_back(g: Any, x: Any, out: Any, p: float) -> Any:
    """The gradient of `pdist`."""
    rows, columns = np.triu_indices(x.shape[0], 1)
    apart = vector_norm_back(g, x[rows] - x[columns], out, p, -1, False)
    return put_back(apart, x.shape, rows) - put_back(apart, x.shape, columns)
