"""Arithmetic, powers, maximum and minimum."""

from __future__ import annotations

import numpy as np

from gradviz.engine.core.derivative import by, d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import elementwise, without_derivative

# fmt: off

elementwise("add", np.add,
    x=d("1", lambda g: g),
    y=d("1", lambda g: g))
elementwise("sub", np.subtract,
    x=d("1", lambda g: g),
    y=d("−1", lambda g: -g))
elementwise("add_scaled", k.add_scaled, name="add", args="alpha",
    x=d("1", lambda g: g),
    y=d("alpha", lambda g, alpha: g * alpha))
elementwise("sub_scaled", k.subtract_scaled, name="sub", args="alpha",
    x=d("1", lambda g: g),
    y=d("−alpha", lambda g, alpha: -g * alpha))
elementwise("rsub_tensor", k.reversed_subtract, name="rsub",
    x=d("−1", lambda g: -g),
    y=d("1", lambda g: g))
elementwise("rsub", k.reversed_subtract, node_name="RsubBackward1", args="other",
    x=d("−1", lambda g: -g))
elementwise("rsub_tensor_scaled", k.reversed_subtract_scaled, name="rsub", inputs="x y", args="alpha",
    x=d("−alpha", lambda g, alpha: -g * alpha),
    y=d("1", lambda g: g))
elementwise("rsub_scaled", k.reversed_subtract_scaled, name="rsub", node_name="RsubBackward1", args="other alpha",
    x=d("−alpha", lambda g, alpha: -g * alpha))
elementwise("mul", np.multiply,
    x=d("y", lambda g, y: g * y),
    y=d("x", lambda g, x: g * x))
elementwise("div", np.true_divide,
    x=d("1 / y", lambda g, y: g / y),
    y=d("−x / y²", lambda g, x, y: -g * ((x / y) / y)))
elementwise("add_number", np.add, name="add", node_name="AddBackward1", args="number",
    x=d("1", lambda g: g))
elementwise("sub_number", np.subtract, name="sub", node_name="SubBackward1", args="number",
    x=d("1", lambda g: g))
elementwise("mul_number", np.multiply, name="mul", node_name="MulBackward1", args="number",
    x=d("number", lambda g, number: g * number))
elementwise("div_number", np.true_divide, name="div", node_name="DivBackward1", args="number",
    x=d("1 / number", lambda g, number: g / number))
elementwise("pow", np.power, node_name="PowBackward1",
    # The first rule does not use `out`. PyTorch saves it for both rules, and so notices when it is modified.
    x=d("y · x^(y−1)", lambda g, x, y, out: np.where(y == 0, 0, g * (y * x ** (y - 1)))),
    y=d("x^y · ln x", lambda g, x, y, out: g * np.where((x == 0) & (y.real >= 0), 0, out * np.log(x))))
elementwise("pow_number", k.power, name="pow", node_name="PowBackward0", args="exponent",
    x=by("exponent", {0: d("0", lambda g: k.none_of(g))},
        d("exponent · x^(exponent−1)", lambda g, x, exponent: g * k.power_slope(x, exponent))))
elementwise("rpow", k.reversed_power, name="pow", node_name="PowBackward2", args="base",
    x=by("base", {0: d("0 where x ≥ 0, else −∞", lambda g, x, out: np.where(x.real >= 0, 0, g * (out * -np.inf)))},
        d("base^x · ln base", lambda g, out, base: g * (out * np.log(base)))))
elementwise("neg", np.negative,
    x=d("−1", lambda g: -g))
elementwise("abs", np.absolute,
    x=d("sign(x)", lambda g, x: g * k.sgn(x)))
elementwise("reciprocal", k.reciprocal,
    x=d("−1 / x²", lambda g, out: -g * (out * out)))
elementwise("square", np.square, node_name="PowBackward0",
    x=d("2x", lambda g, x: g * (2 * x)))
elementwise("maximum", np.maximum,
    x=d("1 where x > y, 1/2 where x = y", lambda g, x, y: k.to_the_winner(g, x < y, x == y)),
    y=d("1 where y > x, 1/2 where x = y", lambda g, x, y: k.to_the_winner(g, y < x, x == y)))
