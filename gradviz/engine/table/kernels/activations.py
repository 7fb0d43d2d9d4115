"""Activations and their derivatives, on arrays and on Tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradviz.engine.basics.scipy_later import special
from gradviz.engine.table.kernels.elementwise import sigmoid
from gradviz.engine.table.kernels.indexing import at
from gradviz.engine.table.kernels.row import raw, row


def step(condition: Any, yes: float, no: float, like: Any) -> Any:
    """An array in the dtype of `like`: `yes` where the condition holds, else `no`."""
    return np.where(raw(condition), yes, no).astype(_numpy_dtype(like))


def _numpy_dtype(x: Any) -> np.dtype:
    return raw(x).dtype


def leaky_relu(x: Any, negative_slope: float) -> Any:
    """x where it is positive, else slope · x."""
    return np.where(x > 0, x, x * negative_slope)


def elu(x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    """x where it is positive, else α (e^x − 1); all times `scale`."""
    return np.where(x <= 0, np.expm1(np.minimum(x, 0) * input_scale) * (alpha * scale), x * scale)


def elu_slope(x: Any, alpha: float, scale: float, input_scale: float) -> Any:
    """The derivative of `elu`."""
    low = np.exp(np.minimum(x, 0) * input_scale) * (alpha * scale * input_scale)
    return np.where(x > 0, scale, low)


def celu(x: Any, alpha: float) -> Any:
    """x where it is positive, else α (e^(x/α) − 1)."""
    return elu(x, alpha, 1.0, 1 / alpha)


@row("normal_cdf")
def normal_cdf(x: Any) -> Any:
    """Φ(x): the probability that a standard normal number is at most x."""
    return special.ndtr(x).astype(x.dtype, copy=False)


def normal_density(x: Any) -> Any:
    """φ(x) = exp(−x²/2) / √(2π)."""
    return np.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))


def gelu(x: Any) -> Any:
    """x Φ(x)."""
    return x * normal_cdf(x)


_INNER, _CUBE = math.sqrt(2 / math.pi), 0.044715


def gelu_tanh(x: Any) -> Any:
    """x Φ(x), with Φ approximated by tanh."""
    return 0.5 * x * (1 + np.tanh(_INNER * (x + _CUBE * x * x * x)))


def gelu_tanh_slope(x: Any) -> Any:
    """The derivative of `gelu_tanh`."""
    bend = np.tanh(_INNER * (x + _CUBE * x * x * x))
    return 0.5 * (1 + bend) + 0.5 * x * (1 - bend * bend) * (_INNER * (1 + 3 * _CUBE * x * x))


def silu(x: Any) -> Any:
    """x σ(x)."""
    return x * sigmoid(x)


def silu_slope(x: Any) -> Any:
    """The derivative of `silu`."""
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


def _soft(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def mish(x: Any) -> Any:
    """x tanh(softplus(x))."""
    return x * np.tanh(_soft(x))


def mish_slope(x: Any) -> Any:
    """The derivative of `mish`."""
    bend = np.tanh(-log_sigmoid(-x))
    return bend + x * sigmoid(x) * (1 - bend * bend)


def hardtanh(x: Any, min_val: float, max_val: float) -> Any:
    """x clamped to [min_val, max_val]."""
    return np.clip(x, min_val, max_val)


def softshrink(x: Any, lambd: float) -> Any:
    """x moved towards 0 by λ; 0 where |x| ≤ λ."""
    return np.where(x > lambd, x - lambd, np.where(x < -lambd, x + lambd, x * 0))


def hardshrink(x: Any, lambd: float) -> Any:
    """x; 0 where |x| ≤ λ."""
    return np.where((x >= -lambd) & (x <= lambd), x * 0, x)


@row("log_sigmoid")
def log_sigmoid(x: Any) -> Any:
    """ln σ(x), without overflow."""
    return np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))


def hardsigmoid(x: Any) -> Any:
    """x/6 + 1/2, clamped to [0, 1]."""
    return np.clip(x + 3, 0, 6) / 6


def hardswish(x: Any) -> Any:
    """x · hardsigmoid(x)."""
    return x * np.clip(x + 3, 0, 6) / 6


def hardswish_back(g: Any, x: Any) -> Any:
    """The gradient of `hardswish`: 0 below −3, x/3 + 1/2 up to 3, then 1."""
    return np.where(x <= -3, 0, np.where(x >= 3, g, g * (x / 3 + 0.5)))


def threshold(x: Any, threshold: float, value: float) -> Any:
    """x where it is above the threshold, else the value."""
    return np.where(x <= threshold, np.asarray(value, x.dtype), x)


def prelu(x: Any, weight: Any) -> Any:
    """x where it is positive, else weight · x."""
    return np.where(x > 0, x, x * weight)


def _halves(x: Any, dim: int) -> tuple[Any, Any]:
    half = x.shape[dim] // 2
    return x[at(dim, slice(0, half))], x[at(dim, slice(half, None))]


def glu(x: Any, dim: int) -> Any:
    """The first half of x along `dim`, times σ of the second half."""
    a, b = _halves(x, dim)
    return a * sigmoid(b)


def glu_back(g: Any, x: Any, dim: int) -> Any:
    """The gradient of `glu`."""
    a, b = _halves(x, dim)
    s = sigmoid(b)
    return np.concatenate([g * s, g * a * s * (1 - s)], axis=dim)
