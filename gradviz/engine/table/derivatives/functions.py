"""Exponentials, trigonometry, activations."""

from __future__ import annotations

import numpy as np

from gradviz.engine.basics.scipy_later import special
from gradviz.engine.core.derivative import by, d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import elementwise

# fmt: off

elementwise("exp", np.exp,
    x=d("exp(x)", lambda g, out: g * out))
elementwise("log", np.log,
    x=d("1 / x", lambda g, x: g / x))
elementwise("log1p", np.log1p, node_name="Log1PBackward0",
    x=d("1 / (1 + x)", lambda g, x: g / (x + 1)))
elementwise("expm1", np.expm1,
    x=d("exp(x)", lambda g, out: g * (out + 1)))
elementwise("log2", np.log2,
    x=d("1 / (x ln 2)", lambda g, x: g / (x * 0.6931471805599453)))
elementwise("log10", np.log10,
    x=d("1 / (x ln 10)", lambda g, x: g / (x * 2.302585092994046)))
elementwise("exp2", np.exp2,
    x=d("2^x · ln 2", lambda g, out: g * out * 0.6931471805599453))
elementwise("logaddexp", np.logaddexp,
    x=d("1 / (1 + exp(y − x))", lambda g, x, y: g / (1 + np.exp(y - x))),
    y=d("1 / (1 + exp(x − y))", lambda g, x, y: g / (1 + np.exp(x - y))))
elementwise("logaddexp2", np.logaddexp2,
    x=d("1 / (1 + 2^(y − x))", lambda g, x, y: g / (1 + np.exp2(y - x))),
    y=d("1 / (1 + 2^(x − y))", lambda g, x, y: g / (1 + np.exp2(x - y))))
elementwise("xlogy", special.xlogy,
    x=d("ln y", lambda g, x, y: g * k.log_or_zero(y, k.meets_no_log(g, x, y))),
    y=d("x / y", lambda g, x, y: g * (x / y)))
elementwise("xlog1py", special.xlog1py, name="special_xlog1py", node_name="SpecialXlog1PyBackward0",
    x=d("ln(1 + y)", lambda g, x, y: g * k.log_or_zero(1 + y, k.meets_no_log(g, x, 1 + y))),
    y=d("x / (1 + y)", lambda g, x, y: g * (x / (1 + y))))
elementwise("sqrt", np.sqrt,
    x=d("1 / (2√x)", lambda g, out: g / (2 * out)))
elementwise("rsqrt", k.rsqrt,
    x=d("−x^(−3/2) / 2", lambda g, out: -0.5 * g * out ** 3))
elementwise("sin", np.sin,
    x=d("cos(x)", lambda g, x: g * np.cos(x)))
elementwise("cos", np.cos,
    x=d("−sin(x)", lambda g, x: g * -np.sin(x)))
elementwise("tan", np.tan,
    x=d("1 + tan²(x)", lambda g, out: g * (1 + out ** 2)))
elementwise("arctan", np.arctan, name="atan",
    x=d("1 / (1 + x²)", lambda g, x: g / (x * x + 1)))
elementwise("arcsin", np.arcsin, name="asin",
    x=d("1 / √(1 − x²)", lambda g, x: g / np.sqrt(1 - x * x)))
elementwise("arccos", np.arccos, name="acos",
    x=d("−1 / √(1 − x²)", lambda g, x: -g / np.sqrt(1 - x * x)))
elementwise("arctan2", np.arctan2, name="atan2",
    x=d("y / (x² + y²)", lambda g, x, y: g * k.ratio_or_zero(y, x * x + y * y)),
    y=d("−x / (x² + y²)", lambda g, x, y: g * k.ratio_or_zero(-x, x * x + y * y)))
elementwise("arcsinh", np.arcsinh, name="asinh",
    x=d("1 / √(x² + 1)", lambda g, x: g * (x * x + 1) ** -0.5))
elementwise("arccosh", np.arccosh, name="acosh",
    x=d("1 / √(x² − 1)", lambda g, x: g * (x * x - 1) ** -0.5))
elementwise("arctanh", np.arctanh, name="atanh",
    x=d("1 / (1 − x²)", lambda g, x: g / (1 - x * x)))
