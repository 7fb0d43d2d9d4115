"""The functions that programs call, made from the table of derivatives.

Most are rows of the table as they are; here stand those that choose a row, convert arguments or compose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradviz.engine.apply import apply, as_tensor, binary, operands, unary
from gradviz.engine.derivatives import TABLE
from gradviz.engine.dtypes import to_numpy
from gradviz.engine.state import state
from gradviz.engine.tell import tell_op
from gradviz.engine.tensor import Tensor, new_tensor

_UNARY = [
    "abs",
    "ceil",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "floor",
    "log",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "relu",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "arctan",
    "arcsin",
    "arccos",
]
_BINARY = ["add", "sub", "mul", "div", "maximum", "minimum"]

functions: dict[str, Callable] = {TABLE[key].name: unary(TABLE[key]) for key in _UNARY}
functions |= {TABLE[key].name: binary(TABLE[key]) for key in _BINARY}

add, sub, mul, div = (functions[name] for name in ("add", "sub", "mul", "div"))
maximum, minimum = functions["maximum"], functions["minimum"]
abs_, ceil, cos, cosh, exp, expm1, floor = (
    functions[name] for name in ("abs", "ceil", "cos", "cosh", "exp", "expm1", "floor")
)
log, log1p, log2, neg, reciprocal, relu, rsqrt = (
    functions[name] for name in ("log", "log1p", "log2", "neg", "reciprocal", "relu", "rsqrt")
)
sigmoid, sign, sin, sinh, sqrt, tan, tanh = (
    functions[name] for name in ("sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh")
)
atan, asin, acos = (functions[name] for name in ("atan", "asin", "acos"))

_pow_tensors = binary(TABLE["pow"])
_rsub = binary(TABLE["rsub"])


def pow(x: Any, exponent: Any) -> Any:
    """x to the power of a number (PowBackward0) or of a tensor (PowBackward1)."""
    if isinstance(x, Tensor) and isinstance(exponent, (int, float)):
        if isinstance(exponent, int) and exponent < 0 and x.array.dtype.kind in "iu":
            raise RuntimeError("Integers to negative integer powers are not allowed.")
        return apply(TABLE["pow_number"], (x,), (exponent,))
    return _pow_tensors(x, exponent)


def rpow(x: Any, base: Any) -> Any:
    """A number to the power of x (PowBackward2)."""
    return apply(TABLE["rpow"], (x,), (base,)) if isinstance(base, (int, float)) else _pow_tensors(base, x)


def rsub(x: Any, other: Any) -> Any:
    """other − x."""
    return _rsub(x, other)


def rdiv(x: Any, other: Any) -> Any:
    """other / x: the reciprocal of x, times other."""
    return mul(reciprocal(x), other)


def square(x: Any) -> Any:
    """x²."""
    return pow(x, 2)


def clamp(x: Tensor, min: Any = None, max: Any = None) -> Tensor:
    """x, but not below `min` and not above `max`."""
    if min is None and max is None:
        raise RuntimeError("torch.clamp: At least one of 'min' or 'max' must not be None")
    return apply(TABLE["clamp"], (x,), (min, max))


# --- reductions


def dims_of(x: Tensor, dim: Any) -> Any:
    """`dim` as NumPy's axis, counted from the front: None, an int or a tuple of ints."""
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return None
    if isinstance(dim, (tuple, list)):
        return tuple(checked_dim(i, x.array.ndim) for i in dim)
    return checked_dim(dim, x.array.ndim)


def checked_dim(dim: int, ndim: int) -> int:
    """`dim` counted from the front; raises IndexError where there is none."""
    n = ndim or 1
    if not -n <= dim < n:
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-n}, {n - 1}], but got {dim})"
        )
    return (dim + n if dim < 0 else dim) if ndim else None  # type: ignore[return-value]


