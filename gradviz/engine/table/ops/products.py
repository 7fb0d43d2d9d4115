"""Products of vectors and matrices."""

from __future__ import annotations

import builtins
import math
from typing import Any

import numpy as np

from gradviz.engine.basics.shape_errors import broadcast_shape
from gradviz.engine.core.apply import apply, binary, operands
from gradviz.engine.core.tensor import Tensor, counter_of
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops.choice import contiguous
from gradviz.engine.table.ops.elementwise import mul
from gradviz.engine.table.ops.reductions import checked_dim, sum
from gradviz.engine.table.ops.shape import permute, reshape, reshaped, squeeze, t, transpose, unsafe_view, unsqueeze

_mm, _bmm = binary(TABLE["mm"]), binary(TABLE["bmm"])


def dot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of two vectors."""
    _check_product(x, y, 1, 1, "dot")
    return apply(TABLE["dot"], (x, y))


def mv(x: Tensor, y: Tensor) -> Tensor:
    """The product of a matrix and a vector."""
    _check_product(x, y, 2, 1, "mv")
    return apply(TABLE["mv"], (x, y))


def mm(x: Tensor, y: Tensor) -> Tensor:
    """The product of two matrices."""
    a, b = x.array, y.array
    if a.ndim != 2 or b.ndim != 2 or a.dtype is not b.dtype or a.shape[1] != b.shape[0]:
        _check_product(x, y, 2, 2, "mm")
    return _mm(x, y)


def bmm(x: Tensor, y: Tensor) -> Tensor:
    """The products of two batches of matrices."""
    _check_product(x, y, 3, 3, "bmm")
    return _bmm(x, y)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · mat1 mat2."""
    return _plus_product("addmm", input, mat1, mat2, beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · mat vec."""
    return _plus_product("addmv", input, mat, vec, beta, alpha)


def addr(input: Tensor, vec1: Tensor, vec2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · vec1 vec2ᵀ."""
    return _plus_product("addr", input, vec1, vec2, beta, alpha)


def addbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · the sum of the products of two batches of matrices."""
    return _plus_product("addbmm", input, batch1, batch2, beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta · input + alpha · the products of two batches of matrices."""
    return _plus_product("baddbmm", input, batch1, batch2, beta, alpha)


def _plus_product(key: str, bias: Tensor, x: Tensor, y: Tensor, beta: Any, alpha: Any) -> Tensor:
    _check_dims(x, y, *_DIMS[key], key)
    if key == "addmm" and x.array.shape[1] != y.array.shape[0]:
        _check_product(x, y, 2, 2, key)
    if beta == 1 and alpha == 1:
        return apply(TABLE[key], (bias, x, y))
    return apply(TABLE[f"{key}_scaled"], (bias, x, y), (beta, alpha))


_NAMES = {"float64": "double", "float32": "float", "float16": "c10::Half", "int64": "int64_t", "int32": "int"}


def _c_name(x: Tensor) -> str:
    """The name of the dtype in C++, which PyTorch's message has."""
    return _NAMES.get(x.array.dtype.name, x.array.dtype.name)


def _wrong_dims(name: str, n: int, m: int) -> str:
    """The message for operands of n and m dimensions, where a product takes others."""
    if name == "dot":
        return f"1D tensors expected, but got {n}D and {m}D tensors"
    if name in ("mv", "addmv"):
        return f"vector + matrix @ vector expected, got 1, {n}, {m}"
    if name == "addr":
        wrong, dims = ("vec1", n) if n != 1 else ("vec2", m)
        return f"addr: Expected 1-D argument {wrong}, but got {dims}-D"
    if name == "mm":
        return f"{'self' if n != 2 else 'mat2'} must be a matrix"
    if name == "addmm":
        wrong, dims = ("mat1", n) if n != 2 else ("mat2", m)
        return f"{wrong} must be a matrix, got {dims}-D tensor"
    return f"{'batch1' if n != 3 else 'batch2'} must be a 3D tensor"


_DIMS = {"addmm": (2, 2), "addmv": (2, 1), "addr": (1, 1), "addbmm": (3, 3), "baddbmm": (3, 3)}


def _check_dims(x: Tensor, y: Tensor, x_dims: int, y_dims: int, name: str) -> None:
    if (x.array.ndim, y.array.ndim) != (x_dims, y_dims):
        raise RuntimeError(_wrong_dims(name, x.array.ndim, y.array.ndim))


def _check_product(x: Tensor, y: Tensor, x_dims: int, y_dims: int, name: str) -> None:
    _check_dims(x, y, x_dims, y_dims, name)
    if x.array.dtype != y.array.dtype:
        raise RuntimeError(
            f"expected m1 and m2 to have the same dtype, but got: {_c_name(x)} != {_c_name(y)}. "
            "Convert one of them with .to()."
        )
    if name == "bmm" and (x.array.shape[0], x.array.shape[2]) != y.array.shape[:2]:
        raise RuntimeError(
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"{[x.array.shape[0], x.array.shape[2]]} but got: {list(y.array.shape[:2])}."
        )
    if x.array.shape[-1] != y.array.shape[-2 if y_dims > 1 else -1]:
        n, m = x.array.shape[-1], y.array.shape[0]
        if name == "dot":
            raise RuntimeError(
                f"inconsistent tensor size, expected tensor [{n}] and src [{m}] to have the same number of elements, "
                f"but got {n} and {m} elements respectively"
            )
        if name == "mv":
            rows = x.array.shape[0]
            raise RuntimeError(f"size mismatch, got input ({rows}), mat ({rows}x{n}), vec ({m})")
        shapes = " and ".join("x".join(str(n) for n in t.array.shape) for t in (x, y))
        raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({shapes})")


def matmul(x: Any, y: Any) -> Any:
    """The matrix product. It depends on the dimensions of the operands (PyTorch documentation, `torch.matmul`)."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        x, y = operands(x, y)
        if x is None:
            return NotImplemented
    dims = x.array.ndim, y.array.ndim
    if dims == (2, 2):
        return mm(x, y)
    if 0 in dims:
        raise RuntimeError(f"both arguments to matmul need to be at least 1D, but they are {dims[0]}D and {dims[1]}D")
    if dims == (1, 1):
        return dot(x, y)
    if dims == (2, 1):
        return mv(x, y)
    if dims == (1, 2):
        row = apply(TABLE["squeeze_dim_"], (mm(unsqueeze(x, 0), y),), (0,))
        counter_of(row).n += 1  # as if squeezed in place: no tensor is left that it could be a view of
        row._rare.base = None
        return row
    if _folds(x, y):
        return _folded_matmul(x, y)
    return _batched_matmul(x, y)


def _folds(x: Tensor, y: Tensor) -> bool:
    """Whether a batch of matrices and one matrix or vector are multiplied as one tall matrix.

    They are where that needs no copy, or where it saves a sum over the batch (`should_fold` in PyTorch's
    LinearAlgebra.cpp)."""
    batch, one = (x.array, y) if x.array.ndim >= y.array.ndim else (y.array.swapaxes(-1, -2), x)
    if batch.ndim < 3 or one.array.ndim > 2:
        return False
    if one.requires_grad:
        return True
    if x.array.ndim == 2:
        return False
    shape, strides = batch.shape, batch.strides
    return not batch.size or all(strides[i] == strides[i + 1] * shape[i + 1] for i in range(len(shape) - 2))


def _folded_matmul(x: Tensor, y: Tensor) -> Tensor:
    """The product of a batch of matrices and one matrix or vector, on either side, as one tall matrix."""
    if x.array.ndim < y.array.ndim:
        one = t(x) if x.array.ndim == 2 else x
        product = _folded_matmul(transpose(y, -2, -1), one)
        return contiguous(transpose(product, -2, -1)) if x.array.ndim == 2 else product
    *batch, inner = x.array.shape
    tall = reshaped(x, (math.prod(batch), inner))
    if y.array.ndim == 1:
        return unsafe_view(mv(tall, y), (*batch,))
    return unsafe_view(mm(tall, y), (*batch, y.array.shape[1]))


def _batched_matmul(x: Tensor, y: Tensor) -> Tensor:
    """The product of two batches of matrices that broadcast. A vector is a row on the left, a column on the right."""
    rows = x.array.shape[-2:] if x.array.ndim > 1 else (1, *x.array.shape)
    columns = y.array.shape[-2:] if y.array.ndim > 1 else y.array.shape
    batch = x.array.shape[:-2]
    if batch != y.array.shape[:-2]:
        batch = broadcast_shape(batch, y.array.shape[:-2])
    n = math.prod(batch)
    x3 = reshaped(apply(TABLE["expand"], (x,), ((*batch, *rows),)), (n, *rows))
    y3 = reshaped(apply(TABLE["expand"], (y,), ((*batch, *columns),)), (n, *columns))
    if y.array.ndim == 1:
        return unsafe_view(squeeze(bmm(x3, unsqueeze(y3, 2)), -1), (*batch, rows[0]))
    shape = (*batch, *rows[:1], columns[1]) if x.array.ndim > 1 else (*batch, columns[1])
    return unsafe_view(bmm(x3, y3), shape)


def outer(x: Tensor, vec2: Tensor) -> Tensor:
    """x yᵀ of two vectors."""
    if x.array.ndim != 1 or vec2.array.ndim != 1:
        name, wrong = ("self", x) if x.array.ndim != 1 else ("vec2", vec2)
        raise RuntimeError(f"outer: Expected 1-D argument {name}, but got {wrong.array.ndim}-D")
    return mul(reshape(x, -1, 1), vec2)


ger = outer


def vdot(x: Tensor, y: Tensor) -> Tensor:
    """The inner product of two vectors."""
    _check_product(x, y, 1, 1, "dot")
    return apply(TABLE["vdot"], (x, y))


def inner(x: Tensor, other: Tensor) -> Tensor:
    """The inner products of the last dimensions."""
    if not (x.array.ndim and other.array.ndim):
        return mul(x, other)
    return tensordot(x, other, ([-1], [-1]))


def tensordot(a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """The product of a and b, summed over dimensions: over a number of the last and the first, or over those
    given."""
    if isinstance(dims, Tensor):
        dims = dims.array.tolist()
    if isinstance(dims, int):
        dims = (list(range(-dims, 0)), list(range(dims)))
    n, m = a.array.ndim, b.array.ndim
    over_a, over_b = [i % n for i in dims[0]], [i % m for i in dims[1]]
    for i, j in zip(over_a, over_b, strict=True):
        if a.array.shape[i] == 1:
            b = sum(b, j, True)
        elif b.array.shape[j] == 1:
            a = sum(a, i, True)
        elif a.array.shape[i] != b.array.shape[j]:
            raise RuntimeError(
                "contracted dimensions need to match, but first has size "
                f"{a.array.shape[i]} in dim {i} and second has size {b.array.shape[j]} in dim {j}"
            )
    rest_a, rest_b = ([i for i in range(k) if i not in over] for k, over in ((n, over_a), (m, over_b)))
    shape = [a.array.shape[i] for i in rest_a] + [b.array.shape[i] for i in rest_b]
    size = int(np.prod([a.array.shape[i] for i in over_a], dtype=np.int64))
    rows = int(np.prod([a.array.shape[i] for i in rest_a], dtype=np.int64))
    columns = int(np.prod([b.array.shape[i] for i in rest_b], dtype=np.int64))
    left = reshape(permute(a, *rest_a, *over_a), rows, size)
    right = reshape(permute(b, *over_b, *rest_b), size, columns)
    return reshape(mm(left, right), *shape)


def kron(x: Tensor, other: Tensor) -> Tensor:
    """The Kronecker product."""
    n = builtins.max(x.array.ndim, other.array.ndim)
    a, b = ((1,) * (n - t.array.ndim) + t.array.shape for t in (x, other))
    left = unsafe_view(contiguous(x), tuple(size for i in a for size in (i, 1)))
    right = unsafe_view(contiguous(other), tuple(size for i in b for size in (1, i)))
    return unsafe_view(mul(left, right), tuple(i * j for i, j in zip(a, b, strict=True)))


def trace(x: Tensor) -> Tensor:
    """The sum of the diagonal of a matrix."""
    if x.array.ndim != 2:
        raise RuntimeError(f"trace: expected a matrix, but got tensor with dim {x.array.ndim}")
    return apply(TABLE["trace"], (x,))


def cross(x: Tensor, other: Tensor, dim: Any = None) -> Tensor:
    """The cross product of vectors of three elements along `dim`, or along the first dimension of size 3."""
    if dim is None:
        dim = next((i for i, n in enumerate(x.array.shape) if n == 3), None)
        if dim is None:
            raise RuntimeError("no dimension of size 3 in input")
    n = builtins.max(x.array.ndim, other.array.ndim)
    return apply(TABLE["linalg_cross"], (x, other), (checked_dim(dim, n),))
