"""Sums, means, maxima and minima, softmax, selection along a dimension."""

from __future__ import annotations

import numpy as np

from gradviz.engine.core.derivative import d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import general, linear, without_derivative

# fmt: off

linear("sum", k.sum,  args="dim keepdim",
    x=d("1, spread", lambda g, x_shape, dim, keepdim: k.spread(g, x_shape, dim, keepdim)))
linear("sum_dim", k.sum, name="sum", node_name="SumBackward1", args="dim keepdim",
    x=d("1, spread", lambda g, x_shape, dim, keepdim: k.spread(g, x_shape, dim, keepdim)))
linear("mean_dim", k.mean, name="mean", node_name="MeanBackward1", args="dim keepdim",
    x=d("1 / n, spread", lambda g, x_shape, dim, keepdim:
        k.spread(g / k.count(x_shape, dim), x_shape, dim, keepdim)))
linear("mean", k.mean, args="dim keepdim",
    x=d("1 / n, spread", lambda g, x_shape, dim, keepdim:
        k.spread(g / k.count(x_shape, dim), x_shape, dim, keepdim)))
general("max_all", k.max_all, name="max", node_name="MaxBackward1",
    x=d("1 where x is the maximum, shared by ties", lambda g, x, out: k.to_the_extreme(g, x, out)))
general("min_all", k.min_all, name="min", node_name="MinBackward1",
    x=d("1 where x is the minimum, shared by ties", lambda g, x, out: k.to_the_extreme(g, x, out)))
general("amax", k.amax, args="dim keepdim",
    x=d("1 where x is the maximum, shared by ties", lambda g, x, out, dim, keepdim:
        k.to_extremes(g, x, out, dim, keepdim)))
general("amin", k.amin, args="dim keepdim",
    x=d("1 where x is the minimum, shared by ties", lambda g, x, out, dim, keepdim:
        k.to_extremes(g, x, out, dim, keepdim)))
general("aminmax", k.amin_and_amax, args="dim keepdim", outputs=2,
    x=d("1 where x is the minimum or maximum, shared by ties", lambda g, x, out, dim, keepdim: k.both(
        None if g[0] is None else k.to_extremes(g[0], x, out[0], dim, keepdim),
        None if g[1] is None else k.to_extremes(g[1], x, out[1], dim, keepdim))))
general("nansum", k.nansum, args="dim keepdim",
    x=d("1 where x is a number, spread", lambda g, x, dim, keepdim:
        k.spread(g, x.shape, dim, keepdim) * np.logical_not(np.isnan(x))))
general("prod", k.prod, args="dim keepdim",
    x=d("∏ of the other elements, spread", lambda g, x, out, dim, keepdim: k.prod_back(g, x, out, dim, keepdim)))
general("prod_dim", k.prod, name="prod", node_name="ProdBackward1", args="dim keepdim",
    x=d("∏ of the other elements, spread", lambda g, x, out, dim, keepdim: k.prod_back(g, x, out, dim, keepdim)))
linear("cumsum", k.cumsum, args="dim",
    x=d("Σ g from here on", lambda g, dim: k.sum_from(g, dim)))
linear("sum_from", k.sum_from, args="dim",
    x=d("Σ g up to here", lambda g, dim: k.cumsum(g, dim)))
general("cumprod", k.cumprod, args="dim",
    x=d("Σ gⱼ · ∏ of what is multiplied into product j beside x", lambda g, x, out, dim: k.cumprod_back(g, x, dim)))
general("logcumsumexp", k.logcumsumexp, args="dim",
    x=d("Σ gⱼ exp(x − outⱼ) from here on", lambda g, x, out, dim: k.logcumsumexp_back(g, x, out, dim)))
general("var", k.var, args="dim correction keepdim",
    x=d("2 (x − mean) / (n − correction), spread", lambda g, x, dim, correction, keepdim:
        k.var_back(g, x, dim, correction, keepdim)))
general("std", k.std, args="dim correction keepdim",
    x=d("(x − mean) / (n − correction) / std, spread", lambda g, x, out, dim, correction, keepdim:
        k.std_back(g, x, out, dim, correction, keepdim)))
