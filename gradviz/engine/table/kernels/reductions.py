"""Sums, means, maxima and minima, and their transposes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.table.kernels.row import raw, row


def sum(x: Any, dim: Any, keepdim: bool) -> Any:
    """The sum over `dim`; None: over all. Bools and small integers are summed in int64."""
    return np.sum(x, axis=dim, keepdims=keepdim, dtype=None if x.dtype.kind in "fc" else np.int64)


def mean(x: Any, dim: Any, keepdim: bool) -> Any:
    """The mean over `dim`; None: over all. NaN of no elements."""
    if not x.size:
        return np.sum(x, axis=dim, keepdims=keepdim) * x.dtype.type(np.nan)
    return np.mean(x, axis=dim, keepdims=keepdim)


def count(shape: tuple[int, ...], dim: Any) -> int:
    """The number of elements that a reduction over `dim` combines into one."""
    dims = range(len(shape)) if dim is None else (dim,) if isinstance(dim, int) else dim
    n = 1
    for i in dims:
        n *= shape[i]
    return n


def spread(g: Any, shape: tuple[int, ...], dim: Any, keepdim: bool) -> Any:
    """The transpose of a sum: each element gets the gradient of the sum that it is part of."""
    if not keepdim and dim is not None and shape:
        g = np.expand_dims(g, dim)
    return np.broadcast_to(g, shape)


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
    """The gradient of an extreme flows to the elements that are equal to it, in equal shares."""
    taken = x == spread(out, x.shape, dim, keepdim)
    shares = taken / np.sum(taken, axis=dim, keepdims=True)
    return spread(g, x.shape, dim, keepdim) * shares.astype(g.dtype)


def to_the_extreme(g: Any, x: Any, out: Any) -> Any:
    """`to_extremes` of all elements. The others get 0, even where the gradient is NaN."""
    taken = (x == out) | (np.isnan(x) & np.isnan(out))
    return np.where(taken, g / np.sum(taken), 0)


def logsumexp(x: Any, dim: Any, keepdim: bool) -> Any:
    """ln Σ exp(x), shifted by the maximum so that it cannot overflow."""
    top = np.max(x, axis=dim, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=dim, keepdims=True)) + top
    return total if keepdim else np.squeeze(total, axis=dim)


def others(x: Any, dim: int) -> Any:
    """For each element the product of all others along `dim`. It is exact where elements are 0."""
    x = np.expand_dims(np.swapaxes(x, dim, -1), -2)
    n = x.shape[-1]
    return np.swapaxes(np.prod(np.where(np.eye(n, dtype=bool), 1, x), axis=-1), -1, dim)


def has_zero(x: Any) -> bool:
    """Whether some element is 0."""
    return bool(np.any(raw(x) == 0))


def prod(x: Any, dim: Any, keepdim: bool) -> Any:
    """The product over `dim`; None: over all. Bools and small integers are multiplied in int64."""
    return np.prod(x, axis=dim, keepdims=keepdim, dtype=None if x.dtype.kind in "fc" else np.int64)


def prod_back(g: Any, x: Any, out: Any, dim: Any, keepdim: bool) -> Any:
    """The gradient of each factor: g times the product of the others."""
    if not x.shape:
        return g
    if not has_zero(x):
        return spread(g, x.shape, dim, keepdim) * (spread(out, x.shape, dim, keepdim) / x)
    if dim is None:
        return np.reshape(g * others(np.reshape(x, (-1,)), 0), x.shape)
    return spread(g, x.shape, dim, keepdim) * others(x, dim)


@row("cumsum")
def cumsum(x: Any, dim: int) -> Any:
    """The sum of all elements up to each element."""
    return np.cumsum(x, axis=dim, dtype=None if x.dtype.kind in "fc" else np.int64).reshape(x.shape)


@row("sum_from")
def sum_from(g: Any, dim: int) -> Any:
    """The transpose of `cumsum`: the sum of all elements from each element on."""
    return np.flip(np.cumsum(np.flip(g, dim), axis=dim), dim) if g.ndim else g


@row("cumprod")
def cumprod(x: Any, dim: int) -> Any:
    """The product of all elements up to each element."""
    return np.cumprod(x, axis=dim, dtype=None if x.dtype.kind in "fc" else np.int64).reshape(x.shape)


def cumprod_back(g: Any, x: Any, dim: int) -> Any:
    """Σⱼ gⱼ times the product of the other factors of product j. It is exact where elements are 0."""
    if not x.shape:
        return g
    x, g = np.swapaxes(x, dim, -1), np.swapaxes(g, dim, -1)
    n = x.shape[-1]
    i, j, k = np.ogrid[:n, :n, :n]
    beside = np.where((k <= j) & (k != i), np.expand_dims(x, (-2, -3)), 1)
    products = np.where((i <= j)[..., 0], np.prod(beside, axis=-1), 0)
    return np.swapaxes(np.sum(np.expand_dims(g, -2) * products, axis=-1), -1, dim)


def logcumsumexp(x: Any, dim: int) -> Any:
    """ln Σ exp(x) of all elements up to each element."""
    return np.logaddexp.accumulate(x, axis=dim) if x.ndim else x.copy()


def logcumsumexp_back(g: Any, x: Any, out: Any, dim: int) -> Any:
    """Σⱼ gⱼ exp(xᵢ − outⱼ) over the elements j from i on."""
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
    """The derivative of `std`: that of `var`, divided by 2 std; 0 where std is 0."""
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
    """The sum of two gradients. One of them may be None."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def nansum(x: Any, dim: Any, keepdim: bool) -> Any:
    """The sum over `dim`. NaN counts as 0."""
    return np.nansum(x, axis=dim, keepdims=keepdim)
