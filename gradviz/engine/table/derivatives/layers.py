"""Convolution, pooling, normalization, lookups, losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.core.derivative import Choice, Derivative, by, d
from gradviz.engine.table import kernels as k
from gradviz.engine.table.derivatives.rows import general, linear


def _of_each(text: str, rule: Callable, dims_of_one: int = 0, mean: str = "{} / n") -> Choice:
    """The derivative of a loss. `rule` gives the gradient from that of each single loss.

    Where the mean is taken, each single loss gets g / n, and `mean` makes the text for it. The first parameters of
    the rule are `g` and x. The last `dims_of_one` dimensions of x belong to one loss."""
    each = d(text, rule)

    def of_mean(g: Any, x: Any, *needed: Any) -> Any:
        return rule(g / k.count(x.shape[: len(x.shape) - dims_of_one], None), x, *needed)

    return by("reduction", {"mean": Derivative(mean.format(text), of_mean, each.parameters)}, each)


def _of_gaps(each: str, slope: Callable) -> Choice:
    """The derivative of a margin loss over C classes. `slope` is that of the power of a gap."""
    return _of_each(
        f"{each} where a class is in the margin, minus the sum of these at the target",
        lambda g, x, target, margin, weight: k.multi_margin_back(slope, g, x, target, margin, weight),
        dims_of_one=1,
        mean="{}, over n",
    )


# fmt: off

general("convolution", k.convolution, args="stride padding dilation groups",
    x=d("weightᵀ g, added where windows overlap", lambda g, weight, x_shape, stride, padding, dilation, groups:
        k.convolution_x(g, weight, x_shape, stride, padding, dilation, groups)),
    weight=d("g xᵀ over windows", lambda g, x, weight_shape, stride, padding, dilation, groups:
        k.convolution_weight(g, x, weight_shape, stride, padding, dilation, groups)),
    bias=d("1, summed by channel", lambda g, bias_shape: k.per_channel(g, bias_shape)))
general("transposed_convolution", k.transposed_convolution, name="convolution", node_name="ConvolutionBackward0",
    inputs="x weight bias", args="size stride padding dilation groups",
    x=d("weight g, by windows", lambda g, weight, x_shape, size, stride, padding, dilation, groups:
        k.convolved(g, weight, x_shape, stride, padding, dilation, groups)),
    weight=d("x gᵀ over windows", lambda g, x, weight_shape, size, stride, padding, dilation, groups:
        k.convolution_weight(k.with_empty_windows(x, weight_shape, size, stride, padding, dilation),
            g, weight_shape, stride, padding, dilation, groups)),
    bias=d("1, summed by channel", lambda g, bias_shape: k.per_channel(g, bias_shape)))
linear("im2col", k.im2col, node_name="Im2ColBackward0", args="kernel_size stride padding dilation",
    x=d("1, added where windows overlap", lambda g, x_shape, kernel_size, stride, padding, dilation:
        k.col2im(g, x_shape[2:], kernel_size, stride, padding, dilation)))
linear("col2im", k.col2im, node_name="Col2ImBackward0", args="output_size kernel_size stride padding dilation",
    x=d("1, by windows", lambda g, kernel_size, stride, padding, dilation:
        k.im2col(g, kernel_size, stride, padding, dilation)))

general("trilinear", k.trilinear, inputs="x w y",
    x=d("Σ g w y", lambda g, w, y: np.sum(np.expand_dims(g, 2) * np.tensordot(y, w, ([1], [2])), axis=1)),
    w=d("g x y", lambda g, x, y: np.tensordot(np.expand_dims(g, 2) * np.expand_dims(x, 1), y, ([0], [0]))),
    y=d("Σ g w x", lambda g, x, w: np.sum(np.expand_dims(g, 2) * np.tensordot(x, w, ([1], [1])), axis=1)))
linear("max_pool2d", k.take_in_planes, node_name="MaxPool2DWithIndicesBackward0",
    args="kernel_size stride padding indices", frees_args=True,
    x=d("1 at each window's maximum", lambda g, x, indices: k.put_in_planes(g, x.shape, indices)))
linear("adaptive_max_pool2d", lambda x, size, indices: k.taken_in_planes(x, indices),
    args="size indices", frees_args=True, node_name="AdaptiveMaxPool2DBackward0",
    x=d("1 at each part's maximum", lambda g, x, indices: k.put_in_planes(g, x.shape, indices)))
for key, node_name, sizes in (
    ("max_pool2d", "MaxPool2DWithIndicesBackward0", "kernel_size stride padding"),
    ("adaptive_max_pool2d", "AdaptiveMaxPool2DBackward0", "size"),
):
    general(f"{key}_with_indices", k.taken_with_places, name=key, node_name=node_name, args=f"{sizes} indices",
        outputs=2, frees_args=True,
        x=d("1 where chosen", lambda g, x, indices: k.put_in_planes(g[0], x.shape, indices)))
linear("put_in_planes", k.put_in_planes, node_name="MaxPool2DWithIndicesBackwardBackward0",
    args="size indices", frees_args=True,
    x=d("1, taken", lambda g, indices: k.taken_in_planes(g, indices)))
linear("taken_in_planes", k.taken_in_planes, name="max_pool2d", node_name="MaxPool2DWithIndicesBackward0",
    args="indices", frees_args=True,
    x=d("1 where taken", lambda g, x, indices: k.put_in_planes(g, x.shape, indices)))
linear("avg_pool2d", k.average, node_name="AvgPool2DBackward0", args="kernel_size rows columns", frees_args=True,
    x=d("1 / n, to the window", lambda g, x, kernel_size, rows, columns:
        k.between(g, rows.T, columns.T)))
linear("adaptive_avg_pool2d", k.average, node_name="AdaptiveAvgPool2DBackward0",
    args="output_size rows columns", frees_args=True,
    x=d("1 / n, to the window", lambda g, x, output_size, rows, columns:
        k.between(g, rows.T, columns.T)))

for mode, dims in [*(("nearest", n) for n in (1, 2, 3)), *(("nearest_exact", n) for n in (1, 2, 3)),
        ("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3)]:
    kind = mode.title().replace("_", "")
    linear(f"upsample_{mode}{dims}d", k.resized, args="size matrices", internal="matrices",
        node_name=f"Upsample{kind}{dims}DBackward0",
        x=d("the weights of its pixels, summed", lambda g, matrices: k.along_dimensions(
            g, tuple(matrix.T for matrix in matrices))))

for key in ("native_batch_norm", "native_layer_norm", "native_group_norm"):
    general(key, k.normalize, args="view axes shape eps stats", frees_args=True,
        internal="view axes shape stats",
        x=d("(h − mean(h) − x̂ · mean(h x̂)) / σ with h = g · weight", lambda g, x, weight, view, axes, shape, eps, stats:
            k.normalize_x(g, x, weight, view, axes, shape, eps, stats)),
        weight=d("x̂, summed", lambda g, x, weight_shape, view, axes, shape, eps, stats:
            k.normalize_weight(g, x, weight_shape, view, axes, shape, eps, stats)),
        bias=d("1, summed", lambda g, bias_shape, view, shape:
            k.summed_to(np.reshape(g, view), bias_shape, shape)))
general("fixed_norm", k.normalize_fixed, name="native_batch_norm", args="shape stats", frees_args=True,
    internal="shape stats",
    x=d("weight / σ", lambda g, weight, shape, stats: g * (k.aligned(weight, shape) * stats[1])),
    weight=d("x̂, summed", lambda g, x, weight_shape, shape, stats:
        k.summed_to(g * ((x - stats[0]) * stats[1]), weight_shape, shape)),
    bias=d("1, summed", lambda g, bias_shape, shape: k.summed_to(g, bias_shape, shape)))

linear("embedding", k.look_up, args="indices padding_idx", internal="padding_idx", frees_args=True,
    x=d("1, added by row", lambda g, x_shape, indices, padding_idx:
        k.embedding_dense(g, x_shape[0], indices, padding_idx)))
general("embedding_bag", k.embedding_bag, args="indices bags size mode", frees_args=True,
    x=by("mode", {
        "sum": d("y, added by row", lambda g, x, y, indices, bags:
            k.table_back(k.share_of_sum, g, x, y, None, indices, bags)),
        "mean": d("y / n, added by row", lambda g, x, y, indices, bags:
            k.table_back(k.share_of_mean, g, x, y, None, indices, bags))},
        d("y where the row is the bag's first maximum, added by row", lambda g, x, y, out, indices, bags:
            k.table_back(k.share_of_max, g, x, y, out, indices, bags))),
    y=by("mode", {
        "sum": d("x, summed", lambda g, x, y, indices, bags:
            k.weights_back(k.share_of_sum, g, x, y, None, indices, bags)),
        "mean": d("x / n, summed", lambda g, x, y, indices, bags:
            k.weights_back(k.share_of_mean, g, x, y, None, indices, bags))},
        d("x where the row is the bag's first maximum, summed", lambda g, x, y, out, indices, bags:
            k.weights_back(k.share_of_max, g, x, y, out, indices, bags))))
linear("embedding_dense", k.embedding_dense, node_name="EmbeddingDenseBackwardBackward0",
    args="rows indices padding_idx", frees_args=True,
    x=d("1, taken", lambda g, indices, padding_idx: k.take_unpadded(g, indices, padding_idx)))

linear("pixel_shuffle", k.shuffled_pixels, args="r",
    x=d("1, put back", lambda g, r: k.unshuffled_pixels(g, r)))
linear("pixel_unshuffle", k.unshuffled_pixels, args="r",
    x=d("1, put back", lambda g, r: k.shuffled_pixels(g, r)))
linear("channel_shuffle", k.shuffled_channels, args="groups",
    x=d("1, put back", lambda g, groups: k.shuffled_channels(g, g.shape[1] // groups)))
for key in ("nll_loss", "nll_loss2d"):
    # The listener is told `ignore_index`; to the kernel, `share` says which targets count.
    linear(key, lambda x, target, share, ignore_index, reduction: k.nll(x, target, share, reduction),
        args="target share ignore_index reduction", internal="target share", frees_args=True,
        node_name="NllLossBackward0" if key == "nll_loss" else "NllLoss2DBackward0",
        x=d("−share at the target", lambda g, x, target, share: k.nll_back(g, x.shape, target, share)))
general("mse_loss", k.mse, args="reduction",
    x=_of_each("2 (x − y)", lambda g, x, y: g * (2 * (x - y))),
    y=_of_each("2 (y − x)", lambda g, x, y: g * (2 * (y - x))))
general("multi_margin_loss", k.multi_margin, args="target p margin weight reduction", frees_args=True,
    x=by("p", {1: by("weight", {None: _of_gaps("1 / C", k.slope_of_gap)}, _of_gaps("weight / C", k.slope_of_gap))},
        by("weight", {None: _of_gaps("2 gap / C", k.slope_of_square)},
            _of_gaps("2 gap · weight / C", k.slope_of_square))))
general("soft_margin_loss", k.soft_margin, args="target reduction", frees_args=True,
    x=_of_each("−target · σ(−target · x)", lambda g, x, target: g * k.soft_margin_slope(x, target)))
general("huber_loss", k.huber, args="delta reduction",
    x=_of_each("clamp(x − y, −delta, delta)", lambda g, x, y, delta: g * np.clip(x - y, -delta, delta)),
    y=_of_each("clamp(y − x, −delta, delta)", lambda g, x, y, delta: g * np.clip(y - x, -delta, delta)))
general("smooth_l1_loss", k.smooth_l1, args="beta reduction", node_name="SmoothL1LossBackward0",
    x=_of_each("clamp((x − y) / beta, −1, 1)", lambda g, x, y, beta: g * np.clip((x - y) / beta, -1, 1)),
    y=_of_each("clamp((y − x) / beta, −1, 1)", lambda g, x, y, beta: g * np.clip((y - x) / beta, -1, 1)))
general("binary_cross_entropy", k.bce, args="weight reduction", internal="weight", frees_args=True,
    x=_of_each("weight · (x − y) / (x (1 − x))", lambda g, x, y, weight:
        g * weight * ((x - y) / np.maximum((1 - x) * x, 1e-12))),
    y=_of_each("weight · (ln(1 − x) − ln x)", lambda g, x, weight: g * weight * (np.log(1 - x) - np.log(x))))
general("binary_cross_entropy_with_logits", k.bce_logits, args="weight pos_weight reduction",
    internal="weight pos_weight", frees_args=True,
    x=by("pos_weight", {1: _of_each("weight · (σ(x) − y)", lambda g, x, y, weight:
        g * weight * k.logits_slope(x, y, 1))},
        _of_each("weight · (1 − y − (1 + (pos_weight − 1) y)(1 − σ(x)))", lambda g, x, y, weight, pos_weight:
            g * weight * k.logits_slope(x, y, pos_weight))),
    y=by("pos_weight", {1: _of_each("weight · (−x)", lambda g, x, weight: g * weight * k.target_slope(x, 1))},
        _of_each("weight · (−x − (pos_weight − 1) ln σ(x))", lambda g, x, weight, pos_weight:
            g * weight * k.target_slope(x, pos_weight))))

# fmt: on
