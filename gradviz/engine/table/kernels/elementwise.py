"""Functions of single elements."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradviz.engine.basics.scipy_later import special
from gradviz.engine.table.kernels.row import raw, row


def reversed_subtract(x: Any, y: Any) -> Any:
    """y − x."""
    return y - x


def add_scaled(x: Any, y: Any, alpha: Any) -> Any:
    """x + alpha · y."""
    return x + alpha * y


def subtract_scaled(x: Any, y: Any, alpha: Any) -> Any:
    """x − alpha · y."""
    return x - alpha * y


def reversed_subtract_scaled(x: Any, y: Any, alpha: Any) -> Any:
    """y − alpha · x."""
    return y - alpha * x


def reciprocal(x: Any) -> Any:
    """1 / x."""
    return 1 / x


def rsqrt(x: Any) -> Any:
    """1 / √x."""
    return 1 / np.sqrt(x)


_LARGE, _LONGEST_ROW = 8192, 1 << 16


def relu(x: Any) -> Any:
    """max(x, 0). NaN stays NaN."""
    if type(x) is np.ndarray and x.ndim and x.flags.c_contiguous and x.size >= _LARGE:
        rows = x.reshape(len(x), -1)  # np.maximum of a number takes four times as long as of a row
        if rows.shape[1] <= _LONGEST_ROW:
            return np.maximum(rows, np.zeros(rows.shape[1], x.dtype)).reshape(x.shape)
    return np.maximum(x, 0)


@row("sigmoid")
def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(−x)), without overflow on either side."""
    if x.dtype.kind == "c":
        raise NotImplementedError("gradviz does not compute sigmoid of complex numbers")
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + e), e / (1 + e))


def softplus(x: Any, beta: float, threshold: float) -> Any:
    """ln(1 + exp(βx)) / β, and x where βx > threshold."""
    return np.where(x * beta > threshold, x, np.log1p(np.exp(np.minimum(x * beta, threshold))) / beta)


def softplus_slope(x: Any, beta: float, threshold: float) -> Any:
    """The derivative of `softplus`."""
    z = np.minimum(x * beta, threshold)
    return np.where(x * beta > threshold, 1, np.exp(z) / (1 + np.exp(z)))


def power(x: Any, exponent: Any) -> Any:
    """x to the power of a number."""
    return x**exponent


def reversed_power(x: Any, base: Any) -> Any:
    """A number to the power of x."""
    return np.power(np.asarray(base, x.dtype), x)


def power_slope(x: Any, exponent: Any) -> Any:
    """n · x^(n−1)."""
    if exponent == 2 and type(x) is np.ndarray:
        return 2 * x  # NumPy computes x ** 1 as any other power
    return exponent * x ** (exponent - 1)


def clamp(x: Any, min: Any, max: Any) -> Any:
    """x clamped to [min, max]. Either bound may be None."""
    x = x if min is None else np.maximum(x, min)
    return x if max is None else np.minimum(x, max)


_INTEGERS = {np.dtype(f"f{size}"): np.dtype(f"i{size}") for size in (2, 4, 8)}


def let_through(g: Any, mask: Any) -> Any:
    """g where `mask`, else 0, even where g is NaN.

    The bits of g are multiplied by 0 or 1, which is faster than np.where."""
    integers = _INTEGERS.get(g.dtype) if type(g) is np.ndarray else None
    return np.where(mask, g, 0) if integers is None else (g.view(integers) * mask).view(g.dtype)


def none_of(g: Any) -> Any:
    """Zeros in the place of a gradient, even where it is NaN."""
    return np.where(False, g, 0)


def to_the_winner(g: Any, loses: Any, ties: Any) -> Any:
    """0 where `loses`, g / 2 where `ties`, else g. It is 0 even where g is NaN."""
    return np.where(loses, 0, np.where(ties, g / 2, g))


def copysign_slope(x: Any, out: Any) -> Any:
    """The derivative of copysign in x: 1 where x keeps its sign, else −1; 0 at 0."""
    return np.where(x == 0, 0, out / np.where(x == 0, 1, x))


def lgamma(x: Any) -> Any:
    """ln |Γ(x)|; ∞ at −∞."""
    return np.where(x == -np.inf, np.inf, special.gammaln(x)).astype(x.dtype, copy=False)


def mvlgamma(x: Any, p: int) -> Any:
    """The logarithm of the multivariate gamma function of p dimensions."""
    constant = p * (p - 1) / 4 * math.log(math.pi)
    return sum(lgamma(x - i / 2) for i in range(p)) + constant


def mvlgamma_slope(x: Any, p: int) -> Any:
    """The derivative of `mvlgamma`."""
    return sum(special.psi(x - i / 2) for i in range(p))


def ldexp(x: Any, y: Any) -> Any:
    """x · 2^y."""
    return x * np.exp2(y)


@row("polygamma")
def polygamma(x: Any, order: int) -> Any:
    """The derivative of digamma of that order. Order 0 is digamma."""
    return special.polygamma(order, x) if order else special.psi(x)


