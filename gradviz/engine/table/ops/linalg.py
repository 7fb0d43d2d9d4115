"""Inverses, determinants, factorizations, matrix norms: `torch.linalg`.

Matrices are the last two dimensions, so that all functions take batches of matrices. Where LAPACK finds no answer,
LinAlgError is raised.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.engine.basics.memory_format import contiguous_format
from gradviz.engine.core.apply import apply
from gradviz.engine.core.tell import without_node
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.kernels import least_value, singular_values
from gradviz.engine.table.ops.choice import clone, to, where
from gradviz.engine.table.ops.elementwise import mul
from gradviz.engine.table.ops.joining import cat
from gradviz.engine.table.ops.products import cross, matmul, vdot
from gradviz.engine.table.ops.reductions import amax, amin, checked_dim, cumprod, dims_of, sum, vector_norm
from gradviz.engine.table.ops.shape import diagonal, expand, permute, reshape, transpose, unsqueeze, view

EighResult = namedtuple("EighResult", ["eigenvalues", "eigenvectors"])
SlogdetResult = namedtuple("SlogdetResult", ["sign", "logabsdet"])
SvdResult = namedtuple("SvdResult", ["U", "S", "Vh"])
QrResult = namedtuple("QrResult", ["Q", "R"])


def _computed(key: str, *tensors: Tensor, args: tuple = ()) -> Any:
    """Run a row of the table. Raises LinAlgError where LAPACK fails."""
    for tensor in tensors[:1]:
        if tensor.array.ndim < 2:
            raise RuntimeError(f"linalg.{key}: The input tensor A must have at least 2 dimensions.")
    try:
        return apply(TABLE[key], tensors, args)
    except np.linalg.LinAlgError as error:
        name = TABLE[key].name.removeprefix("linalg_")
        raise k.no_answer(name, tensors[0].array, error) from None


def _square(name: str, x: Tensor) -> None:
    if x.array.ndim < 2:
        raise RuntimeError(f"linalg.{name}: The input tensor A must have at least 2 dimensions.")
    rows, columns = x.array.shape[-2:]
    if rows != columns:
        raise RuntimeError(
            f"linalg.{name}: A must be batches of square matrices, but they are {rows} by {columns} matrices"
        )


def inv(A: Tensor) -> Tensor:
    """The inverse of square matrices. Raises LinAlgError for a singular one."""
    _square("inv", A)
    return _computed("inv", A)


inverse = inv


def det(A: Tensor) -> Tensor:
    """The determinant of square matrices."""
    _square("det", A)
    return _computed("det", A)


def slogdet(A: Tensor) -> SlogdetResult:
    """The sign of the determinant, and the logarithm of its magnitude."""
    _square("slogdet", A)
    return SlogdetResult(*_computed("slogdet", A))


def logdet(A: Tensor) -> Tensor:
    """The logarithm of the determinant; NaN where it is negative."""
    sign, logabsdet = slogdet(A)
    nan = new_tensor(np.asarray(np.nan, logabsdet.array.dtype))
    return where(sign.array == -1, nan, logabsdet)


def solve(A: Tensor, B: Tensor, *, left: bool = True) -> Tensor:
    """X such that A X = B, or X A = B where `left` is False. B is a vector or a matrix for each A."""
    _square("solve", A)
    if not left:
        return transpose(solve(transpose(A, -2, -1), transpose(B, -2, -1)), -2, -1)
    if B.array.ndim == 1 or B.array.shape == A.array.shape[:-1]:
        return _computed("solve_vector", A, B)
    return _computed("solve", A, B)


def solve_triangular(A: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """`solve` for triangular matrices. Only that triangle is read."""
    _square("solve_triangular", A)
    return _computed("solve_triangular" if left else "solve_triangular_right", A, B, args=(upper, unitriangular))


def cholesky(A: Tensor, *, upper: bool = False) -> Tensor:
    """The lower triangular L such that L Lᵀ = A, or with `upper` its transpose."""
    _square("cholesky", A)
    return _computed("cholesky_upper" if upper else "cholesky", A)


def pinv(A: Tensor, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    """The Moore-Penrose inverse. Singular values up to max(atol, rtol · the greatest one) count as 0."""
    return _computed("pinv", A, args=(_number(atol), _number(rtol), hermitian))


def _number(value: Any) -> Any:
    return value.array if isinstance(value, Tensor) else value


def eigh(A: Tensor, UPLO: str = "L") -> EighResult:
    """The eigenvalues of symmetric matrices in ascending order, and the eigenvectors as columns."""
    _square("eigh", A)
    return EighResult(*_computed("eigh", A, args=(UPLO == "L",)))


def eigvalsh(A: Tensor, UPLO: str = "L") -> Tensor:
    """The eigenvalues of symmetric matrices in ascending order."""
    return eigh(A, UPLO).eigenvalues


def svd(A: Tensor, full_matrices: bool = True) -> SvdResult:
    """U, S and Vᵀ such that A = U diag(S) Vᵀ.

    U and V are square, or have min(n, m) columns where `full_matrices` is False. The other columns have no gradient,
    because A does not determine them."""
    return SvdResult(*_computed("svd", A, args=(full_matrices,)))


def svdvals(A: Tensor) -> Tensor:
    """The singular values in descending order."""
    return svd(A, full_matrices=False).S


def qr(A: Tensor, mode: str = "reduced") -> QrResult:
    """Q with orthonormal columns, and an upper triangular R, such that A = Q R."""
    n, m = A.array.shape[-2:]
    if mode not in ("reduced", "complete", "r"):
        raise RuntimeError(
            f"qr received unrecognized mode '{mode}' but expected one of 'reduced' (default), 'r', or 'complete'"
        )
    if mode == "reduced" or (mode == "complete" and n <= m):
        return QrResult(*_computed("qr", A))
    if A.requires_grad:
        raise NotImplementedError(
            f"The derivative of linalg.qr is not implemented for mode='{mode}'"
            f"{' and matrices higher than wide' if mode == 'complete' else ''}; use mode='reduced'."
        )
    if mode == "complete":
        return QrResult(*map(new_tensor, np.linalg.qr(A.array, "complete")))
    return QrResult(new_tensor(np.empty(0, A.array.dtype)), new_tensor(np.asarray(np.linalg.qr(A.array, "r"))))


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of several matrices. The first and the last may be vectors."""
    if len(tensors) < 2:
        raise RuntimeError("multi_dot(): expected at least 2 tensors but got 1")
    first, *between, last = tensors
    rows = first if first.array.ndim > 1 else unsqueeze(first, 0)
    columns = last if last.array.ndim > 1 else unsqueeze(last, -1)
    product = _chain([rows, *between, columns])
    return view(product, *first.array.shape[:-1], *last.array.shape[1:])