def sum(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over `dim`, or over all."""
    x = x if dtype is None else to(x, dtype)
    axis = dims_of(x, dim)
    return apply(_named_by_dim("sum", axis), (x,), (axis, keepdim))


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over `dim`, or over all; raises RuntimeError for integers."""
    x = x if dtype is None else to(x, dtype)
    if x.array.dtype.kind not in "fc":
        raise RuntimeError(
            "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
            f"dtype. Got: {x.dtype}. Convert it with .float() first."
        )
    axis = dims_of(x, dim)
    return apply(_named_by_dim("mean", axis), (x,), (axis, keepdim))


def _named_by_dim(name: str, axis: Any) -> Any:
    """PyTorch has two nodes: SumBackward0 over everything, SumBackward1 over some dimensions."""
    return TABLE[name if axis is None else f"{name}_dim"]


def max(x: Any, other: Any = None) -> Tensor:
    """The greatest element; of two tensors, the greater elements."""
    return apply(TABLE["max_all"], (x,)) if other is None else maximum(x, other)


def min(x: Any, other: Any = None) -> Tensor:
    """The least element; of two tensors, the lesser elements."""
    return apply(TABLE["min_all"], (x,)) if other is None else minimum(x, other)


def amax(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    """The greatest element along `dim`."""
    return apply(TABLE["amax"], (x,), (dims_of(x, dim), keepdim))


def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    """ln Σ exp(x) along `dim`."""
    return apply(TABLE["logsumexp"], (x,), (dims_of(x, dim), keepdim))


def softmax(x: Tensor, dim: int) -> Tensor:
    """exp(x) / Σ exp(x) along `dim`."""
    return apply(TABLE["softmax"], (x,), (dims_of(x, dim),))


def log_softmax(x: Tensor, dim: int) -> Tensor:
    """ln softmax(x) along `dim`."""
    return apply(TABLE["log_softmax"], (x,), (dims_of(x, dim),))


# --- linear algebra


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of two vectors."""
    _check_product(x, y, 1, 1, "dot")
    return apply(TABLE["dot"], (x, y))


def mv(x: Tensor, y: Tensor) -> Tensor:
    """Matrix times vector."""
    _check_product(x, y, 2, 1, "mv")
    return apply(TABLE["mv"], (x, y))


def mm(x: Tensor, y: Tensor) -> Tensor:
    """Matrix times matrix."""
    _check_product(x, y, 2, 2, "mm")
    return apply(TABLE["mm"], (x, y))


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """Matrix times matrix, for each of a batch."""
    _check_product(x, y, 3, 3, "bmm")
    return apply(TABLE["bmm"], (x, y))


def addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """bias + x y."""
    return apply(TABLE["addmm"], (bias, x, y))


def _check_product(x: Tensor, y: Tensor, x_dims: int, y_dims: int, name: str) -> None:
    if (x.array.ndim, y.array.ndim) != (x_dims, y_dims):
        raise RuntimeError(
            f"{name}: expected tensors of {x_dims} and {y_dims} dimensions, got {x.array.ndim} and "
            f"{y.array.ndim}"
        )
    if x.array.dtype != y.array.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {x.dtype} != {y.dtype}. "
            "Convert one of them with .to()."
        )
    if x.array.shape[-1] != y.array.shape[-2 if y_dims > 1 else -1]:
        shapes = " and ".join("x".join(str(n) for n in t.array.shape) for t in (x, y))
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})")


def matmul(x: Any, y: Any) -> Any:
    """The matrix product, by the dimensions of its operands (PyTorch documentation, `torch.matmul`)."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        x, y = operands(x, y)
        if x is None:
            return NotImplemented
    dims = x.array.ndim, y.array.ndim
    if 0 in dims:
        raise RuntimeError("both arguments to matmul need to be at least 1D; use * for a scalar")
    if dims == (1, 1):
        return dot(x, y)
    if dims == (2, 1):
        return mv(x, y)
    if dims == (2, 2):
        return mm(x, y)
    if dims == (1, 2):
        return squeeze(mm(unsqueeze(x, 0), y), 0)
    return _batched_matmul(x, y)


def _batched_matmul(x: Tensor, y: Tensor) -> Tensor:
    row, column = x.array.ndim == 1, y.array.ndim == 1
    x = unsqueeze(x, 0) if row else x
    y = unsqueeze(y, 1) if column else y
    batch = np.broadcast_shapes(x.array.shape[:-2], y.array.shape[:-2])
    n = int(np.prod(batch, dtype=np.int64))
    x3 = reshape(expand(x, *batch, *x.array.shape[-2:]), n, *x.array.shape[-2:])
    y3 = reshape(expand(y, *batch, *y.array.shape[-2:]), n, *y.array.shape[-2:])
    product = reshape(bmm(x3, y3), *batch, x.array.shape[-2], y.array.shape[-1])
    product = squeeze(product, -2) if row else product
    return squeeze(product, -1) if column else product


# --- shape


def sizes(shape: tuple) -> tuple[int, ...]:
    """Sizes given one by one or as one sequence."""
    if len(shape) == 1 and isinstance(shape[0], (tuple, list)):
        shape = tuple(shape[0])
    return tuple(int(n) for n in shape)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """x in another shape; one size may be −1. Raises RuntimeError where the elements do not fit."""
    wanted = sizes(shape)
    try:
        resolved = np.broadcast_to(np.empty(()), x.array.shape).reshape(wanted).shape
    except ValueError:
        raise RuntimeError(f"shape '{list(wanted)}' is invalid for input of size {x.array.size}") from None
    return apply(TABLE["reshape"], (x,), (resolved,))


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """x with the dimensions from `start_dim` to `end_dim` made one."""
    ndim = x.array.ndim
    start, end = checked_dim(start_dim, ndim), checked_dim(end_dim, ndim)
    if ndim == 0:
        return reshape(x, 1)
    return reshape(x, *x.array.shape[:start], -1, *x.array.shape[end + 1 :])


def t(x: Tensor) -> Tensor:
    """A matrix transposed; raises RuntimeError above two dimensions."""
    if x.array.ndim > 2:
        raise RuntimeError(f"t() expects a tensor with <= 2 dimensions, but self is {x.array.ndim}D")
    return apply(TABLE["t"], (x,))


def transpose(x: Tensor, dim0: int, dim1: int) -> Tensor:
    """x with two dimensions exchanged."""
    n = x.array.ndim
    return apply(TABLE["transpose"], (x,), (checked_dim(dim0, n), checked_dim(dim1, n)))


def permute(x: Tensor, *dims: Any) -> Tensor:
    """x with its dimensions in another order."""
    return apply(TABLE["permute"], (x,), (tuple(checked_dim(i, x.array.ndim) for i in sizes(dims)),))


def expand(x: Tensor, *size: Any) -> Tensor:
    """x with dimensions of size 1 repeated, without a copy; −1 keeps a size."""
    wanted = sizes(size)
    extra = len(wanted) - x.array.ndim
    full = tuple(x.array.shape[i - extra] if n == -1 else n for i, n in enumerate(wanted))
    if full == x.array.shape:
        return x
    return apply(TABLE["expand"], (x,), (full,))


def squeeze(x: Tensor, dim: Any = None) -> Tensor:
    """x without its dimensions of size 1, or without those of `dim` that are."""
    return apply(TABLE["squeeze" if dim is None else "squeeze_dim"], (x,), (dims_of(x, dim),))


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """x with a new dimension of size 1."""
    return apply(TABLE["unsqueeze"], (x,), (checked_dim(dim, x.array.ndim + 1),))


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index], with slices, integers, None, Ellipsis, and boolean or integer tensors."""
    index = plain_index(index)
    if isinstance(index, int) and x.array.ndim:
        n = x.array.shape[0]
        if not -n <= index < n:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {n}")
        return apply(TABLE["select"], (x,), (0, index % n))
    parts = index if isinstance(index, tuple) else (index,)
    gathers = any(isinstance(part, (np.ndarray, list)) for part in parts)
    return apply(TABLE["gather_index" if gathers else "index"], (x,), (index,))


def plain_index(index: Any) -> Any:
    """An index without Tensors in it."""
    if isinstance(index, tuple):
        return tuple(plain_index(part) for part in index)
    if isinstance(index, Tensor):
        return index.array if index.array.ndim or index.array.dtype.kind == "b" else int(index.array)
    return index


def put_back(x: Tensor, shape: tuple, index: Any) -> Tensor:
    """Zeros of `shape`, with `x` added at `index`."""
    return apply(TABLE["put_back"], (x,), (shape, plain_index(index)))


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors behind one another along `dim`."""
    tensors = tuple(as_tensor(tensor) for tensor in tensors)
    return apply(TABLE["cat"], tensors, (checked_dim(dim, tensors[0].array.ndim),))


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors side by side along a new dimension."""
    tensors = tuple(as_tensor(tensor) for tensor in tensors)
    return apply(TABLE["stack"], tensors, (checked_dim(dim, tensors[0].array.ndim + 1),))


# --- choice, comparison, identity


def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    left, right = operands(x, y)
    if left is None:
        raise TypeError("where() takes tensors or numbers")
    return apply(TABLE["where"], (left, right), (as_tensor(condition).array,))


def detach(x: Tensor) -> Tensor:
    """The same memory without a place in the graph."""
    out = apply(TABLE["detach"], (x,))
    out._rare.base = None  # not a view that autograd follows, but memory and versions are shared
    return out


def view_as_self(x: Tensor) -> Tensor:
    """The same memory, in the graph: what `make_dual` gives its tangent to."""
    return apply(TABLE["make_dual"], (x,))


def clone(x: Tensor) -> Tensor:
    """A copy that gradients flow through."""
    return apply(TABLE["clone"], (x,))


def copy(x: Tensor) -> Tensor:
    """A copy as AccumulateGrad makes it under `create_graph`: its node is CopyBackwards."""
    return apply(TABLE["copy"], (x,))


def to(x: Tensor, dtype: Any) -> Tensor:
    """x in another dtype; x itself where it has it already."""
    wanted = to_numpy(dtype)
    return x if wanted == x.array.dtype else apply(TABLE["to"], (x,), (wanted,))


def _plain(name: str, ufunc: Callable, nargs: int = 2) -> Callable:
    """A function that no gradient goes through."""

    def call(*tensors: Any) -> Any:
        x, y = operands(*tensors) if nargs == 2 else (as_tensor(tensors[0]), None)
        if x is None:
            return NotImplemented
        inputs = (x,) if y is None else (x, y)
        out = new_tensor(np.asarray(ufunc(*(tensor.array for tensor in inputs))))
        if state.listener is not None:
            tell_op(name, inputs, (out,), "", None)
        return out

    call.__name__ = name
    return call


PLAIN: dict[str, Callable] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "logical_and": np.logical_and, "logical_or": np.logical_or,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor,
    "floor_divide": np.floor_divide, "remainder": np.remainder,
}  # fmt: skip
PLAIN_UNARY: dict[str, Callable] = {
    "isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite, "logical_not": np.logical_not,
    "bitwise_not": np.invert, "round": np.round, "trunc": np.trunc,
}  # fmt: skip
plain: dict[str, Callable] = {name: _plain(name, ufunc) for name, ufunc in PLAIN.items()}
plain |= {name: _plain(name, ufunc, 1) for name, ufunc in PLAIN_UNARY.items()}
