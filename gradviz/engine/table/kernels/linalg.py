"""Linear algebra: products, inverses, determinants, factorizations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from gradviz.engine.basics.scipy_later import lapack
from gradviz.engine.basics.shape_errors import LinAlgError
from gradviz.engine.table.kernels.indexing import in_order
from gradviz.engine.table.kernels.row import row
from gradviz.engine.table.kernels.shape import tril, triu


def transposed(x: Any) -> Any:
    """The last two dimensions swapped."""
    return x.swapaxes(-1, -2)


def outer(x: Any, y: Any) -> Any:
    """x yᵀ of two vectors."""
    return np.expand_dims(x, 1) * np.expand_dims(y, 0)


def addmm(bias: Any, x: Any, y: Any) -> Any:
    """bias + x y."""
    product = np.matmul(x, y)
    product += bias
    return product


def addmv(bias: Any, x: Any, y: Any) -> Any:
    """bias + x y, of a matrix and a vector."""
    return bias + np.matmul(x, y)


def scaled(kernel: Callable) -> Callable:
    """A kernel for beta · bias + alpha · product, from one for bias + product.

    A bias times 0 is 0, even where the bias is NaN."""

    def call(bias: Any, x: Any, y: Any, beta: Any, alpha: Any) -> Any:
        return kernel(bias * beta if beta else np.zeros_like(bias), x * alpha, y)

    return call


def baddbmm(bias: Any, x: Any, y: Any) -> Any:
    """bias + x y, for each of a batch."""
    return bias + np.matmul(x, y)


def addbmm(bias: Any, x: Any, y: Any) -> Any:
    """bias + the sum of a batch of products."""
    return bias + np.sum(np.matmul(x, y), axis=0)


def addr(bias: Any, x: Any, y: Any) -> Any:
    """bias + x yᵀ."""
    return bias + np.outer(x, y)


def trace(x: Any) -> Any:
    """The sum of a matrix's diagonal."""
    return np.trace(x)


def on_diagonal(g: Any, shape: tuple[int, ...]) -> Any:
    """g times the identity, cut to `shape`."""
    return g * np.eye(*shape, dtype=getattr(g, "array", g).dtype)


@row("linalg_cross", inputs=2)
def cross(x: Any, y: Any, dim: int) -> Any:
    """The cross product of vectors of three along `dim`."""
    x, y = np.broadcast_arrays(x, y)
    return in_order(np.cross(x, y, axis=dim))


@row("inv")
def inv(x: Any) -> Any:
    """The inverse."""
    return np.linalg.inv(x)


_NO_ANSWER = {
    "inv": (
        lapack.dgetrf,
        "linalg.inv: {which}The diagonal element {at} is zero, the inversion could not be completed because the "
        "input matrix is singular.",
    ),
    "cholesky": (
        lapack.dpotrf,
        "linalg.cholesky: {which}The factorization could not be completed because the input is not "
        "positive-definite (the leading minor of order {at} is not positive-definite).",
    ),
    "solve": (lapack.dgetrf, "torch.linalg.solve: {which}The solver failed because the input matrix is singular."),
}


def no_answer(name: str, x: np.ndarray, error: Exception) -> LinAlgError:
    """The error of LAPACK for a matrix: which matrix of the batch failed, and where."""
    if name in _NO_ANSWER and x.dtype.kind == "f":
        factorize, said = _NO_ANSWER[name]
        with suppress(ModuleNotFoundError):  # without SciPy NumPy's error has to do
            for i, at in _failing(factorize, x, **({"lower": 1} if name == "cholesky" else {})):
                return LinAlgError(said.format(which=f"(Batch element {i}): " if x.ndim > 2 else "", at=at))
    return LinAlgError(f"linalg.{name}: {error}")


def _failing(factorize: Any, x: np.ndarray, **options: int) -> Iterator[tuple[int, int]]:
    """The matrices of x that LAPACK cannot factorize, each with the row where it stops."""
    for i, matrix in enumerate(x.reshape(-1, *x.shape[-2:])):
        *_, info = factorize(matrix, **options)
        if info > 0:
            yield i, info


@row("det")
def det(x: Any) -> Any:
    """The determinant."""
    return np.linalg.det(x)


def on_matrices(g: Any) -> Any:
    """A number for each matrix, with two more dimensions so that it multiplies matrices."""
    return np.expand_dims(g, (-2, -1))


def slogdet(x: Any) -> tuple:
    """The determinant's sign and the logarithm of its magnitude."""
    return tuple(np.linalg.slogdet(x))


@row("solve", inputs=2)
def solve(a: Any, b: Any) -> Any:
    """x such that a x = b, for matrices b."""
    return np.linalg.solve(a, b)