def _chain(matrices: Sequence[Tensor]) -> Tensor:
    """The product of matrices, in the order with the fewest multiplications (Cormen et al., 15.2)."""
    sizes = [*(matrix.array.shape[0] for matrix in matrices), matrices[-1].array.shape[1]]
    n = len(matrices)
    cost = {(i, i): 0 for i in range(n)}
    cut: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            totals = {s: cost[i, s] + cost[s + 1, j] + sizes[i] * sizes[s + 1] * sizes[j + 1] for s in range(i, j)}
            cut[i, j] = min(totals, key=lambda s: totals[s])
            cost[i, j] = totals[cut[i, j]]

    def product(i: int, j: int) -> Tensor:
        return matrices[i] if i == j else matmul(product(i, cut[i, j]), product(cut[i, j] + 1, j))

    return product(0, n - 1)


def matrix_power(A: Tensor, n: int) -> Tensor:
    """A to the power of n. A negative n takes the inverse."""
    _square("matrix_power", A)
    if n < 0:
        return inv(A) if n == -1 else matrix_power(inv(A), -n)
    if n == 0:
        identity = new_tensor(np.eye(A.array.shape[-1], dtype=A.array.dtype))
        return apply(TABLE["copy_over"], (clone(A, contiguous_format), identity))
    half, odd = divmod(n, 2)
    if n == 1:
        return clone(A, contiguous_format)
    square = matrix_power(matmul(A, A), half) if half > 1 else matmul(A, A)
    return matmul(square, A) if odd else square


