"""What the rows of `derivatives/layers.py` compute with: windows, pooling, normalization, lookups.

A function marked `recorded` is the forward of a row of its own: called by a rule with a Tensor, it records itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradviz.engine.core.apply import apply
from gradviz.engine.core.registry import TABLE
from gradviz.engine.table.kernels.padding import padded_with_zeros

Sizes = tuple[int, ...]


def recorded(key: str) -> Callable:
    """Mark the forward of row `key`: on a Tensor it runs as that op."""

    def mark(forward: Callable) -> Callable:
        @functools.wraps(forward)
        def call(x: Any, *args: Any) -> Any:
            if isinstance(x, (np.ndarray, np.generic)):
                return forward(x, *args)
            return apply(TABLE[key], (x,), args)

        return call

    return mark


# --- windows: x is (N, C, *size)


def windows_out(size: Sequence[int], kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """How many windows fit, one number a dimension."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )


def padded(x: Any, padding: Sequence[int], value: float = 0) -> Any:
    """x with a border around its last dimensions."""
    if not any(padding):
        return x
    lead = x.ndim - len(padding)
    sizes = tuple(n + 2 * p for n, p in zip(x.shape[lead:], padding, strict=True))
    whole = (
        np.full(x.shape[:lead] + sizes, value, x.dtype)
        if value
        else np.zeros(x.shape[:lead] + sizes, x.dtype)
    )
    inner: Any = tuple(slice(p, p + n) for n, p in zip(x.shape[lead:], padding, strict=True))
    whole[(..., *inner)] = x
    return whole