def sinc(x: Any) -> Any:
    """sin(πx) / πx; 1 at 0."""
    return np.sinc(x)


def sinc_slope(x: Any) -> Any:
    """The derivative of `sinc`; 0 at 0."""
    z = np.pi * np.where(x == 0, 1, x)
    return np.where(x == 0, 0, np.pi * (z * np.cos(z) - np.sin(z)) / (z * z))


def i1_slope(x: Any, out: Any) -> Any:
    """The derivative of the Bessel function I₁; ½ at 0."""
    return np.where(x == 0, 0.5, special.i0(x) - out / np.where(x == 0, 1, x))


def i1e_slope(x: Any, out: Any) -> Any:
    """The derivative of e^−|x| I₁(x); ½ at 0."""
    divisor = np.where(x == 0, 1, x)
    return np.where(x == 0, 0.5, special.i0e(x) - out * (np.sign(x) + 1 / divisor))


def frac(x: Any) -> Any:
    """The fractional part of x, with the sign of x."""
    return x - np.trunc(x)


def angle(x: Any) -> Any:
    """π for negative numbers, else 0; of complex numbers their angle."""
    if x.dtype.kind == "c":
        return np.angle(x)
    kind = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    return np.where(np.isnan(x), x, np.where(x < 0, np.asarray(np.pi, kind), np.asarray(0, kind)))


def angle_back(g: Any, x: Any) -> Any:
    """The gradient of `angle`: 0 for real numbers."""
    if raw(x).dtype.kind != "c":
        return g * 0
    squares = np.abs(x) ** 2
    return np.where(raw(x) == 0, 0, g * (1j * x) / np.where(raw(squares) == 0, 1, squares))


def logit(x: Any, eps: float | None) -> Any:
    """ln(x / (1 − x)). With `eps`, x is clamped to [eps, 1 − eps] first."""
    x = x if eps is None else clamp(x, eps, 1 - eps)
    return np.log(x / (1 - x))


def logit_slope(x: Any, eps: float | None) -> Any:
    """The derivative of `logit`. It is 0 where x was clamped. Without `eps` it is NaN outside of [0, 1]."""
    low, outside = (0.0, np.nan) if eps is None else (eps, 0.0)
    return np.where((x < low) | (x > 1 - low), outside, 1 / (x * (1 - x)))


def nan_to_num(x: Any, nan: Any, posinf: Any, neginf: Any) -> Any:
    """x with NaN and the infinities replaced."""
    return np.nan_to_num(x, nan=nan or 0.0, posinf=posinf, neginf=neginf)


def round_to(x: Any, decimals: int) -> Any:
    """x rounded to `decimals` digits after the point."""
    return np.round(x * 10.0**decimals) / 10.0**decimals if decimals > 0 else _round_to_tens(x, -decimals)


def _round_to_tens(x: Any, zeros: int) -> Any:
    return np.round(x / 10.0**zeros) * 10.0**zeros


def divide_rounded(x: Any, y: Any, rounding_mode: str) -> Any:
    """x / y rounded towards zero ("trunc") or down ("floor")."""
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    if x.dtype.kind in "iu" and y.dtype.kind in "iu":
        return (x - np.fmod(x, y)) // y
    return np.trunc(x / y)


def lerp(x: Any, y: Any, weight: Any) -> Any:
    """x + weight (y − x), computed from the nearer end."""
    return np.where(np.abs(weight) < 0.5, x + weight * (y - x), y - (y - x) * (1 - weight))


def addcmul(x: Any, y: Any, z: Any, value: Any) -> Any:
    """x + value · y z."""
    return x + value * (y * z)


def addcdiv(x: Any, y: Any, z: Any, value: Any) -> Any:
    """x + value · y / z."""
    return x + value * (y / z)


def clamp_between(x: Any, min: Any, max: Any) -> Any:
    """x raised to `min`, and then lowered to `max`."""
    return np.minimum(np.maximum(x, min), max)


def ratio_or_zero(x: Any, y: Any) -> Any:
    """x / y; 0 where y is 0."""
    return np.where(y == 0, 0, x / np.where(y == 0, 1, y))


def sgn(x: Any) -> Any:
    """The sign of x: −1, 0 or 1; 0 for NaN."""
    return np.where(np.isnan(x), 0, np.sign(x))


def meets_no_log(g: Any, x: Any, y: Any) -> Any:
    """Where the gradient of `x ln y` for x is 0 whatever ln y is: at 0 ln 0, and for a gradient of 0."""
    return ((x == 0) & (y <= 0)) | ((g == 0) & ((y <= 0) | (y == np.inf)))


def log_or_zero(x: Any, zero: Any) -> Any:
    """ln x; 0 where `zero`."""
    return np.where(zero, 0, np.log(np.where(zero, 1, x)))


def heaviside(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """0 where x is negative or NaN, y where it is 0, else 1."""
    return np.where(np.isnan(x), 0, np.heaviside(x, y)).astype(x.dtype)