def matrix_norm(
    A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    """A norm of matrices: "fro", "nuc", ±1, ±2 or ±inf. Raises RuntimeError for another order."""
    rows, columns = dims_of(A, tuple(dim))
    if ord == "fro":
        return vector_norm(A, 2, (rows, columns), keepdim, dtype=dtype)
    if dtype is not None:
        A = to(A, dtype)
    if ord in ("nuc", 2, -2):
        kept = [i for i in range(A.array.ndim) if i not in (rows, columns)]
        order = [*kept, rows, columns]
        values = svdvals(permute(A, *order))
        reduce = sum if ord == "nuc" else amax if ord == 2 else amin
        reduced = reduce(values, -1, keepdim)
        return permute(unsqueeze(reduced, -1), *np.argsort(order).tolist()) if keepdim else reduced
    if ord not in (1, -1, np.inf, -np.inf):
        raise RuntimeError(f"linalg.matrix_norm: Order {ord} not supported.")
    summed, other = (rows, columns) if abs(ord) == 1 else (columns, rows)
    sums = vector_norm(A, 1, summed, keepdim)
    return (amax if ord > 0 else amin)(sums, other - (summed < other and not keepdim), keepdim)


def linalg_norm(A: Tensor, ord: Any = None, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """A norm of vectors, or of matrices where `ord` and `dim` say so."""
    matrices = isinstance(dim, (tuple, list)) and len(dim) == 2
    if ord is not None and (matrices or (dim is None and A.array.ndim == 2)):
        return matrix_norm(A, ord, (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    if ord is not None and isinstance(ord, str):
        raise RuntimeError(f"linalg.norm: order {ord} is of matrices")
    return vector_norm(A, 2 if ord is None else ord, dim, keepdim, dtype=dtype)


def vecdot(x: Tensor, y: Tensor, *, dim: int = -1) -> Tensor:
    """The inner products of vectors along `dim`."""
    return vdot(x, y) if x.array.ndim == y.array.ndim == 1 else sum(mul(x, y), dim)


def linalg_cross(x: Tensor, other: Tensor, *, dim: int = -1) -> Tensor:
    """The cross product of vectors of three elements along `dim`."""
    if x.array.ndim == other.array.ndim:
        at = checked_dim(dim, x.array.ndim)
        sizes = x.array.shape[at], other.array.shape[at]
        if sizes != (3, 3):
            raise RuntimeError(
                f"linalg.cross: inputs dimension {dim} must have length 3. Got {sizes[0]} and {sizes[1]}"
            )
    return cross(x, other, dim)


def linalg_diagonal(A: Tensor, *, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """The diagonals of matrices, as the last dimension."""
    return diagonal(A, offset, dim1, dim2)


def tensorinv(A: Tensor, ind: int = 2) -> Tensor:
    """The inverse of A as a map from its last dimensions to its first `ind`."""
    shape = A.array.shape
    size = int(np.prod(shape[:ind]))
    return reshape(inv(reshape(A, size, -1)), *shape[ind:], *shape[:ind])


def matrix_rank(A: Tensor, tol: Any = None, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Tensor:
    """The number of singular values above max(atol, rtol · the greatest one), as int64."""
    if tol is not None:
        atol, rtol = tol, 0.0
    values = singular_values(A.array, hermitian)
    kept = values > least_value(A.array, values, _number(atol), _number(rtol))
    rank = new_tensor(np.asarray(np.sum(kept, axis=-1), np.int64))
    return without_node("linalg_matrix_rank", (A,), rank)


def vander(x: Tensor, *, N: Any = None) -> Tensor:
    """The powers of x from 0 to N − 1, as a new last dimension."""
    x = x if x.array.ndim else unsqueeze(x, 0)
    n = x.array.shape[-1] if N is None else N
    ones = new_tensor(np.ones((*x.array.shape, 1), x.array.dtype))
    powers = cumprod(expand(unsqueeze(x, -1), *x.array.shape, n - 1), -1)
    return cat([ones, powers], -1)


def norm(x: Tensor, p: Any = "fro", dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The p-norm of all elements or along `dim`. p is a number, "fro" (2), or "nuc" (of a matrix)."""
    if p == "nuc":
        return matrix_norm(x, "nuc", (-2, -1) if dim is None else dim, keepdim, dtype=dtype)
    return vector_norm(x, 2 if p in (None, "fro") else p, dim, keepdim, dtype=dtype)
