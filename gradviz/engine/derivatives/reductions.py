"""Sums, means, extremes, softmax."""

from __future__ import annotations

import numpy as np

from gradviz.engine import kernels as k
from gradviz.engine.derivatives.rows import general, linear
from gradviz.engine.op import d

# fmt: off

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

# fmt: on
