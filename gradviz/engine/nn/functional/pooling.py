"""Pooling: the maximum or the mean of windows.

Sizes are one number, or one for each dimension. `stride` is the size of the window by default.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn.functional.conv import sizes_of
from gradviz.engine.table import kernels, ops
from gradviz.engine.table.derivatives import TABLE


def _out_sizes(size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool) -> tuple:
    """The number of windows. With `ceil_mode` a window may end outside."""
    for k, p in zip(kernel, padding, strict=True):
        if p > k // 2:
            raise RuntimeError(f"pad should be at most half of effective kernel size, but got pad={p}, kernel_size={k}")
    out = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil_mode else room // s) + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        if count < 1:
            raise RuntimeError(f"Given input size: {list(size)}. Output size is too small")
        out.append(count)
    return tuple(out)


def _batched(x: Tensor, n: int, name: str) -> tuple[Tensor, bool]:
    """x with a batch dimension, and whether it had one."""
    if x.array.ndim == n + 1:
        return ops.unsqueeze(x, 0), False
    if x.array.ndim != n + 2:
        raise RuntimeError(f"{name}: Expected {n + 1}D or {n + 2}D input, but got {list(x.shape)}")
    return x, True


def _in_batches(x: Tensor, name: str) -> np.ndarray:
    """The array of images (N, C, H, W), or of one image (C, H, W), as (N, C, H, W)."""
    if x.array.ndim not in (3, 4):
        raise RuntimeError(f"{name}: Expected 3D or 4D input, but got {list(x.shape)}")
    return x.array.reshape(-1, *x.array.shape[-3:])


def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, H, W). Of ties, the first gets the gradient."""
    kernel = sizes_of(kernel_size, 2)
    stride = kernel if stride is None or stride in ([], ()) else sizes_of(stride, 2)
    padding, dilation = sizes_of(padding, 2), sizes_of(dilation, 2)
    batches = _in_batches(x, "max_pool2d")
    out = _out_sizes(batches.shape[2:], kernel, stride, padding, dilation, ceil_mode)
    indices = kernels.max_positions(batches, kernel, stride, padding, dilation, out)
    indices = indices.reshape(*x.array.shape[:-2], *out)
    row = "max_pool2d_with_indices" if return_indices else "max_pool2d"
    return apply(TABLE[row], (x,), (kernel, stride, padding, indices))


def _without_height(found: Any) -> Any:
    """A result of pooling in two dimensions, or it and its indices, without the first of them."""
    if isinstance(found, tuple):
        return tuple(ops.squeeze(part, -2) for part in found)
    return ops.squeeze(found, -2)


def max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of each window of (N, C, L)."""
    kernel = sizes_of(kernel_size, 1)
    stride = kernel if stride is None else sizes_of(stride, 1)
    (p,), (d,) = sizes_of(padding, 1), sizes_of(dilation, 1)
    wide = ops.unsqueeze(x, -2)
    found = max_pool2d(wide, (1, *kernel), (1, *stride), (0, p), (1, d), ceil_mode, return_indices)
    return _without_height(found)


def avg_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window of (N, C, H, W)."""
    kernel = sizes_of(kernel_size, 2)
    stride = kernel if stride is None or stride in ([], ()) else sizes_of(stride, 2)
    padding = sizes_of(padding, 2)
    x, had_batch = _batched(x, 2, "avg_pool2d")
    out = _out_sizes(x.array.shape[2:], kernel, stride, padding, (1, 1), ceil_mode)
    rows, columns = (
        kernels.average_weights(x.array.shape[2 + i], kernel[i], stride[i], padding[i], out[i], count_include_pad)
        for i in (0, 1)
    )
    if divisor_override is None:
        weights = rows[0] / rows[1][:, None], columns[0] / columns[1][:, None]
    else:
        weights = rows[0] / divisor_override, columns[0]
    pooled = apply(TABLE["avg_pool2d"], (x,), (kernel, *weights))
    return pooled if had_batch else ops.squeeze(pooled, 0)


def avg_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """The mean of each window of (N, C, L)."""
    kernel = sizes_of(kernel_size, 1)
    stride = kernel if stride is None else sizes_of(stride, 1)
    (p,) = sizes_of(padding, 1)
    wide = ops.unsqueeze(x, -2)
    pooled = avg_pool2d(wide, (1, *kernel), (1, *stride), (0, p), ceil_mode, count_include_pad)
    return ops.squeeze(pooled, -2)


def adaptive_avg_pool2d(x: Tensor, output_size: Any) -> Tensor:
    """The means of `output_size` parts of (N, C, H, W). None keeps a size."""
    given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    if x.array.ndim not in (3, 4) or len(given) != 2:
        raise RuntimeError(f"adaptive_avg_pool2d: Expected 3D or 4D input and two sizes, got {list(x.shape)}")
    size = tuple(n if wanted is None else wanted for n, wanted in zip(x.array.shape[-2:], given, strict=True))
    if size == (1, 1):
        return ops.mean(x, (-1, -2), True)
    weights = [kernels.adaptive_weights(n, out) for n, out in zip(x.array.shape[-2:], size, strict=True)]
    return apply(TABLE["adaptive_avg_pool2d"], (x,), (size, *weights))


def adaptive_avg_pool1d(x: Tensor, output_size: Any) -> Tensor:
    """The means of `output_size` parts of (N, C, L)."""
    (size,) = sizes_of(output_size, 1)
    return ops.squeeze(adaptive_avg_pool2d(ops.unsqueeze(x, -2), (1, size)), -2)


def adaptive_max_pool2d(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of `output_size` parts of (N, C, H, W). None keeps a size."""
    given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size, output_size)
    batches = _in_batches(x, "adaptive_max_pool2d")
    size = tuple(n if wanted is None else wanted for n, wanted in zip(x.array.shape[-2:], given, strict=True))
    indices = kernels.adaptive_max_positions(batches, size).reshape(*x.array.shape[:-2], *size)
    row = "adaptive_max_pool2d_with_indices" if return_indices else "adaptive_max_pool2d"
    return apply(TABLE[row], (x,), (size, indices))


def adaptive_max_pool1d(x: Tensor, output_size: Any, return_indices: bool = False) -> Any:
    """The maxima of `output_size` parts of (N, C, L)."""
    (size,) = sizes_of(output_size, 1)
    return _without_height(adaptive_max_pool2d(ops.unsqueeze(x, -2), (1, size), return_indices))


def lp_pool2d(x: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
    """The p-norm of each window of (N, C, H, W). p is `norm_type`."""
    kernel = sizes_of(kernel_size, 2)
    means = avg_pool2d(ops.pow(x, norm_type), kernel, stride, 0, ceil_mode)
    sums = ops.mul(ops.mul(ops.functions["sign"](means), ops.relu(ops.abs_(means))), kernel[0] * kernel[1])
    return ops.pow(sums, 1 / norm_type)
