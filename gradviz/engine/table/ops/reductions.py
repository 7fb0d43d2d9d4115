"""Sums, means, maxima and minima, softmax.

`dim` is one dimension, several, or None for all. With `keepdim` reduced dimensions stay with size 1.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import default_dtype, scalar_type_name
from gradviz.engine.basics.shape_errors import check_kernel
from gradviz.engine.core.apply import apply
from gradviz.engine.core.tell import without_node
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops.choice import to
from gradviz.engine.table.ops.elementwise import div


def dims_of(x: Tensor, dim: Any) -> Any:
    """`dim` as NumPy's axis, counted from the front: None, an int or a tuple of ints.

    Raises IndexError where it is out of range, RuntimeError where a dimension occurs twice."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return None
    if not x.array.ndim:
        for i in dim if isinstance(dim, (tuple, list)) else (dim,):
            checked_dim(i, 0)
        return None
    if isinstance(dim, (tuple, list)):
        dims = tuple(checked_dim(i, x.array.ndim) for i in dim)
        twice = next((i for i in dims if dims.count(i) > 1), None)
        if twice is not None:
            raise RuntimeError(f"dim {twice} appears multiple times in the list of dims")
        return dims
    return checked_dim(dim, x.array.ndim)


def checked_dim(dim: int, ndim: int) -> int:
    """`dim` counted from the front. Raises IndexError where it is out of range."""
    n = ndim or 1
    if not -n <= dim < n:
        raise IndexError(f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})")
    return (dim + n if dim < 0 else dim) if ndim else None  # type: ignore[return-value]


def sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over `dim`. Integers and bools are summed in int64. `dtype` converts first."""
    x = x if dtype is None else to(x, dtype)
    return apply(_named_by_dim("sum", dim), (x,), (dims_of(x, dim), keepdim))


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim`. Raises RuntimeError for integers."""
    x = x if dtype is None else to(x, dtype)
    if x.array.dtype.kind not in "fc":
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
            f"dtype. Got: {x.dtype}. Convert it with .float() first."
        )
    return apply(_named_by_dim("mean", dim), (x,), (dims_of(x, dim), keepdim))


def _named_by_dim(name: str, dim: Any) -> Any:
    """The row for PyTorch's node: SumBackward0 over all dimensions, SumBackward1 over some."""
    return TABLE[name if dim is None else f"{name}_dim"]


