"""Pooling and resizing of images."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.table.kernels.row import row
from gradviz.engine.table.kernels.windows import Sizes, windows


def max_positions(x: Any, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, out: Sizes) -> Any:
    """The flat index of each window's maximum in its plane, as PyTorch's indices: (N, C, *out)."""
    need = tuple(
        max((o - 1) * s + d * (k - 1) + 1 - n - p, 0)
        for o, s, d, k, n, p in zip(out, stride, dilation, kernel, x.shape[2:], padding, strict=True)
    )
    border = [(0, 0), (0, 0), *zip(padding, need, strict=True)]
    whole = x
    if any(padding) or any(need):  # the border is less than everything, even −∞
        floats = x.dtype.kind == "f"
        low = -np.inf if floats else np.iinfo(x.dtype).min
        whole = np.pad(np.maximum(x, np.finfo(x.dtype).min) if floats else x, border, constant_values=low)
    view = windows(whole, kernel, stride, dilation)
    view = view[(..., *(slice(o) for o in out))]
    best = _last_nan_or_first_maximum(view.reshape(*x.shape[:2], int(np.prod(kernel)), *out), 2)
    at = np.unravel_index(best, kernel)
    flat: Any = 0
    for i, size in enumerate(x.shape[2:]):
        starts = np.arange(out[i]).reshape(-1, *(1,) * (len(out) - 1 - i)) * stride[i] - padding[i]
        flat = flat * size + starts + at[i] * dilation[i]
    return flat


def _last_nan_or_first_maximum(x: Any, axis: int) -> Any:
    """The index that PyTorch's kernels find: that of the last NaN, or else that of the first maximum."""
    best = np.argmax(x, axis=axis)
    if x.dtype.kind != "f" or not (nans := np.isnan(x)).any():
        return best
    last = x.shape[axis] - 1 - np.argmax(np.flip(nans, axis), axis=axis)
    return np.where(nans.any(axis), last, best)


def adaptive_max_positions(x: Any, size: Sizes) -> Any:
    """The flat index of the maximum of each of `size` parts of a plane: the first of ties, the last of NaNs."""
    height, width = x.shape[2:]
    indices = np.empty((*x.shape[:2], *size), np.int64)
    for i in range(size[0]):
        top, bottom = i * height // size[0], -(-(i + 1) * height // size[0])
        for j in range(size[1]):
            left, right = j * width // size[1], -(-(j + 1) * width // size[1])
            best = _last_nan_or_first_maximum(x[:, :, top:bottom, left:right].reshape(*x.shape[:2], -1), -1)
            indices[:, :, i, j] = (top + best // (right - left)) * width + left + best % (right - left)
    return indices


def trilinear(x: Any, w: Any, y: Any) -> Any:
    """Σᵢⱼ x[n, i] w[o, i, j] y[n, j]."""
    return np.sum(np.tensordot(x, w, ([1], [1])) * np.expand_dims(y, 1), axis=-1)


def take_in_planes(x: Any, kernel_size: Any, stride: Any, padding: Any, indices: Any) -> Any:
    """The elements at `indices` of each plane of x (..., height, width)."""
    planes = x.reshape(*x.shape[:-2], -1)
    picked = np.take_along_axis(planes, indices.reshape(*x.shape[:-2], -1), axis=-1)
    return picked.reshape(indices.shape)


def taken_with_places(x: Any, *args: Any) -> tuple[Any, Any]:
    """The elements at the indices, which come last, of each plane of x, and the indices themselves."""
    return taken_in_planes(x, args[-1]), args[-1]


@row("put_in_planes")
def put_in_planes(g: Any, shape: Sizes, indices: Any) -> Any:
    """The transpose of `take_in_planes`: elements are added at `indices` to planes of zeros."""
    planes, size = int(np.prod(shape[:-2])), int(np.prod(shape[-2:]))
    at = indices.reshape(planes, -1) + size * np.arange(planes)[:, None]
    whole = np.bincount(at.ravel(), weights=np.asarray(g).ravel(), minlength=planes * size)
    return whole.astype(g.dtype, copy=False).reshape(shape)


@row("taken_in_planes")
def taken_in_planes(x: Any, indices: Any) -> Any:
    """`take_in_planes`. Rules call it."""
    return take_in_planes(x, None, None, None, indices)


def average(x: Any, size: Any, rows: Any, columns: Any) -> Any:
    """The averages of windows of the planes of x. `rows` and `columns` are matrices (out, size) of weights."""
    return between(x, rows, columns)


def between(x: Any, rows: Any, columns: Any) -> Any:
    """rows · x · columnsᵀ for each plane."""
    dtype = np.dtype(getattr(x.dtype, "numpy", x.dtype))
    of_rows = np.swapaxes(_weighted(np.swapaxes(x, -1, -2), rows.T.astype(dtype)), -1, -2)
    return _weighted(of_rows, columns.T.astype(dtype))


def _reaches(elements: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.asarray(np.matmul(elements.astype(float), by.astype(float)) > 0)


def _weighted(x: Any, weights: np.ndarray) -> Any:
    """x times a matrix, where inf and NaN are not multiplied by the weights of 0 of other windows."""
    if not isinstance(x, np.ndarray) or np.isfinite(x).all():
        return np.matmul(x, weights)
    above, below = x == np.inf, x == -np.inf
    up = _reaches(above, weights > 0) | _reaches(below, weights < 0)
    down = _reaches(below, weights > 0) | _reaches(above, weights < 0)
    sums = np.matmul(np.where(np.isfinite(x), x, 0), weights)
    sums[up] += np.inf
    sums[down] -= np.inf
    sums[_reaches(np.isnan(x), weights != 0)] = np.nan
    return sums


def resized(x: Any, size: Any, matrices: Any) -> Any:
    """x with each dimension after the second multiplied by its matrix (out, size)."""
    return along_dimensions(x, matrices)


def along_dimensions(x: Any, matrices: Any) -> Any:
    """x with each of its last dimensions multiplied by its matrix."""
    dtype = np.dtype(getattr(x.dtype, "numpy", x.dtype))
    for i, matrix in enumerate(reversed(matrices)):
        turned = np.swapaxes(x, -1, -1 - i) if i else x
        turned = _weighted(turned, matrix.T.astype(dtype))
        x = np.swapaxes(turned, -1, -1 - i) if i else turned
    return x if not isinstance(x, np.ndarray) else np.ascontiguousarray(x)


def average_weights(size: int, kernel: int, stride: int, padding: int, out: int, count_padding: bool) -> Any:
    """The matrix (out, size) that sums windows of one dimension, and the number of elements in each window."""
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