elementwise("sinc", k.sinc,
    x=d("(cos(πx) − sinc(x)) / x", lambda g, x: g * k.sinc_slope(x)))
elementwise("sinh", np.sinh,
    x=d("cosh(x)", lambda g, x: g * np.cosh(x)))
elementwise("cosh", np.cosh,
    x=d("sinh(x)", lambda g, x: g * np.sinh(x)))
elementwise("tanh", np.tanh,
    x=d("1 − tanh²(x)", lambda g, out: g * (1 - out * out)))
elementwise("sigmoid", k.sigmoid,
    x=d("σ(x)(1 − σ(x))", lambda g, out: g * (1 - out) * out))
elementwise("relu", k.relu,
    x=d("x > 0", lambda g, out: k.let_through(g, out != 0)))
elementwise("softplus", k.softplus, kernel="softplus_cpu", args="beta threshold",
    x=d("1 where beta · x > threshold, else σ(beta · x)", lambda g, x, beta, threshold:
        g * k.softplus_slope(x, beta, threshold)))
elementwise("logit", k.logit, args="eps",
    x=by("eps", {None: d("1 / (x (1 − x))", lambda g, x: g * k.logit_slope(x, None))},
        d("1 / (x (1 − x)) where eps ≤ x ≤ 1 − eps", lambda g, x, eps: g * k.logit_slope(x, eps))))

# Special functions

elementwise("erf", special.erf,
    x=d("2/√π · exp(−x²)", lambda g, x: g * (1.1283791670955126 * np.exp(-x * x))))
elementwise("erfc", special.erfc,
    x=d("−2/√π · exp(−x²)", lambda g, x: g * (-1.1283791670955126 * np.exp(-x * x))))
elementwise("erfinv", special.erfinv,
    x=d("√π/2 · exp(erfinv²(x))", lambda g, out: g * (0.8862269254527580 * np.exp(out * out))))
elementwise("lgamma", k.lgamma,
    x=d("digamma(x)", lambda g, x: g * special.psi(x)))
elementwise("digamma", special.psi,
    x=d("polygamma(1, x)", lambda g, x: g * k.polygamma(x, 1)))
elementwise("mvlgamma", k.mvlgamma, args="p",
    x=d("Σ digamma(x − i/2), i < p", lambda g, x, p: g * k.mvlgamma_slope(x, p)))
elementwise("polygamma", k.polygamma, args="order",
    x=d("polygamma(order + 1, x)", lambda g, x, order: g * k.polygamma(x, order + 1)))
elementwise("i0", special.i0,
    x=d("I₁(x)", lambda g, x: g * special.i1(x)))
elementwise("i0e", special.i0e, name="special_i0e", node_name="SpecialI0EBackward0",
    x=d("I₁ₑ(x) − sign(x) I₀ₑ(x)", lambda g, x, out: g * (special.i1e(x) - np.sign(x) * out)))
elementwise("i1", special.i1, name="special_i1",
    x=d("I₀(x) − I₁(x) / x", lambda g, x, out: g * k.i1_slope(x, out)))
elementwise("i1e", special.i1e, name="special_i1e", node_name="SpecialI1EBackward0",
    x=d("I₀ₑ(x) − I₁ₑ(x) (sign(x) + 1/x)", lambda g, x, out: g * k.i1e_slope(x, out)))
elementwise("entr", special.entr, name="special_entr",
    x=d("−1 − ln x", lambda g, x: g * (-(np.log(x)) - 1)))
elementwise("ndtri", special.ndtri, name="special_ndtri",
    x=d("√(2π) · exp(ndtri²(x) / 2)", lambda g, out: g * (2.5066282746310002 * np.exp(out * out / 2))))
elementwise("log_ndtr", special.log_ndtr, name="special_log_ndtr",
    x=d("√(2/π) / erfcx(−x/√2)", lambda g, x: g * (0.7978845608028654 / special.erfcx(x * -0.7071067811865476))))
elementwise("erfcx", special.erfcx, name="special_erfcx",
    x=d("2x erfcx(x) − 2/√π", lambda g, x, out: g * (2 * x * out - 1.1283791670955126)))

# fmt: on
