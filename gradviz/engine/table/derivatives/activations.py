"""Activations; the most common ones are in `functions.py`."""

from __future__ import annotations

import numpy as np

from gradviz.engine.core.derivative import d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import elementwise, general

# fmt: off

elementwise("leaky_relu", k.leaky_relu, kernel="leaky_relu_cpu", args="negative_slope",
    x=d("1 where x > 0, else negative_slope", lambda g, x, negative_slope: g * k.step(x > 0, 1, negative_slope, x)))
elementwise("elu", k.elu, kernel="elu_cpu", args="alpha scale input_scale",
    x=d("scale where x > 0, else alpha · scale · input_scale · exp(input_scale · x)",
        lambda g, x, alpha, scale, input_scale: g * k.elu_slope(x, alpha, scale, input_scale)))
elementwise("celu", k.celu, kernel="elu_cpu", args="alpha",
    x=d("1 where x > 0, else exp(x / alpha)", lambda g, x, alpha: g * k.elu_slope(x, alpha, 1.0, 1 / alpha)))
elementwise("normal_cdf", k.normal_cdf,
    x=d("φ(x)", lambda g, x: g * k.normal_density(x)))
elementwise("gelu", k.gelu, kernel="GeluKernelImpl",
    x=d("Φ(x) + x φ(x)", lambda g, x: g * (k.normal_cdf(x) + x * k.normal_density(x))))
elementwise("gelu_tanh", k.gelu_tanh, kernel="GeluKernelImpl", name="gelu", node_name="GeluBackward0",
    x=d("(1 + t)/2 + x (1 − t²) √(2/π) (1 + 0.134145 x²)/2 with t = tanh(√(2/π) (x + 0.044715 x³))",
        lambda g, x: g * k.gelu_tanh_slope(x)))
elementwise("silu", k.silu, kernel="silu_cpu",
    x=d("σ(x)(1 + x(1 − σ(x)))", lambda g, x: g * k.silu_slope(x)))
elementwise("mish", k.mish, kernel="mish_cpu",
    x=d("tanh(s) + x σ(x)(1 − tanh²(s)) with s = softplus(x)", lambda g, x: g * k.mish_slope(x)))
elementwise("hardtanh", k.hardtanh, args="min_val max_val",
    x=d("min_val < x < max_val", lambda g, x, min_val, max_val:
        k.let_through(g, (x > min_val) & (x < max_val))))
elementwise("softshrink", k.softshrink, kernel="softshrink_check", args="lambd",
    x=d("|x| > lambd", lambda g, x, lambd: k.let_through(g, (x > lambd) | (x < -lambd))))
elementwise("hardshrink", k.hardshrink, kernel="hardshrink_cpu", args="lambd",
    x=d("|x| > lambd", lambda g, x, lambd: k.let_through(g, (x > lambd) | (x < -lambd))))
elementwise("log_sigmoid", k.log_sigmoid, kernel="log_sigmoid_cpu", node_name="LogSigmoidBackward0",
    x=d("1 − σ(x)", lambda g, x: g * k.sigmoid(-x)))
elementwise("hardsigmoid", k.hardsigmoid, kernel="hardsigmoid_cpu",
    x=d("1/6 where −3 < x < 3", lambda g, x: np.where((x > -3) & (x < 3), g * (1 / 6), 0)))
elementwise("hardswish", k.hardswish, kernel="hardswish_cpu",
    x=d("0 where x ≤ −3, x/3 + 1/2 where x < 3, else 1", lambda g, x: k.hardswish_back(g, x)))
elementwise("threshold", k.threshold, args="threshold value",
    x=d("x > threshold", lambda g, x, threshold: k.let_through(g, np.logical_not(x <= threshold))))
elementwise("prelu", k.prelu, node_name="PreluKernelBackward0",
    x=d("1 where x > 0, else y", lambda g, x, y: np.where(x > 0, g, g * y)),
    y=d("x where x ≤ 0", lambda g, x: g * np.minimum(x, 0)))
general("glu", k.glu, args="dim",
    x=d("σ(b) for the first half a, a σ(b)(1 − σ(b)) for the second half b", lambda g, x, dim: k.glu_back(g, x, dim)))

# fmt: on