def windows(x: Any, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """A view of the windows of x: (N, C, *kernel, *out)."""
    n = len(kernel)
    out = windows_out(x.shape[2:], kernel, stride, (0,) * n, dilation)
    steps = x.strides[2:]
    return as_strided(
        x,
        x.shape[:2] + kernel + out,
        x.strides[:2]
        + tuple(step * d for step, d in zip(steps, dilation, strict=True))
        + tuple(step * s for step, s in zip(steps, stride, strict=True)),
        writeable=False,
    )


@recorded("im2col")
def im2col(x: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """The windows of x as columns: (N, C·kernel, windows)."""
    view = windows(padded(x, padding), kernel, stride, dilation)
    rows = x.shape[1] * int(np.prod(kernel))
    return view.reshape(x.shape[0], rows, int(np.prod(view.shape[2 + len(kernel) :])))


@recorded("col2im")
def col2im(columns: Any, size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """The transpose of `im2col`: columns added back to where they came from, (N, C, *size)."""
    n = columns.shape[0]
    channels = columns.shape[1] // int(np.prod(kernel))
    out = windows_out(size, kernel, stride, padding, dilation)
    parts = columns.reshape(n, channels, *kernel, *out)
    whole = np.zeros((n, channels, *(m + 2 * p for m, p in zip(size, padding, strict=True))), columns.dtype)
    for at in np.ndindex(*kernel):
        taken = tuple(
            slice(i * d, i * d + s * o, s) for i, d, s, o in zip(at, dilation, stride, out, strict=True)
        )
        whole[(slice(None), slice(None), *taken)] += parts[(slice(None), slice(None), *at)]
    inner = tuple(slice(p, p + m) for m, p in zip(size, padding, strict=True))
    return whole[(slice(None), slice(None), *inner)]


# --- convolution


def _grouped(columns: Any, groups: int) -> Any:
    """Columns by group: (N, groups, rows, windows)."""
    return np.reshape(columns, (columns.shape[0], groups, columns.shape[1] // groups, columns.shape[2]))


def _weight_rows(weight: Any, groups: int) -> Any:
    """The weight as matrices: (groups, out / groups, rows)."""
    out = weight.shape[0]
    return np.reshape(weight, (groups, out // groups, int(np.prod(weight.shape[1:]))))


def convolution(
    x: Any, weight: Any, bias: Any, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """The convolution of x with the weight, (N, out, *windows)."""
    kernel = weight.shape[2:]
    size = windows_out(x.shape[2:], kernel, stride, padding, dilation)
    columns = im2col(x, kernel, stride, padding, dilation)
    if groups == 1:
        out = np.matmul(weight.reshape(len(weight), -1), columns)
    else:
        out = np.matmul(_weight_rows(weight, groups), _grouped(columns, groups))
    out = out.reshape(x.shape[0], weight.shape[0], *size)
    if bias.ndim:
        out += bias.reshape(-1, *(1,) * len(size))
    return out


def convolution_x(
    g: Any, weight: Any, x_shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """The gradient of x: each window's weight times its gradient, added up where windows overlap."""
    n, out = g.shape[:2]
    flat = np.reshape(g, (n, groups, out // groups, int(np.prod(g.shape[2:]))))
    columns = np.matmul(np.swapaxes(_weight_rows(weight, groups), -1, -2), flat)
    columns = np.reshape(columns, (n, columns.shape[1] * columns.shape[2], columns.shape[3]))
    return col2im(columns, x_shape[2:], weight.shape[2:], stride, padding, dilation)


def convolution_weight(
    g: Any, x: Any, weight_shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """The gradient of the weight: what every window saw, weighted by its gradient."""
    n, out = g.shape[:2]
    columns = im2col(x, weight_shape[2:], stride, padding, dilation)
    flat = np.reshape(g, (n, groups, out // groups, int(np.prod(g.shape[2:]))))
    products = np.matmul(flat, np.swapaxes(_grouped(columns, groups), -1, -2))
    return np.reshape(np.sum(products, axis=0), weight_shape)


def convolved(
    x: Any, weight: Any, out_shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """`convolution` without a bias and the windows beyond `out_shape`, for the rules."""
    kernel = weight.shape[2:]
    columns = _grouped(im2col(x, kernel, stride, padding, dilation), groups)
    out: Any = np.matmul(_weight_rows(weight, groups), columns)
    count = windows_out(x.shape[2:], kernel, stride, padding, dilation)
    out = np.reshape(out, (x.shape[0], weight.shape[0], *count))
    return out[(..., *(slice(n) for n in out_shape[2:]))] if tuple(count) != tuple(out_shape[2:]) else out


def transposed_convolution(
    x: Any, weight: Any, bias: Any, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """The transpose of `convolution` with weight (C, out / groups, *kernel): (N, out, *size)."""
    shape = (x.shape[0], weight.shape[1] * groups, *size)
    x = with_empty_windows(x, weight.shape, size, stride, padding, dilation)
    out = convolution_x(x, weight, shape, stride, padding, dilation, groups)
    return np.ascontiguousarray(out + bias.reshape(-1, *(1,) * len(size)) if bias.ndim else out)


def with_empty_windows(
    x: Any, weight_shape: Sizes, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes
) -> Any:
    """x with zeros behind, for the windows that a larger output has room for."""
    windows = windows_out(size, weight_shape[2:], stride, padding, dilation)
    after = (0, 0, *(w - n for w, n in zip(windows, x.shape[2:], strict=True)))
    return padded_with_zeros(x, (0,) * x.ndim, after) if any(after) else x


def per_channel(g: Any, shape: Sizes, axis: int = 1) -> Any:
    """A gradient summed over all but the channels."""
    return np.reshape(np.sum(g, axis=tuple(i for i in range(g.ndim) if i != axis)), shape)


# --- pooling


def max_positions(x: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, out: Sizes) -> Any:
    """Where each window's maximum stands in its plane, as PyTorch's indices: (N, C, *out)."""
    need = tuple(
        max((o - 1) * s + d * (k - 1) + 1 - n - p, 0)
        for o, s, d, k, n, p in zip(out, stride, dilation, kernel, x.shape[2:], padding, strict=True)
    )
    border = [(0, 0), (0, 0), *zip(padding, need, strict=True)]
    whole = x
    if any(padding) or any(need):  # the border is below everything, even −∞
        floats = x.dtype.kind == "f"
        low = -np.inf if floats else np.iinfo(x.dtype).min
        whole = np.pad(np.maximum(x, np.finfo(x.dtype).min) if floats else x, border, constant_values=low)
    view = windows(whole, kernel, stride, dilation)
    view = view[(..., *(slice(o) for o in out))]
    best = np.argmax(view.reshape(*x.shape[:2], int(np.prod(kernel)), *out), axis=2)  # NaN counts as greatest
    at = np.unravel_index(best, kernel)
    flat: Any = 0
    for i, size in enumerate(x.shape[2:]):
        starts = np.arange(out[i]).reshape(-1, *(1,) * (len(out) - 1 - i)) * stride[i] - padding[i]
        flat = flat * size + starts + at[i] * dilation[i]
    return flat


def adaptive_max_positions(x: Any, size: Sizes) -> Any:
    """Where the maximum of each of `size` parts of a plane stands, the first of equal ones, NaN above all."""
    height, width = x.shape[2:]
    indices = np.empty((*x.shape[:2], *size), np.int64)
    for i in range(size[0]):
        top, bottom = i * height // size[0], -(-(i + 1) * height // size[0])
        for j in range(size[1]):
            left, right = j * width // size[1], -(-(j + 1) * width // size[1])
            best = x[:, :, top:bottom, left:right].reshape(*x.shape[:2], -1).argmax(-1)
            indices[:, :, i, j] = (top + best // (right - left)) * width + left + best % (right - left)
    return indices


def trilinear(x: Any, w: Any, y: Any) -> Any:
    """Σᵢⱼ x[n, i] w[o, i, j] y[n, j]."""
    return np.sum(np.tensordot(x, w, ([1], [1])) * np.expand_dims(y, 1), axis=-1)


def take_in_planes(x: Any, kernel_size: Any, stride: Any, padding: Any, indices: Any) -> Any:
    """From each plane of x (..., height, width) the elements at `indices`."""
    planes = x.reshape(*x.shape[:-2], -1)
    picked = np.take_along_axis(planes, indices.reshape(*x.shape[:-2], -1), axis=-1)
    return picked.reshape(indices.shape)


@recorded("put_in_planes")
def put_in_planes(g: Any, shape: Sizes, indices: Any) -> Any:
    """The transpose of `take_in_planes`: added to planes of zeros at `indices`."""
    planes, size = int(np.prod(shape[:-2])), int(np.prod(shape[-2:]))
    at = indices.reshape(planes, -1) + size * np.arange(planes)[:, None]
    whole = np.bincount(at.ravel(), weights=np.asarray(g).ravel(), minlength=planes * size)
    return whole.astype(g.dtype, copy=False).reshape(shape)


@recorded("taken_in_planes")
def taken_in_planes(x: Any, indices: Any) -> Any:
    """`take_in_planes`, for the rules."""
    return take_in_planes(x, None, None, None, indices)


def average(x: Any, size: Any, rows: Any, columns: Any) -> Any:
    """Averages of windows of the planes of x; `rows` and `columns` are matrices (out, size) of weights."""
    return between(x, rows, columns)


def between(x: Any, rows: Any, columns: Any) -> Any:
    """rows · x · columnsᵀ of each plane."""
    dtype = np.dtype(getattr(x.dtype, "numpy", x.dtype))
    return np.matmul(np.matmul(rows.astype(dtype), x), columns.T.astype(dtype))


def resized(x: Any, size: Any, matrices: Any) -> Any:
    """The dimensions after the second, each multiplied by its matrix (out, size)."""
    return along_dimensions(x, matrices)


def along_dimensions(x: Any, matrices: Any) -> Any:
    """The last dimensions of x, each multiplied by its matrix."""
    dtype = np.dtype(getattr(x.dtype, "numpy", x.dtype))
    for i, matrix in enumerate(reversed(matrices)):
        turned = np.swapaxes(x, -1, -1 - i) if i else x
        turned = np.matmul(turned, matrix.T.astype(dtype))
        x = np.swapaxes(turned, -1, -1 - i) if i else turned
    return x if not isinstance(x, np.ndarray) else np.ascontiguousarray(x)


def average_weights(size: int, kernel: int, stride: int, padding: int, out: int, count_padding: bool) -> Any:
    """The matrix (out, size) that averages windows of one dimension, as sums; and how many each counts."""
    matrix, counts = np.zeros((out, size)), np.zeros(out)
    for i in range(out):
        first = i * stride - padding
        last = min(first + kernel, size + padding)
        inner = range(max(first, 0), min(last, size))
        matrix[i, list(inner)] = 1
        counts[i] = last - first if count_padding else len(inner)
    return matrix, counts


def adaptive_weights(size: int, out: int) -> Any:
    """The matrix (out, size) that averages a dimension into `out` parts."""
    matrix = np.zeros((out, size))
    for i in range(out):
        first, last = i * size // out, -(-(i + 1) * size // out)
        matrix[i, first:last] = 1 / (last - first)
    return matrix


# --- normalization


def moments(x: Any, axes: Sizes, eps: float) -> tuple[Any, Any]:
    """The mean of x over `axes`, and 1 / √(variance + eps)."""
    mean = np.mean(x, axis=axes, keepdims=True)
    centred = x - mean
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    return mean, 1 / np.sqrt(variance + eps)


def aligned(parameter: Any, shape: Sizes) -> Any:
    """A weight or bias in the shape in which it meets x; an absent one (0-d) as it is."""
    return parameter if not parameter.ndim else np.reshape(parameter, shape)


def normalize(
    x: Any, weight: Any, bias: Any, view: Sizes, axes: Sizes, shape: Sizes, eps: float, stats: Any
) -> Any:
    """(x − mean) / √(variance + eps) · weight + bias; the mean and variance of x in shape `view`, over `axes`."""
    mean, rate = stats
    out = (x.reshape(view) - mean) * rate
    if weight.ndim:
        out *= aligned(weight, shape)
    if bias.ndim:
        out += aligned(bias, shape)
    return out.reshape(x.shape)


def normalize_fixed(x: Any, weight: Any, bias: Any, shape: Sizes, stats: Any) -> Any:
    """`normalize` with statistics that do not depend on x."""
    return normalize(x, weight, bias, x.shape, (), shape, 0.0, stats)


def _standardized(x: Any, view: Sizes, axes: Sizes, eps: float, stats: Any) -> tuple[Any, Any]:
    """x as it is before the weight, and its rate; on a Tensor all is computed again, to be differentiated."""
    seen = np.reshape(x, view)
    mean, rate = stats if isinstance(x, np.ndarray) else moments(seen, axes, eps)
    return (seen - mean) * rate, rate


def normalize_x(
    g: Any, x: Any, weight: Any, view: Sizes, axes: Sizes, shape: Sizes, eps: float, stats: Any
) -> Any:
    """The gradient of x, without what moves the mean or the variance."""
    standard, rate = _standardized(x, view, axes, eps, stats)
    upstream = np.reshape(g, view) * aligned(weight, shape)
    straight = np.mean(upstream, axis=axes, keepdims=True)
    along = np.mean(upstream * standard, axis=axes, keepdims=True)
    return np.reshape((upstream - straight - standard * along) * rate, x.shape)


def normalize_weight(
    g: Any, x: Any, weight_shape: Sizes, view: Sizes, axes: Sizes, shape: Sizes, eps: float, stats: Any
) -> Any:
    """The gradient of the weight: g times the standardized x, summed to the weight's shape."""
    standard, _ = _standardized(x, view, axes, eps, stats)
    return summed_to(np.reshape(g, view) * standard, weight_shape, shape)


def summed_to(g: Any, parameter_shape: Sizes, shape: Sizes) -> Any:
    """A gradient summed to a parameter that met x in `shape`."""
    axes = tuple(i for i, n in enumerate(shape) if n == 1 and g.shape[i] != 1)
    return np.reshape(np.sum(g, axis=axes) if axes else g, parameter_shape)


# --- lookups


def look_up(weight: Any, indices: Any, padding_idx: int) -> Any:
    """The rows of `weight` at `indices`."""
    return weight[indices]


@recorded("embedding_dense")
def embedding_dense(g: Any, rows: int, indices: Any, padding_idx: int) -> Any:
    """The transpose of `look_up`: gradients added up by row; the row `padding_idx` gets none."""
    flat, values = indices.ravel(), g.reshape(-1, g.shape[-1])
    kept = flat != padding_idx
    flat, values = flat[kept], values[kept]
    whole = np.zeros((rows, g.shape[-1]), g.dtype)
    if flat.size:
        order = np.argsort(flat, kind="stable")
        used, starts = np.unique(flat[order], return_index=True)
        whole[used] = np.add.reduceat(values[order], starts, axis=0)
    return whole


def take_unpadded(x: Any, indices: Any, padding_idx: int) -> Any:
    """The rows of x at `indices`, zeros for `padding_idx`."""
    return x[indices] * np.expand_dims(np.asarray(indices != padding_idx), -1).astype(np.float32)


# --- elements of images that change places


def shuffled_pixels(x: Any, r: int) -> Any:
    """(..., C r², H, W) as (..., C, H r, W r)."""
    *lead, channels, height, width = x.shape
    n, c = len(lead), channels // (r * r)
    apart = x.reshape((*lead, c, r, r, height, width))
    turned = np.transpose(apart, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return turned.reshape((*lead, c, height * r, width * r))


def unshuffled_pixels(x: Any, r: int) -> Any:
    """(..., C, H r, W r) as (..., C r², H, W)."""
    *lead, channels, height, width = x.shape
    n = len(lead)
    apart = x.reshape((*lead, channels, height // r, r, width // r, r))
    turned = np.transpose(apart, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return turned.reshape((*lead, channels * r * r, height // r, width // r))


def shuffled_channels(x: Any, groups: int) -> Any:
    """The channels of (N, C, ...), in `groups` equal parts, taken in turn from each part."""
    n, channels, *rest = x.shape
    apart = x.reshape((n, groups, channels // groups, *rest))
    return np.swapaxes(apart, 1, 2).reshape(x.shape)