@row("solve_vector", inputs=2)
def solve_vector(a: Any, b: Any) -> Any:
    """x such that a x = b, for vectors b."""
    return np.linalg.solve(a, b[..., None])[..., 0]


def triangle(x: Any, upper: bool, unit: bool) -> Any:
    """One triangle of x. With `unit` the diagonal is 0."""
    return triu(x, int(unit)) if upper else tril(x, -int(unit))


@row("solve_triangular", inputs=2)
def solve_triangular(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    """x such that a x = b, where only one triangle of a counts. With `unit` the diagonal of a is 1."""
    half = triangle(a, upper, unit)
    return np.linalg.solve(half + np.eye(a.shape[-1], dtype=a.dtype) if unit else half, b)


@row("solve_triangular_right", inputs=2)
def solve_triangular_right(a: Any, b: Any, upper: bool, unit: bool) -> Any:
    """x such that x a = b, where only one triangle of a counts."""
    return transposed(solve_triangular(transposed(a), transposed(b), not upper, unit))


def cholesky_upper(x: Any) -> Any:
    """The upper triangular U such that Uᵀ U = x."""
    return transposed(np.linalg.cholesky(x))


def cholesky(x: Any) -> Any:
    """The lower triangular L such that L Lᵀ = x."""
    return np.linalg.cholesky(x)


def cholesky_back(g: Any, lower: Any) -> Any:
    """L⁻ᵀ Φ(Lᵀ g) L⁻¹, made symmetric. Φ is the lower triangle with half the diagonal."""
    product = np.matmul(transposed(lower), tril(g, 0))
    half = tril(product, 0) - 0.5 * product * np.eye(lower.shape[-1])
    inverse = inv(lower)
    middle = np.matmul(np.matmul(transposed(inverse), half), inverse)
    return 0.5 * (middle + transposed(middle))


def cholesky_forward(tangent: Any, lower: Any) -> Any:
    """L Φ(L⁻¹ t L⁻ᵀ)."""
    inverse = inv(lower)
    middle = np.matmul(np.matmul(inverse, tangent), transposed(inverse))
    return np.matmul(lower, tril(middle, 0) - 0.5 * middle * np.eye(lower.shape[-1]))


def pinv(x: Any, atol: Any, rtol: Any, hermitian: bool) -> Any:
    """The Moore-Penrose inverse. Singular values up to `least_value` count as 0."""
    if not x.size:
        return np.empty((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    if hermitian:
        values, vectors = np.linalg.eigh(x)
        left, right, sizes = vectors, transposed(vectors), np.abs(values)
    else:
        left, values, right = np.linalg.svd(x, full_matrices=False)
        sizes = values
    kept = sizes > least_value(x, sizes, atol, rtol)
    inverse = np.where(kept, 1 / np.where(kept, values, 1), 0)
    return np.matmul(transposed(right) * np.expand_dims(inverse, -2), transposed(left))


def singular_values(x: Any, hermitian: bool) -> Any:
    """The singular values of x. Those of a symmetric matrix are the magnitudes of its eigenvalues."""
    return np.abs(np.linalg.eigvalsh(x)) if hermitian else np.linalg.svd(x, compute_uv=False)


def least_value(x: Any, values: Any, atol: Any, rtol: Any) -> Any:
    """The greatest singular value that counts as 0: max(atol, rtol · the greatest singular value).

    If neither is given, rtol is max(n, m) · eps."""
    if atol is None:
        atol, rtol = 0.0, max(x.shape[-2:]) * np.finfo(x.dtype).eps if rtol is None else rtol
    elif rtol is None:
        rtol = np.where(np.asarray(atol) > 0, 0.0, max(x.shape[-2:]) * np.finfo(x.dtype).eps)
    greatest = np.max(values, axis=-1, initial=0)
    return np.expand_dims(np.maximum(atol, rtol * greatest), -1)


def pinv_back(g: Any, x: Any, out: Any) -> Any:
    """−Pᵀ g Pᵀ + Pᵀ P gᵀ (I − P x) + (I − x P) gᵀ P Pᵀ, with P the inverse (Golub and Pereyra)."""
    pt = transposed(out)
    through = np.matmul(np.matmul(pt, g), pt)
    left = np.matmul(np.matmul(pt, out), _outside_rows(transposed(g), out, x))
    right = np.matmul(_outside_columns(transposed(g), out, x), np.matmul(out, pt))
    return left + right - through


def _outside_rows(h: Any, p: Any, x: Any) -> Any:
    return h - np.matmul(np.matmul(h, p), x)


def _outside_columns(h: Any, p: Any, x: Any) -> Any:
    return h - np.matmul(x, np.matmul(p, h))


def eigh(x: Any, lower: bool) -> tuple:
    """The eigenvalues of a symmetric matrix, and its eigenvectors as columns."""
    return tuple(np.linalg.eigh(x, "L" if lower else "U"))


def eigh_back(g_values: Any, g_vectors: Any, values: Any, vectors: Any) -> Any:
    """V (diag(g_λ) + skew(Vᵀ g_V) / (λⱼ − λᵢ)) Vᵀ."""
    n = values.shape[-1]
    identity = np.eye(n)
    middle: Any = 0
    if g_vectors is not None:
        gaps = np.expand_dims(values, -2) - np.expand_dims(values, -1) + identity
        turned = np.matmul(transposed(vectors), g_vectors)
        middle = 0.5 * (turned - transposed(turned)) / gaps * (1 - identity)
    if g_values is not None:
        middle = middle + np.expand_dims(g_values, -1) * identity
    return np.matmul(np.matmul(vectors, middle), transposed(vectors))


def eigh_forward(tangent: Any, values: Any, vectors: Any) -> tuple:
    """With P = Vᵀ t V: its diagonal, and V (P / (λⱼ − λᵢ))."""
    identity = np.eye(values.shape[-1])
    turned = np.matmul(np.matmul(transposed(vectors), tangent), vectors)
    gaps = np.expand_dims(values, -2) - np.expand_dims(values, -1) + identity
    return np.sum(turned * identity, axis=-1), np.matmul(vectors, turned / gaps * (1 - identity))


def svd(x: Any, full_matrices: bool) -> tuple:
    """U, S and Vᵀ such that x = U diag(S) Vᵀ; U and V square, or no more columns than the smaller side."""
    return tuple(np.linalg.svd(x, full_matrices=full_matrices))


def svd_back(gs: Any, u: Any, s: Any, vh: Any) -> Any:
    """U (diag(g_S) + skew(Uᵀ g_U) / E S + S skew(Vᵀ g_V) / E) Vᵀ, and what leaves the spans of U and V."""
    gu, g_s, gvh = gs
    n = s.shape[-1]
    u, vh = u[..., :n], vh[..., :n, :]
    gu, gvh = None if gu is None else gu[..., :n], None if gvh is None else gvh[..., :n, :]
    identity = np.eye(n)
    column, line = np.expand_dims(s, -1), np.expand_dims(s, -2)
    gaps = line * line - column * column + identity
    middle: Any = 0 if g_s is None else np.expand_dims(g_s, -1) * identity
    if gu is not None:
        turned = np.matmul(transposed(u), gu)
        middle = middle + (turned - transposed(turned)) / gaps * (1 - identity) * line
    if gvh is not None:
        turned = np.matmul(vh, transposed(gvh))
        middle = middle + column * ((turned - transposed(turned)) / gaps * (1 - identity))
    total = np.matmul(np.matmul(u, middle), vh)
    if gu is not None and u.shape[-2] > n:
        beside = gu - np.matmul(u, np.matmul(transposed(u), gu))
        total = total + np.matmul(beside / line, vh)
    if gvh is not None and vh.shape[-1] > n:
        beside = gvh - np.matmul(np.matmul(gvh, transposed(vh)), vh)
        total = total + np.matmul(u, beside / column)
    return total


def qr(x: Any) -> tuple:
    """Q with orthonormal columns and R, upper triangular, such that x = Q R."""
    return tuple(np.linalg.qr(x, "reduced"))


def qr_back(gs: Any, q: Any, r: Any) -> Any:
    """(g_Q + Q sym(R g_Rᵀ − g_Qᵀ Q)) R⁻ᵀ, sym copying the lower triangle to the upper."""
    gq, gr = gs
    n = r.shape[-2]
    if r.shape[-1] > n:
        return _wide_qr_back(gq, gr, q, r)
    middle: Any = 0
    if gr is not None:
        middle = np.matmul(r, transposed(triu(gr, 0)))
    if gq is not None:
        middle = middle - np.matmul(transposed(gq), q)
    sym = tril(middle, 0) + transposed(tril(middle, -1))
    total = np.matmul(q, sym) if gq is None else gq + np.matmul(q, sym)
    return np.matmul(total, transposed(inv(r)))


def _wide_qr_back(gq: Any, gr: Any, q: Any, r: Any) -> Any:
    """Of x = (X Y) with a square X: Q R' = X as before, and Qᵀ Y is the rest of R."""
    n = r.shape[-2]
    square, rest = r[..., :n], r[..., n:]
    if gr is None:
        first = qr_back((gq, None), q, square)
        return np.concatenate((first, np.matmul(q, rest) * 0), axis=-1)
    g_rest = gr[..., n:]
    through = np.matmul(np.matmul(q, rest), transposed(g_rest))
    first = qr_back((through if gq is None else gq + through, gr[..., :n]), q, square)
    return np.concatenate((first, np.matmul(q, g_rest)), axis=-1)