elementwise("minimum", np.minimum,
    x=d("1 where x < y, 1/2 where x = y", lambda g, x, y: k.to_the_winner(g, x > y, x == y)),
    y=d("1 where y < x, 1/2 where x = y", lambda g, x, y: k.to_the_winner(g, y > x, x == y)))
elementwise("clamp", k.clamp, args="min max", node_name="ClampBackward1",
    x=by("min", {None: d("x ≤ max", lambda g, x, max: k.let_through(g, x <= max))},
        by("max", {None: d("x ≥ min", lambda g, x, min: k.let_through(g, x >= min))},
            d("min ≤ x ≤ max", lambda g, x, min, max: k.let_through(g, (x >= min) & (x <= max))))))
elementwise("clamp_min", np.maximum, node_name="ClampMinBackward1",
    x=d("x ≥ y", lambda g, x, y: k.let_through(g, x >= y)),
    y=d("x < y", lambda g, x, y: k.let_through(g, x < y)))
elementwise("clamp_max", np.minimum, node_name="ClampMaxBackward1",
    x=d("x ≤ y", lambda g, x, y: k.let_through(g, x <= y)),
    y=d("x > y", lambda g, x, y: k.let_through(g, x > y)))
elementwise("clamp_min_number", k.clamp, name="clamp_min", args="min max", node_name="ClampMinBackward0",
    x=d("x ≥ min", lambda g, x, min: k.let_through(g, x >= min)))
elementwise("clamp_max_number", k.clamp, name="clamp_max", args="min max", node_name="ClampMaxBackward0",
    x=d("x ≤ max", lambda g, x, max: k.let_through(g, x <= max)))
elementwise("clamp_below", np.maximum, name="clamp",
    x=d("x ≥ y", lambda g, x, y: k.let_through(g, x >= y)),
    y=d("x < y", lambda g, x, y: k.let_through(g, x < y)))
elementwise("clamp_above", np.minimum, name="clamp",
    x=d("x ≤ y", lambda g, x, y: k.let_through(g, x <= y)),
    y=d("x > y", lambda g, x, y: k.let_through(g, x > y)))
elementwise("clamp_between", k.clamp_between, name="clamp", inputs="x min max",
    x=d("min ≤ x ≤ max", lambda g, x, min, max: k.let_through(g, (min <= x) & (x <= max))),
    min=d("x < min < max", lambda g, x, min, max: k.let_through(g, (x < min) & (min < max))),
    max=d("x > max or max < min", lambda g, x, min, max: k.let_through(g, (x > max) | (max < min))))
elementwise("fmax", np.fmax,
    x=d("x ≥ y", lambda g, x, y: k.let_through(g, (x >= y) | np.isnan(y))),
    y=d("x < y", lambda g, x, y: np.where((x >= y) | np.isnan(y), 0, g)))
elementwise("fmin", np.fmin,
    x=d("x ≤ y", lambda g, x, y: k.let_through(g, (x <= y) | np.isnan(y))),
    y=d("x > y", lambda g, x, y: np.where((x <= y) | np.isnan(y), 0, g)))
elementwise("fmod", np.fmod, node_name="FmodBackward1",
    x=d("1", lambda g: g),
    y=d("−trunc(x / y)", lambda g, x, y: -g * np.trunc(x / y)))
elementwise("remainder", np.remainder, node_name="RemainderBackward1",
    x=d("1", lambda g: g),
    y=d("−⌊x / y⌋", lambda g, x, y: -g * np.floor(x / y)))
for key, function in [("remainder", np.remainder), ("fmod", np.fmod)]:
    elementwise(f"{key}_number", function, name=key, node_name=f"{key.capitalize()}Backward0", args="number",
        x=d("1", lambda g: g))
elementwise("floor_divide", np.floor_divide, node_name="NotImplemented",
    x=d("", without_derivative("derivative for aten::floor_divide is not implemented")),
    y=d("", without_derivative("derivative for aten::floor_divide is not implemented")))
