"""Arithmetic, powers, extremes."""

from __future__ import annotations

import numpy as np

from gradviz.engine import kernels as k
from gradviz.engine.derivatives.rows import elementwise
from gradviz.engine.op import d

# fmt: off

elementwise("add", np.add,
    x=d("1", lambda g: g),
    y=d("1", lambda g: g))
elementwise("sub", np.subtract,
    x=d("1", lambda g: g),
    y=d("−1", lambda g: -g))
elementwise("rsub", k.reversed_subtract, node_name="RsubBackward1",
    x=d("−1", lambda g: -g),
    y=d("1", lambda g: g))
elementwise("mul", np.multiply,
    x=d("y", lambda g, y: g * y),
    y=d("x", lambda g, x: g * x))
elementwise("div", np.true_divide,
    x=d("1 / y", lambda g, y: g / y),
    y=d("−x / y²", lambda g, x, y: -g * ((x / y) / y)))
elementwise("pow", np.power, node_name="PowBackward1",
    x=d("y · x^(y−1)", lambda g, x, y: g * np.where(y == 0, 0, y * x ** (y - 1))),
    y=d("x^y · ln x", lambda g, x, y, out: g * np.where((x == 0) & (y >= 0), 0, out * np.log(x))))
elementwise("pow_number", k.power, name="pow", node_name="PowBackward0", args="exponent",
    x=d("n · x^(n−1)", lambda g, x, exponent: g * k.power_slope(x, exponent)))
elementwise("rpow", k.reversed_power, name="pow", node_name="PowBackward2", args="base",
    x=d("b^x · ln b", lambda g, out, base: g * (out * np.log(base)) if base else g * 0))
elementwise("neg", np.negative,
    x=d("−1", lambda g: -g))
elementwise("abs", np.absolute,
    x=d("sign(x)", lambda g, x: g * np.sign(x)))
elementwise("reciprocal", k.reciprocal,
    x=d("−1 / x²", lambda g, out: -g * (out * out)))
elementwise("square", np.square, node_name="PowBackward0",
    x=d("2x", lambda g, x: g * (2 * x)))
elementwise("maximum", np.maximum,
    x=d("x > y", lambda g, x, y: g * k.share(x > y, x == y)),
    y=d("y > x", lambda g, x, y: g * k.share(y > x, x == y)))
elementwise("minimum", np.minimum,
    x=d("x < y", lambda g, x, y: g * k.share(x < y, x == y)),
    y=d("y < x", lambda g, x, y: g * k.share(y < x, x == y)))
elementwise("clamp", k.clamp, args="min max",
    x=d("min ≤ x ≤ max", lambda g, x, min, max: g * k.inside(x, min, max)))
elementwise("sign", np.sign,
    x=d("0", lambda g: g * 0))
elementwise("floor", np.floor,
    x=d("0", lambda g: g * 0))
elementwise("ceil", np.ceil,
    x=d("0", lambda g: g * 0))

# fmt: on
