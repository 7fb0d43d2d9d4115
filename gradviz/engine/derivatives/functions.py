"""Exponentials, trigonometry, activations."""

from __future__ import annotations

import numpy as np

from gradviz.engine import kernels as k
from gradviz.engine.derivatives.rows import elementwise
from gradviz.engine.op import d

# fmt: off

elementwise("exp", np.exp,
    x=d("exp(x)", lambda g, out: g * out))
elementwise("log", np.log,
    x=d("1 / x", lambda g, x: g / x))
elementwise("log1p", np.log1p,
    x=d("1 / (1 + x)", lambda g, x: g / (x + 1)))
elementwise("expm1", np.expm1,
    x=d("exp(x)", lambda g, out: g * (out + 1)))
elementwise("log2", np.log2,
    x=d("1 / (x ln 2)", lambda g, x: g / (x * 0.6931471805599453)))
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
    x=d("1 / √(1 − x²)", lambda g, x: g * (1 - x * x) ** -0.5))
elementwise("arccos", np.arccos, name="acos",
    x=d("−1 / √(1 − x²)", lambda g, x: g * -((1 - x * x) ** -0.5)))
elementwise("sinh", np.sinh,
    x=d("cosh(x)", lambda g, x: g * np.cosh(x)))
elementwise("cosh", np.cosh,
    x=d("sinh(x)", lambda g, x: g * np.sinh(x)))
elementwise("tanh", np.tanh,
    x=d("1 − tanh²(x)", lambda g, out: g * (1 - out * out)))
elementwise("sigmoid", k.sigmoid,
    x=d("σ(x)(1 − σ(x))", lambda g, out: g * (1 - out) * out))
elementwise("relu", k.relu,
    x=d("x > 0", lambda g, out: g * (out > 0)))
elementwise("softplus", k.softplus, args="beta threshold",
    x=d("σ(βx)", lambda g, x, beta, threshold: g * k.softplus_slope(x, beta, threshold)))

# fmt: on