elementwise("heaviside", k.heaviside, node_name="NotImplemented",
    x=d("", without_derivative("derivative for aten::heaviside is not implemented")),
    y=d("", without_derivative("derivative for aten::heaviside is not implemented")))
elementwise("floor_divide_number", np.floor_divide, name="floor_divide", node_name="NotImplemented", args="number",
    x=d("", without_derivative("derivative for aten::floor_divide is not implemented")))
elementwise("div_rounded", k.divide_rounded, name="div", node_name="DivBackward2", args="rounding_mode",
    x=d("0", lambda g, y: g * 0),
    y=d("0", lambda g, x, y: g * 0))
elementwise("copysign", np.copysign,
    x=d("sign(x) · sign(y)", lambda g, x, out: g * k.copysign_slope(x, out)),
    y=d("0", lambda g: g * 0))
elementwise("copysign_number", np.copysign, name="copysign", node_name="CopysignBackward1", args="number",
    x=d("sign(x) · sign(number)", lambda g, x, out: g * k.copysign_slope(x, out)))
elementwise("ldexp", k.ldexp,
    x=d("2^y", lambda g, y: g * np.exp2(y)),
    y=d("x · 2^y · ln 2", lambda g, out: g * (out * 0.6931471805599453)))
elementwise("hypot", np.hypot,
    x=d("x / √(x² + y²)", lambda g, x, out: g * (x / out)),
    y=d("y / √(x² + y²)", lambda g, y, out: g * (y / out)))
elementwise("lerp", k.lerp, inputs="x y", args="weight",
    x=d("1 − weight", lambda g, weight: g * (1 - weight)),
    y=d("weight", lambda g, weight: g * weight))
elementwise("lerp_tensor", k.lerp, name="lerp", node_name="LerpBackward1", inputs="x y weight",
    x=d("1 − weight", lambda g, weight: g * (1 - weight)),
    y=d("weight", lambda g, weight: g * weight),
    weight=d("y − x", lambda g, x, y: g * (y - x)))
elementwise("addcmul", k.addcmul, inputs="x y z", args="value",
    x=d("1", lambda g: g),
    y=d("value · z", lambda g, z, value: g * (z * value)),
    z=d("value · y", lambda g, y, value: g * (y * value)))
elementwise("addcdiv", k.addcdiv, inputs="x y z", args="value",
    x=d("1", lambda g: g),
    y=d("value / z", lambda g, z, value: g * (value / z)),
    z=d("−value · y / z²", lambda g, y, z, value: -g * (value * y / (z * z))))
elementwise("sign", k.sgn,
    x=d("0", lambda g: k.none_of(g)))
elementwise("floor", np.floor,
    x=d("0", lambda g: k.none_of(g)))
elementwise("ceil", np.ceil,
    x=d("0", lambda g: k.none_of(g)))
elementwise("trunc", np.trunc,
    x=d("0", lambda g: k.none_of(g)))
elementwise("round", np.round,
    x=d("0", lambda g: k.none_of(g)))
elementwise("round_decimals", k.round_to, name="round", node_name="RoundBackward1", args="decimals",
    x=d("0", lambda g: k.none_of(g)))
elementwise("sgn", k.sgn,
    x=d("0", lambda g, x: k.none_of(g)))
elementwise("frac", k.frac,
    x=d("1", lambda g: g))
elementwise("nan_to_num", k.nan_to_num, args="nan posinf neginf",
    x=d("x is finite", lambda g, x: g * np.isfinite(x)))
elementwise("deg2rad", np.deg2rad, node_name="Deg2RadBackward0",
    x=d("π / 180", lambda g: g * (np.pi / 180)))
elementwise("rad2deg", np.rad2deg, node_name="Rad2DegBackward0",
    x=d("180 / π", lambda g: g * (180 / np.pi)))
elementwise("angle", k.angle,
    x=d("0", lambda g, x: k.angle_back(g, x)))
elementwise("conj", np.conjugate,
    x=d("1, conjugated", lambda g: np.conjugate(g)))
elementwise("conj_physical", np.conjugate,
    x=d("1, conjugated", lambda g: np.conjugate(g)))

# fmt: on
