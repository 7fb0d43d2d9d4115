"""Activations of layers beyond `functions.py`."""

from __future__ import annotations

import numpy as np

from gradviz.engine.core.op import d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import elementwise, general
from gradviz.engine.table.kernels import activations as ak

# fmt: off

elementwise("leaky_relu", ak.leaky_relu, kernel="leaky_relu_cpu", args="negative_slope",
    x=d("x > 0, else slope", lambda g, x, negative_slope: g * ak.step(x > 0, 1, negative_slope, x)))
elementwise("elu", ak.elu, kernel="elu_cpu", args="alpha scale input_scale",
    x=d("1, for x ≤ 0: α e^x", lambda g, x, alpha, scale, input_scale:
        g * ak.elu_slope(x, alpha, scale, input_scale)))
elementwise("celu", ak.celu, kernel="elu_cpu", args="alpha",
    x=d("1, for x ≤ 0: e^(x/α)", lambda g, x, alpha: g * ak.elu_slope(x, alpha, 1.0, 1 / alpha)))
elementwise("normal_cdf", ak.normal_cdf,
    x=d("φ(x)", lambda g, x: g * ak.normal_density(x)))
elementwise("gelu", ak.gelu, kernel="GeluKernelImpl",
    x=d("Φ(x) + x φ(x)", lambda g, x: g * (ak.normal_cdf(x) + x * ak.normal_density(x))))
elementwise("gelu_tanh", ak.gelu_tanh, kernel="GeluKernelImpl", name="gelu", node_name="GeluBackward0",
    x=d("by tanh(√(2/π)(x + 0.044715 x³))", lambda g, x: g * ak.gelu_tanh_slope(x)))
elementwise("silu", ak.silu, kernel="silu_cpu",
    x=d("σ(x)(1 + x(1 − σ(x)))", lambda g, x: g * ak.silu_slope(x)))
elementwise("mish", ak.mish, kernel="mish_cpu",
    x=d("tanh(s) + x σ(x)(1 − tanh²(s)), s = softplus(x)", lambda g, x: g * ak.mish_slope(x)))
elementwise("hardtanh", ak.hardtanh, args="min_val max_val",
    x=d("min < x < max", lambda g, x, min_val, max_val:
        k.let_through(g, (x > min_val) & (x < max_val))))
elementwise("softshrink", ak.softshrink, kernel="softshrink_check", args="lambd",
    x=d("|x| > λ", lambda g, x, lambd: k.let_through(g, (x > lambd) | (x < -lambd))))
elementwise("hardshrink", ak.hardshrink, kernel="hardshrink_cpu", args="lambd",
    x=d("|x| > λ", lambda g, x, lambd: k.let_through(g, (x > lambd) | (x < -lambd))))
elementwise("log_sigmoid", ak.log_sigmoid, kernel="log_sigmoid_cpu", node_name="LogSigmoidBackward0",
    x=d("1 − σ(x)", lambda g, x: g * ak.sigmoid(-x)))
elementwise("hardsigmoid", ak.hardsigmoid, kernel="hardsigmoid_cpu",
    x=d("1/6 for −3 < x < 3", lambda g, x: np.where((x > -3) & (x < 3), g * (1 / 6), 0)))
elementwise("hardswish", ak.hardswish, kernel="hardswish_cpu",
    x=d("x/3 + 1/2 for −3 < x < 3, then 1", lambda g, x: ak.hardswish_back(g, x)))
elementwise("threshold", ak.threshold, args="threshold value",
    x=d("x > threshold", lambda g, x, threshold: k.let_through(g, np.logical_not(x <= threshold))))
elementwise("prelu", ak.prelu, node_name="PreluKernelBackward0",
    x=d("x > 0, else w", lambda g, x, y: np.where(x > 0, g, g * y)),
    y=d("x, for x ≤ 0", lambda g, x: g * np.minimum(x, 0)))
general("glu", ak.glu, args="dim",
    x=d("σ(b), a σ(b)(1 − σ(b))", lambda g, x, dim: ak.glu_back(g, x, dim)))

# fmt: on
