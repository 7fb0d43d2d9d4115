"""What the table computes with where NumPy has no function of the name.

Rules call these with arrays or, under `create_graph`, with Tensors: everything that a rule calls is built of
NumPy functions that Tensors answer to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# --- elementwise; `out` is the ufuncs' own, so that 0-d arrays stay arrays


def reversed_subtract(x: Any, y: Any, out: Any = None) -> Any:
    """y − x."""
    return np.subtract(y, x, out=...)


def reciprocal(x: Any, out: Any = None) -> Any:
    """1 / x."""
    return np.true_divide(1, x, out=...)


def rsqrt(x: Any, out: Any = None) -> Any:
    """1 / √x."""
    return np.true_divide(1, np.sqrt(x), out=...)


def relu(x: Any, out: Any = None) -> Any:
    """max(x, 0), NaN kept."""
    return np.maximum(x, 0, out=...)


def sigmoid(x: Any, out: Any = None) -> Any:
    """1 / (1 + exp(−x)), without overflow on either side."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1 / (1 + e), e / (1 + e)))


def softplus(x: Any, beta: float, threshold: float) -> Any:
    """ln(1 + exp(βx)) / β; x itself where βx > threshold."""
    return np.where(x * beta > threshold, x, np.log1p(np.exp(np.minimum(x * beta, threshold))) / beta)


def softplus_slope(x: Any, beta: float, threshold: float) -> Any:
    """The derivative of `softplus`."""
    z = np.minimum(x * beta, threshold)
    return np.where(x * beta > threshold, 1, np.exp(z) / (1 + np.exp(z)))


def power(x: Any, exponent: Any) -> Any:
    """x to the power of a number."""
    return np.power(x, exponent)


def reversed_power(x: Any, base: Any) -> Any:
    """A number to the power of x."""
    return np.power(np.asarray(base, x.dtype), x)


def power_slope(x: Any, exponent: Any) -> Any:
    """n · x^(n−1); 0 where n is 0, whatever x is."""
    return x * 0 if exponent == 0 else exponent * x ** (exponent - 1)


def clamp(x: Any, min: Any, max: Any) -> Any:
    """x, but not below `min` and not above `max`; either may be None."""
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


def inside(x: Any, min: Any, max: Any) -> Any:
    """1 where x is within [min, max], else 0."""
    above = np.asarray(True) if min is None else x >= min
    below = np.asarray(True) if max is None else x <= max
    return above & below


def share(wins: Any, ties: Any) -> Any:
    """1 where `wins`, a half where `ties`."""
    return np.where(ties, 0.5, 1.0 * wins).astype(np.float32)


# --- reductions


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
    repeated = tuple(extra + i for i, n in enumerate(shape) if n == 1 and g.shape[extra + i] != 1)
    return np.reshape(np.sum(g, axis=tuple(range(extra)) + repeated), shape)


def max_all(x: Any) -> Any:
    """The greatest element."""
    return np.max(x)


def min_all(x: Any) -> Any:
    """The least element."""
    return np.min(x)


def amax(x: Any, dim: Any, keepdim: bool) -> Any:
    """The greatest element along `dim`."""
    return np.max(x, axis=dim, keepdims=keepdim)


def to_extremes(g: Any, x: Any, out: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The gradient goes to the elements that are the extreme, in equal shares."""
    taken = x == spread(out, x.shape, dim, keepdim)
    shares = taken / np.sum(taken, axis=dim, keepdims=True)
    return spread(g, x.shape, dim, keepdim) * shares.astype(g.dtype)


def logsumexp(x: Any, dim: Any, keepdim: bool) -> Any:
    """ln Σ exp(x), shifted by the maximum so that it cannot overflow."""
    top = np.max(x, axis=dim, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.sum(np.exp(x - top), axis=dim, keepdims=True)) + top
    return total if keepdim else np.squeeze(total, axis=dim)


def softmax(x: Any, dim: int) -> Any:
    """exp(x) / Σ exp(x), shifted by the maximum so that it cannot overflow."""
    e = np.exp(x - np.max(x, axis=dim, keepdims=True))
    return e / np.sum(e, axis=dim, keepdims=True)


def log_softmax(x: Any, dim: int) -> Any:
    """ln softmax(x)."""
    return x - logsumexp(x, dim, True)


# --- linear algebra


def transposed(x: Any) -> Any:
    """The last two dimensions exchanged."""
    return np.swapaxes(x, -1, -2)


def outer(x: Any, y: Any) -> Any:
    """x yᵀ of two vectors."""
    return np.expand_dims(x, 1) * np.expand_dims(y, 0)


def addmm(bias: Any, x: Any, y: Any) -> Any:
    """bias + x y."""
    product = np.matmul(x, y)
    product += bias
    return product


# --- shape


def inverse_permutation(dims: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `dims`."""
    inverse = [0] * len(dims)
    for position, dim in enumerate(dims):
        inverse[dim] = position
    return tuple(inverse)


def squeeze(x: Any, dim: Any) -> Any:
    """Without the dimensions of size 1 (all of them, or those of `dim`)."""
    if dim is None:
        return np.squeeze(x)
    dims = (dim,) if isinstance(dim, int) else dim
    return np.squeeze(x, axis=tuple(i for i in dims if x.shape[i] == 1))


def at(dim: int, index: Any) -> tuple:
    """The index that takes `index` along `dim`."""
    return (slice(None),) * dim + (index,)


def index(x: Any, index: Any) -> Any:
    """x[index]."""
    return x[index]


def select(x: Any, dim: int, index: int) -> Any:
    """x[:, ..., index] along `dim`."""
    return x[at(dim, index)]


def put_back(g: Any, shape: tuple[int, ...], index: Any) -> Any:
    """The transpose of indexing: zeros of `shape` with `g` added at `index`."""
    if not isinstance(g, (np.ndarray, np.generic)):
        from gradviz.engine.ops import put_back as recorded

        return recorded(g, shape, index)
    whole = np.zeros(shape, g.dtype)
    np.add.at(whole, index, g)
    return whole


def cat(tensors: Sequence[Any], dim: int) -> Any:
    """Tensors behind one another along `dim`."""
    return np.concatenate(tensors, axis=dim)


def cut_apart(g: Any, dim: int, shapes: Sequence[tuple[int, ...]]) -> list:
    """The transpose of `cat`."""
    pieces, start = [], 0
    for shape in shapes:
        piece = slice(start, start + shape[dim])
        pieces.append(g[(slice(None),) * (dim % len(shape)) + (piece,)])
        start += shape[dim]
    return pieces


def stack(tensors: Sequence[Any], dim: int) -> Any:
    """Tensors side by side along a new dimension."""
    return np.stack(tensors, axis=dim)


def unstack(g: Any, dim: int, shapes: Sequence[tuple[int, ...]]) -> list:
    """The transpose of `stack`."""
    return [g[(slice(None),) * (dim % g.ndim) + (i,)] for i in range(len(shapes))]


# --- choice and identity


def where(x: Any, y: Any, condition: Any) -> Any:
    """x where the condition holds, else y."""
    return np.where(condition, x, y)


def to(x: Any, dtype: Any) -> Any:
    """x in another dtype."""
    return x.astype(dtype)


def same(x: Any) -> Any:
    """x."""
    return x