def amax(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The maximum over `dim`. Ties share the gradient."""
    return apply(TABLE["amax"], (x,), (dims_of(x, dim), keepdim))


def amin(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The minimum over `dim`. Ties share the gradient."""
    return apply(TABLE["amin"], (x,), (dims_of(x, dim), keepdim))


def aminmax(x: Tensor, *, dim: Any = None, keepdim: bool = False) -> Any:
    """The minimum and the maximum over `dim`."""
    return AminMax(*apply(TABLE["aminmax"], (x,), (dims_of(x, dim), keepdim)))


AminMax = namedtuple("AminMax", ["min", "max"])


def prod(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product over `dim`. Integers and bools are multiplied in int64. `dtype` converts first."""
    x = x if dtype is None else to(x, dtype)
    return apply(_named_by_dim("prod", dim), (x,), (dims_of(x, dim), keepdim))


def nansum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over `dim`. NaN counts as 0. Integers and bools are summed in int64. `dtype` converts first."""
    if dtype is not None:
        x = to(x, dtype)
    elif x.array.dtype.kind in "iub":
        x = to(x, np.dtype(np.int64))
    return apply(TABLE["nansum"], (x,), (dims_of(x, dim), keepdim))


def nanmean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim` of the elements that are not NaN. Raises RuntimeError for integers."""
    if x.array.dtype.kind not in "fc":
        raise RuntimeError(
            "nanmean(): expected input to have floating point or complex dtype but got "
            f"{scalar_type_name(x.array.dtype)}. Convert it with .float() first."
        )
    total = nansum(x, dim, keepdim, dtype=dtype)
    present = np.sum(~np.isnan(x.array), axis=dims_of(x, dim), keepdims=keepdim)
    return div(total, new_tensor(np.asarray(present, total.array.dtype)))


def _floating(x: Tensor, complaint: str) -> None:
    if x.array.dtype.kind not in "fc":
        raise RuntimeError(f"{complaint} Got: {x.dtype}. Convert it with .float() first.")


def _spread_measure(key: str) -> Callable:
    """`var`, `std`, and their pairs with the mean, with PyTorch's several forms of arguments."""

    def call(x: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = 1) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        if unbiased is not None:
            correction = int(unbiased)
        correction = 1 if correction is None else correction
        _floating(x, "std and var only support floating point and complex dtypes")
        return apply(TABLE[key], (x,), (dims_of(x, dim), correction, keepdim))

    call.__name__ = key
    call.__doc__ = f"{key} over `dim`, dividing by n − correction."
    return call


var, std, var_mean, std_mean = (_spread_measure(key) for key in ("var", "std", "var_mean", "std_mean"))


def cumsum(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The sum of all elements up to each element along `dim`."""
    return apply(TABLE["cumsum"], (x if dtype is None else to(x, dtype),), (dims_of(x, dim),))


def cumprod(x: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    """The product of all elements up to each element along `dim`."""
    return apply(TABLE["cumprod"], (x if dtype is None else to(x, dtype),), (dims_of(x, dim),))


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    """ln Σ exp(x) of all elements up to each element along `dim`."""
    return apply(TABLE["logcumsumexp"], (x,), (dims_of(x, dim),))


def norm_along(x: Tensor, p: float, dim: int, keepdim: bool = False) -> Tensor:
    """The p-norm along `dim`, with the node that PyTorch's own functions have (NormBackward1)."""
    return apply(TABLE["norm"], (x,), (float(p), dims_of(x, dim), keepdim))


def vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """(Σ |x|^ord)^(1/ord) over `dim`. Raises RuntimeError for integers."""
    x = x if dtype is None else to(x, dtype)
    _floating(x, "linalg.vector_norm: Expected a floating point or complex tensor as input.")
    return apply(TABLE["vector_norm"], (x,), (float(ord), dims_of(x, dim), keepdim))


def dist(x: Tensor, other: Tensor, p: float = 2) -> Tensor:
    """The p-norm of x − other, in the dtype of both together."""
    if other.array.dtype.kind not in "fc":
        other = to(other, x.array.dtype)
    return apply(TABLE["dist"], (x, other), (float(p),))


def count_nonzero(x: Tensor, dim: Any = None) -> Tensor:
    """The number of elements over `dim` that are not 0, as int64."""
    found = new_tensor(np.asarray(np.count_nonzero(x.array, axis=dims_of(x, dim)), np.int64))
    return without_node("count_nonzero", (x,), found, _along(dim, False))


def _along(dim: Any, keepdim: bool) -> str:
    """The arguments of a reduction, as text."""
    kept = ["keepdim=True"] if keepdim else []
    return ", ".join(kept if dim is None else [f"dim={dim}", *kept])


def _quantifier(name: str, reduce: Callable) -> Callable:
    def call(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        over_none = isinstance(dim, (tuple, list)) and not dim  # which is no reduction here, unlike for sums
        array = np.asarray(reduce(x.array, axis=() if over_none else dims_of(x, dim), keepdims=keepdim))
        found = new_tensor(array.astype(np.uint8) if x.array.dtype == np.uint8 else array)
        return without_node(name, (x,), found, _along(dim, keepdim))

    call.__name__ = name
    return call


all, any = _quantifier("all", np.all), _quantifier("any", np.any)


def _place(name: str, find: Callable) -> Callable:
    def call(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        if x.array.dtype.kind in "bc":
            kind = scalar_type_name(x.array.dtype)
            raise NotImplementedError(f"\"{name}_cpu\" not implemented for '{kind}'")
        out = new_tensor(np.asarray(find(x.array, axis=dims_of(x, dim), keepdims=keepdim)))
        return without_node(name, (x,), out, _along(dim, keepdim))

    call.__name__ = name
    return call


argmax, argmin = _place("argmax", np.argmax), _place("argmin", np.argmin)


def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """ln Σ exp(x) along `dim`. Integers and bools are converted to the default dtype."""
    if x.array.dtype.kind in "iub":
        x = to(x, default_dtype())
    return apply(TABLE["logsumexp"], (x,), (dims_of(x, dim), keepdim))


def softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(x) / Σ exp(x) along `dim`. `dtype` converts first."""
    return _normalized("softmax", x if dtype is None else to(x, dtype), dim)


def safe_softmax(x: Tensor, dim: int) -> Tensor:
    """`softmax`, and 0 where all elements along `dim` are −∞."""
    return apply(TABLE["safe_softmax"], (x,), (dims_of(x, dim),))


def log_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """ln softmax(x) along `dim`. `dtype` converts first."""
    return _normalized("log_softmax", x if dtype is None else to(x, dtype), dim)


def _normalized(key: str, x: Tensor, dim: int) -> Tensor:
    dims = dims_of(x, dim)
    if x.array.dtype.kind not in "fc":
        last = "_lastdim" if dims == x.array.ndim - 1 else ""
        check_kernel(f"{key}{last}_kernel_impl", x.array)
    return apply(TABLE[key], (x,), (dims,))
