"""Convolution, its transpose, and the gradients of both."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.table.kernels.padding import padded_with_zeros
from gradviz.engine.table.kernels.windows import Sizes, col2im, im2col, windows_out


def _grouped(columns: Any, groups: int) -> Any:
    """The columns by group: (N, groups, rows, windows)."""
    return np.reshape(columns, (columns.shape[0], groups, columns.shape[1] // groups, columns.shape[2]))


def _weight_rows(weight: Any, groups: int) -> Any:
    """The weight as one matrix for each group: (groups, out / groups, rows)."""
    out = weight.shape[0]
    return np.reshape(weight, (groups, out // groups, int(np.prod(weight.shape[1:]))))


def convolution(x: Any, weight: Any, bias: Any, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Any:
    """The convolution of x (N, C, *size) with a weight (out, C / groups, *kernel): (N, out, *windows)."""
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
    """The gradient of x: the weight of each window times its gradient, added where windows overlap."""
    n, out = g.shape[:2]
    flat = np.reshape(g, (n, groups, out // groups, int(np.prod(g.shape[2:]))))
    columns = np.matmul(np.swapaxes(_weight_rows(weight, groups), -1, -2), flat)
    columns = np.reshape(columns, (n, columns.shape[1] * columns.shape[2], columns.shape[3]))
    return col2im(columns, x_shape[2:], weight.shape[2:], stride, padding, dilation)


def convolution_weight(
    g: Any, x: Any, weight_shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """The gradient of the weight: the elements of each window times its gradient, summed over windows."""
    n, out = g.shape[:2]
    columns = im2col(x, weight_shape[2:], stride, padding, dilation)
    flat = np.reshape(g, (n, groups, out // groups, int(np.prod(g.shape[2:]))))
    products = np.matmul(flat, np.swapaxes(_grouped(columns, groups), -1, -2))
    return np.reshape(np.sum(products, axis=0), weight_shape)


def convolved(
    x: Any, weight: Any, out_shape: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """`convolution` without a bias and cut to `out_shape`. Rules call it."""
    kernel = weight.shape[2:]
    columns = _grouped(im2col(x, kernel, stride, padding, dilation), groups)
    out: Any = np.matmul(_weight_rows(weight, groups), columns)
    count = windows_out(x.shape[2:], kernel, stride, padding, dilation)
    out = np.reshape(out, (x.shape[0], weight.shape[0], *count))
    return out[(..., *(slice(n) for n in out_shape[2:]))] if tuple(count) != tuple(out_shape[2:]) else out


def transposed_convolution(
    x: Any, weight: Any, bias: Any, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Any:
    """The transpose of `convolution`, with a weight (C, out / groups, *kernel): (N, out, *size)."""
    shape = (x.shape[0], weight.shape[1] * groups, *size)
    x = with_empty_windows(x, weight.shape, size, stride, padding, dilation)
    out = convolution_x(x, weight, shape, stride, padding, dilation, groups)
    return np.ascontiguousarray(out + bias.reshape(-1, *(1,) * len(size)) if bias.ndim else out)


def with_empty_windows(x: Any, weight_shape: Sizes, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """x with zeros appended, for the windows that a larger output has room for."""
    windows = windows_out(size, weight_shape[2:], stride, padding, dilation)
    after = (0, 0, *(w - n for w, n in zip(windows, x.shape[2:], strict=True)))
    return padded_with_zeros(x, (0,) * x.ndim, after) if any(after) else x


def per_channel(g: Any, shape: Sizes, axis: int = 1) -> Any:
    """A gradient summed over all dimensions but the channels."""
    return np.reshape(np.sum(g, axis=tuple(i for i in range(g.ndim) if i != axis)), shape)
