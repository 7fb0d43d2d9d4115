"""Products of vectors and matrices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradviz.engine.core.derivative import Derivative, d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import general, linear

# fmt: off

for key in ("dot", "vdot"):
    general(key, np.dot,
        x=d("y", lambda g, y: g * y),
        y=d("x", lambda g, x: g * x))
general("mv", np.matmul,
    x=d("g yᵀ", lambda g, y: k.outer(g, y)),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))
general("mm", np.matmul,
    x=d("g yᵀ", lambda g, y: np.matmul(g, k.transposed(y))),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))
general("bmm", np.matmul,
    x=d("g yᵀ", lambda g, y: np.matmul(g, k.transposed(y))),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))


def _added(name: str, forward: Callable, x: Derivative, y: Derivative) -> None:
    """The rows of bias + a product of x and y: as itself, and with `beta` and `alpha` before the terms."""
    general(name, forward, inputs="bias x y", x=x, y=y,
        bias=d("1, summed", lambda g, bias_shape: k.sum_to(g, bias_shape)))
    general(f"{name}_scaled", k.scaled(forward), name=name, inputs="bias x y", args="beta alpha",
        bias=d("beta, summed", lambda g, bias_shape, beta: k.sum_to(g * beta, bias_shape)),
        x=d(f"alpha · {x.text}", lambda g, y, alpha: x.rule(g * alpha, y)),
        y=d(f"alpha · {y.text}", lambda g, x, alpha: y.rule(g * alpha, x)))


for key, forward in ("addmm", k.addmm), ("addbmm", k.addbmm), ("baddbmm", k.baddbmm):
    _added(key, forward,
        x=d("g yᵀ", lambda g, y: np.matmul(g, k.transposed(y))),
        y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))
_added("addmv", k.addmv,
    x=d("g yᵀ", lambda g, y: k.outer(g, y)),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))
_added("addr", k.addr,
    x=d("g y", lambda g, y: np.matmul(g, y)),
    y=d("gᵀ x", lambda g, x: np.matmul(k.transposed(g), x)))

linear("trace", k.trace,
    x=d("I", lambda g, x_shape: k.on_diagonal(g, x_shape)))
general("linalg_cross", k.cross, args="dim",
    x=d("y × g", lambda g, y, x_shape, dim: k.sum_to(k.cross(y, g, dim), x_shape)),
    y=d("g × x", lambda g, x, y_shape, dim: k.sum_to(k.cross(g, x, dim), y_shape)))

# Inverses, determinants, factorisations

general("inv", k.inv, name="linalg_inv", node_name="LinalgInvExBackward0",
    x=d("−x⁻ᵀ g x⁻ᵀ", lambda g, out: -np.matmul(np.matmul(k.transposed(out), g), k.transposed(out))))
general("det", k.det, name="linalg_det",
    x=d("det(x) x⁻ᵀ", lambda g, x, out: k.on_matrices(g * out) * k.transposed(k.inv(x))))
general("slogdet", k.slogdet, name="linalg_slogdet", outputs=2,
    x=d("0 for the sign, x⁻ᵀ for the logarithm", lambda g, x:
        x * 0 if g[1] is None else k.on_matrices(g[1]) * k.transposed(k.inv(x))))
general("solve", k.solve, name="linalg_solve", node_name="LinalgSolveExBackward0",
    x=d("−x⁻ᵀ g outᵀ", lambda g, x, out, x_shape: k.sum_to(
        -np.matmul(k.solve(k.transposed(x), g), k.transposed(out)), x_shape)),
    y=d("x⁻ᵀ g", lambda g, x, y_shape: k.sum_to(k.solve(k.transposed(x), g), y_shape)))
general("solve_vector", k.solve_vector, name="linalg_solve", node_name="LinalgSolveExBackward0",
    x=d("−x⁻ᵀ g outᵀ", lambda g, x, out, x_shape: k.sum_to(
        -np.expand_dims(k.solve_vector(k.transposed(x), g), -1) * np.expand_dims(out, -2), x_shape)),
    y=d("x⁻ᵀ g", lambda g, x, y_shape: k.sum_to(k.solve_vector(k.transposed(x), g), y_shape)))
general("solve_triangular", k.solve_triangular, name="linalg_solve_triangular", args="upper unit",
    x=d("−x⁻ᵀ g outᵀ, of the triangle", lambda g, x, out, x_shape, upper, unit: k.sum_to(k.triangle(
        -np.matmul(k.solve_triangular(k.transposed(x), g, not upper, unit), k.transposed(out)), upper, unit), x_shape)),
    y=d("x⁻ᵀ g", lambda g, x, y_shape, upper, unit:
        k.sum_to(k.solve_triangular(k.transposed(x), g, not upper, unit), y_shape)))
general("solve_triangular_right", k.solve_triangular_right, name="linalg_solve_triangular", args="upper unit",
    node_name="LinalgSolveTriangularBackward0",
    x=d("−outᵀ g x⁻ᵀ, of the triangle", lambda g, x, out, x_shape, upper, unit: k.sum_to(k.triangle(
        -np.matmul(k.transposed(out), k.solve_triangular_right(k.transposed(x), g, not upper, unit)), upper, unit),
        x_shape)),
    y=d("g x⁻ᵀ", lambda g, x, y_shape, upper, unit:
        k.sum_to(k.solve_triangular_right(k.transposed(x), g, not upper, unit), y_shape)))
general("cholesky", k.cholesky, name="linalg_cholesky", node_name="LinalgCholeskyExBackward0",
    x=d("L⁻ᵀ Φ(Lᵀ g) L⁻¹", lambda g, out: k.cholesky_back(g, out)),
    jvp=lambda tangents, inputs, outputs, args: k.cholesky_forward(tangents[0], outputs[0]))
general("cholesky_upper", k.cholesky_upper, name="linalg_cholesky", node_name="LinalgCholeskyExBackward0",
    x=d("L⁻ᵀ Φ(Lᵀ gᵀ) L⁻¹, L = outᵀ", lambda g, out: k.cholesky_back(k.transposed(g), k.transposed(out))),
    jvp=lambda tangents, inputs, outputs, args:
        k.transposed(k.cholesky_forward(tangents[0], k.transposed(outputs[0]))))
general("pinv", k.pinv, name="linalg_pinv", args="atol rtol hermitian",
    x=d("−Pᵀ g Pᵀ + …", lambda g, x, out: k.pinv_back(g, x, out)))
general("eigh", k.eigh, name="linalg_eigh", args="lower", outputs=2,
    x=d("V (diag(g) + skew(Vᵀ g) / (λⱼ − λᵢ)) Vᵀ", lambda g, out: k.eigh_back(g[0], g[1], out[0], out[1])),
    jvp=lambda tangents, inputs, outputs, args: k.eigh_forward(tangents[0], outputs[0], outputs[1]))
general("svd", k.svd, name="linalg_svd", args="full_matrices", outputs=3,
    x=d("U diag(g) Vᵀ + …", lambda g, out: k.svd_back(g, out[0], out[1], out[2])))
general("qr", k.qr, name="linalg_qr", outputs=2,
    x=d("(g + Q sym(M)) R⁻ᵀ", lambda g, out: k.qr_back(g, out[0], out[1])))

# fmt: on
