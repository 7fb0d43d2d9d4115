"""The table of derivatives: every operation, and beside it how gradients go through it.

Read a row as a textbook would print it: the op's name, the NumPy function that computes it, and for each input
the derivative, once as text and once as a rule from the upstream gradient `g`. What a rule names, the node
saves (see op.py). Adding an operation is adding a row; forward mode, higher orders, saved tensors, the node's
class and its name in pictures follow from it.

Formulas are PyTorch's, `tools/autograd/derivatives.yaml`, in its order of evaluation, so that the last bit
agrees where NumPy's own functions do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine import kernels as k
from gradviz.engine.op import Derivative, Op, d

TABLE: dict[str, Op] = {}


def _row(key: str, forward: Callable, kind: str, derivatives: dict[str, Derivative], **settings: Any) -> None:
    name = settings.pop("name", key)
    inputs = tuple(settings.pop("inputs", " ".join(derivatives) or "x").split())
    args = tuple(settings.pop("args", "").split())
    TABLE[key] = Op(name, forward, inputs, args, derivatives, kind=kind, **settings)


def elementwise(key: str, forward: Callable, /, **row: Any) -> None:
    """An op that works element by element and broadcasts."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative)}
    _row(key, forward, "elementwise", derivatives, **row)


def linear(key: str, forward: Callable, /, **row: Any) -> None:
    """An op that is linear in its tensors together: its tangent is the op of the tangents."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative)}
    _row(key, forward, "linear", derivatives, **row)


def general(key: str, forward: Callable, /, **row: Any) -> None:
    """Any other op."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative)}
    _row(key, forward, "", derivatives, **row)


# fmt: off

# --- arithmetic
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

# --- exponentials and their kin
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

# --- reductions
linear("sum", k.sum,  args="dim keepdim",
    x=d("1, spread", lambda g, x_shape, dim, keepdim: k.spread(g, x_shape, dim, keepdim)))
linear("sum_dim", k.sum, name="sum", node_name="SumBackward1", args="dim keepdim",
    x=d("1, spread", lambda g, x_shape, dim, keepdim: k.spread(g, x_shape, dim, keepdim)))
linear("mean_dim", k.mean, name="mean", node_name="MeanBackward1", args="dim keepdim",
    x=d("1 / n, spread", lambda g, x_shape, dim, keepdim:
        k.spread(g, x_shape, dim, keepdim) / k.count(x_shape, dim)))
linear("mean", k.mean, args="dim keepdim",
    x=d("1 / n, spread", lambda g, x_shape, dim, keepdim:
        k.spread(g, x_shape, dim, keepdim) / k.count(x_shape, dim)))
general("max_all", k.max_all, name="max", node_name="MaxBackward1",
    x=d("x is max, shared by ties", lambda g, x, out: k.to_extremes(g, x, out)))
general("min_all", k.min_all, name="min", node_name="MinBackward1",
    x=d("x is min, shared by ties", lambda g, x, out: k.to_extremes(g, x, out)))
general("amax", k.amax, args="dim keepdim",
    x=d("x is max, shared by ties", lambda g, x, out, dim, keepdim: k.to_extremes(g, x, out, dim, keepdim)))
general("logsumexp", k.logsumexp, args="dim keepdim",
    x=d("softmax(x)", lambda g, x, out, dim, keepdim:
        k.spread(g, x.shape, dim, keepdim) * np.exp(x - k.spread(out, x.shape, dim, keepdim))))
general("softmax", k.softmax, args="dim", node_name="SoftmaxBackward0",
    x=d("pᵢ(δᵢⱼ − pⱼ)", lambda g, out, dim: (g - np.sum(g * out, axis=dim, keepdims=True)) * out))
general("log_softmax", k.log_softmax, args="dim", node_name="LogSoftmaxBackward0",
    x=d("δᵢⱼ − pⱼ", lambda g, out, dim: g - np.exp(out) * np.sum(g, axis=dim, keepdims=True)))

# --- linear algebra
general("dot", np.dot,
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
general("addmm", k.addmm,
    bias=d("1, summed over rows", lambda g, bias_shape: k.sum_to(g, bias_shape)),
    x=d("g yᵀ", lambda g, y: np.matmul(g, k.transposed(y))),
    y=d("xᵀ g", lambda g, x: np.matmul(k.transposed(x), g)))

# --- shape
linear("reshape", np.reshape, args="shape", node_name="ViewBackward0", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("t", np.transpose, node_name="TBackward0", view=True,
    x=d("1, transposed", lambda g: np.transpose(g)))
linear("transpose", np.swapaxes, args="dim0 dim1", view=True,
    x=d("1, transposed", lambda g, dim0, dim1: np.swapaxes(g, dim0, dim1)))
linear("permute", np.transpose, args="dims", view=True,
    x=d("1, permuted back", lambda g, dims: np.transpose(g, k.inverse_permutation(dims))))
linear("expand", np.broadcast_to, args="size", view=True,
    x=d("1, summed", lambda g, x_shape: k.sum_to(g, x_shape)))
linear("squeeze", k.squeeze, args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("squeeze_dim", k.squeeze, name="squeeze", node_name="SqueezeBackward1", args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("unsqueeze", np.expand_dims, args="dim", view=True,
    x=d("1, in x's shape", lambda g, x_shape: np.reshape(g, x_shape)))
linear("index", k.index, args="index", view=True, node_name="SliceBackward0",
    x=d("1 where taken, else 0", lambda g, x_shape, index: k.put_back(g, x_shape, index)))
linear("put_back", k.put_back, args="shape index", node_name="SliceBackwardBackward0",
    x=d("1, taken", lambda g, index: k.index(g, index)))
linear("select", k.select, args="dim index", view=True,
    x=d("1 where taken, else 0", lambda g, x_shape, dim, index: k.put_back(g, x_shape, k.at(dim, index))))
linear("gather_index", k.index, args="index", name="index", node_name="IndexBackward0",
    x=d("1 where taken, summed", lambda g, x_shape, index: k.put_back(g, x_shape, index)))
linear("cat", k.cat, args="dim", variadic=True, inputs="tensors",
    tensors=d("1, cut apart", lambda g, dim, tensors_shape: k.cut_apart(g, dim, tensors_shape)))
linear("stack", k.stack, args="dim", variadic=True, inputs="tensors",
    tensors=d("1, cut apart", lambda g, dim, tensors_shape: k.unstack(g, dim, tensors_shape)))

# --- choice and identity
linear("where", k.where, inputs="x y", args="condition",
    x=d("where condition", lambda g, x_shape, condition: k.sum_to(np.where(condition, g, 0), x_shape)),
    y=d("where not condition", lambda g, y_shape, condition: k.sum_to(np.where(condition, 0, g), y_shape)))
linear("clone", np.copy,
    x=d("1", lambda g: g))
linear("copy", np.copy, node_name="CopyBackwards",
    x=d("1", lambda g: g))
linear("to", k.to, args="dtype", node_name="ToCopyBackward0",
    x=d("1, in x's dtype", lambda g, x_dtype: k.to(g, x_dtype)))

linear("make_dual", k.same, node_name="AliasBackward0", view=True,
    x=d("1", lambda g: g))

# --- not differentiable
general("detach", k.same, view=True)

# fmt: on