for key, median in ("median", k.median), ("nanmedian", k.nanmedian):
    general(f"{key}_all", median, name=key,
        x=d("1 where x is the median, shared by ties", lambda g, x, out: k.to_the_extreme(g, x, out)))

# Selection along a dimension gives (values, indices). The gradient flows to the selected elements.

for key, kernel in [("max", k.max_along), ("min", k.min_along), ("median", k.median_along)]:
    general(f"{key}_dim", kernel, name=key, args="dim keepdim", outputs=2,
        node_name="MedianBackward1" if key == "median" else "",
        x=d("1 where chosen", lambda g, x_shape, chosen, dim, keepdim: k.cut_out(g[0], x_shape, chosen, dim, keepdim)))
general("kthvalue", k.kth, args="k dim keepdim", outputs=2,
    x=d("1 where chosen", lambda g, x_shape, chosen, dim, keepdim: k.cut_out(g[0], x_shape, chosen, dim, keepdim)))
for key, kernel in [("mode", k.mode), ("nanmedian_dim", k.nanmedian_along)]:
    general(key, kernel, name=key.removesuffix("_dim"), args="dim keepdim", outputs=2,
        node_name="ModeBackward0" if key == "mode" else "NanmedianBackward1",
        x=d("1 where chosen", lambda g, x_shape, chosen, dim, keepdim: k.cut_out(g[0], x_shape, chosen, dim, keepdim)))
for key, running in [("cummax", k.cummax), ("cummin", k.cummin)]:
    general(key, running, args="dim", outputs=2,
        x=d("1 where chosen, summed", lambda g, x, chosen, dim: k.cut_out(g[0], x.shape, chosen, dim, True)))
for key, node_name in ("sort", ""), ("sort_stable", "SortBackward1"):
    general(key, k.sort, name="sort", node_name=node_name, args="dim descending", outputs=2,
        x=d("1 where it was", lambda g, x_shape, chosen, dim: k.cut_out(g[0], x_shape, chosen, dim, True)))
general("topk", k.topk, args="k dim largest", outputs=2,
    x=d("1 where chosen", lambda g, x_shape, chosen, dim: k.cut_out(g[0], x_shape, chosen, dim, True)))
for key, node_name, name, distinct in [
    ("unique", "Unique2Backward0", "_unique2", k.unique),
    ("unique_dim", "UniqueDimBackward0", "unique_dim", k.unique),
    ("unique_consecutive", "UniqueConsecutiveBackward0", "unique_consecutive", k.unique_consecutive),
]:
    general(key, distinct, name=key.removesuffix("_dim"), args="dim", outputs=3, node_name=node_name,
        x=d("", without_derivative(f"the derivative for '{name}' is not implemented.", NotImplementedError)))
general("std_mean", k.std_and_mean, args="dim correction keepdim", outputs=2,
    x=d("(x − mean) / (n − correction) / std for the first output, 1 / n for the second",
        lambda g, x, out, dim, correction, keepdim: k.both(
            None if g[0] is None else k.std_back(g[0], x, out[0], dim, correction, keepdim),
            None if g[1] is None else k.mean_back(g[1], x.shape, dim, keepdim))))
general("var_mean", k.var_and_mean, args="dim correction keepdim", outputs=2,
    x=d("2 (x − mean) / (n − correction) for the first output, 1 / n for the second",
        lambda g, x, dim, correction, keepdim: k.both(
            None if g[0] is None else k.var_back(g[0], x, dim, correction, keepdim),
            None if g[1] is None else k.mean_back(g[1], x.shape, dim, keepdim))))
general("logsumexp", k.logsumexp, args="dim keepdim",
    x=d("exp(x − out), spread", lambda g, x, out, dim, keepdim:
        k.spread(g, x.shape, dim, keepdim) * np.exp(x - k.spread(out, x.shape, dim, keepdim))))
for key, softmax in ("softmax", k.softmax), ("safe_softmax", k.safe_softmax):
    general(key, softmax, args="dim",
        x=d("out (g − Σ g out)", lambda g, out, dim: (g - k.dot_along(g, out, dim)) * out))
general("log_softmax", k.log_softmax, args="dim", node_name="LogSoftmaxBackward0",
    x=d("g − exp(out) Σ g", lambda g, out, dim: g - np.exp(out) * k.total(g, dim)))

# fmt: on
