"""Windows of images: `im2col` and its transpose. An image is (N, C, *size)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided as strided

from gradviz.engine.table.kernels.row import row

Sizes = tuple[int, ...]


def windows_out(size: Sequence[int], kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """The number of windows along each dimension."""
    return tuple(
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )


def with_border(x: Any, padding: Sequence[int], value: float = 0) -> Any:
    """x with a border of `value` around its last dimensions."""
    if not any(padding):
        return x
    lead = x.ndim - len(padding)
    sizes = tuple(n + 2 * p for n, p in zip(x.shape[lead:], padding, strict=True))
    whole = np.full(x.shape[:lead] + sizes, value, x.dtype) if value else np.zeros(x.shape[:lead] + sizes, x.dtype)
    inner: Any = tuple(slice(p, p + n) for n, p in zip(x.shape[lead:], padding, strict=True))
    whole[(..., *inner)] = x
    return whole


def windows(x: Any, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """A view of the windows of x: (N, C, *kernel, *out)."""
    n = len(kernel)
    out = windows_out(x.shape[2:], kernel, stride, (0,) * n, dilation)
    steps = x.strides[2:]
    return strided(
        x,
        x.shape[:2] + kernel + out,
        x.strides[:2]
        + tuple(step * d for step, d in zip(steps, dilation, strict=True))
        + tuple(step * s for step, s in zip(steps, stride, strict=True)),
        writeable=False,
    )


@row("im2col")
def im2col(x: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """The windows of x as columns: (N, C·kernel, windows)."""
    view = windows(with_border(x, padding), kernel, stride, dilation)
    rows = x.shape[1] * int(np.prod(kernel))
    return view.reshape(x.shape[0], rows, int(np.prod(view.shape[2 + len(kernel) :])))


@row("col2im")
def col2im(columns: Any, size: Sizes, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Any:
    """The transpose of `im2col`: columns are added where they came from, (N, C, *size)."""
    n = columns.shape[0]
    channels = columns.shape[1] // int(np.prod(kernel))
    out = windows_out(size, kernel, stride, padding, dilation)
    parts = columns.reshape(n, channels, *kernel, *out)
    whole = np.zeros((n, channels, *(m + 2 * p for m, p in zip(size, padding, strict=True))), columns.dtype)
    for at in np.ndindex(*kernel):
        taken = tuple(slice(i * d, i * d + s * o, s) for i, d, s, o in zip(at, dilation, stride, out, strict=True))
        whole[(slice(None), slice(None), *taken)] += parts[(slice(None), slice(None), *at)]
    inner = tuple(slice(p, p + m) for m, p in zip(size, padding, strict=True))
    return whole[(slice(None), slice(None), *inner)]
