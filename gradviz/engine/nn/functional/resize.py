"""Resizing images, and exchanging pixels for channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn.functional.pooling import adaptive_avg_pool1d, adaptive_avg_pool2d
from gradviz.engine.table.derivatives import TABLE

_MODES = {("nearest", n): f"upsample_nearest{n}d" for n in (1, 2, 3)}
_MODES |= {("linear", 1): "upsample_linear1d", ("bilinear", 2): "upsample_bilinear2d"}
_MODES |= {("trilinear", 3): "upsample_trilinear3d", ("bicubic", 2): "upsample_bicubic2d"}
_MODES |= {("nearest-exact", n): f"upsample_nearest_exact{n}d" for n in (1, 2, 3)}


def interpolate(
    x: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize (N, C, ...) to `size`, or by `scale_factor`.

    The mode is nearest, nearest-exact, linear, bilinear, bicubic, trilinear or area."""
    dims = x.array.ndim - 2
    if antialias:
        raise NotImplementedError("gradviz does not support interpolate(antialias=True)")
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ValueError(
            "align_corners option can only be set with the interpolating modes: linear | bilinear | bicubic | trilinear"
        )
    wanted, scales = _wanted(x.array.shape[2:], size, scale_factor, recompute_scale_factor)
    if mode == "area" and dims in (1, 2):
        return adaptive_avg_pool1d(x, wanted) if dims == 1 else adaptive_avg_pool2d(x, wanted)
    if (mode, dims) not in _MODES:
        raise NotImplementedError(f"gradviz does not interpolate {dims + 2}-dimensional inputs by {mode!r}")
    matrices = tuple(
        _matrix(n, out, mode, scale, bool(align_corners))
        for n, out, scale in zip(x.array.shape[2:], wanted, scales, strict=True)
    )
    return apply(TABLE[_MODES[mode, dims]], (x,), (wanted, matrices))


def _wanted(
    shape: tuple[int, ...], size: Any, scale_factor: Any, recompute: bool | None
) -> tuple[tuple[int, ...], list[float | None]]:
    """The new sizes, and the scale factors where they and not the sizes determine the positions."""
    if (size is None) == (scale_factor is None):
        either = "only one of" if size is not None else "either"
        raise ValueError(f"{either} size or scale_factor should be defined")
    given = size if size is not None else scale_factor
    parts = list(given) if isinstance(given, (tuple, list)) else [given] * len(shape)
    if len(parts) != len(shape):
        raise ValueError(
            f"Input and output must have the same number of spatial dimensions, but got input with spatial "
            f"dimensions of {list(shape)} and output size of {given}"
        )
    if size is not None:
        return tuple(int(n) for n in parts), [None] * len(shape)
    wanted = tuple(int(np.floor(n * s)) for n, s in zip(shape, parts, strict=True))
    return wanted, [None] * len(shape) if recompute else [float(s) for s in parts]


def _matrix(n: int, out: int, mode: str, scale: float | None, align_corners: bool) -> np.ndarray:
    """The matrix (out, n) that resizes one dimension."""
    matrix = np.zeros((out, n))
    step = n / out if scale is None else 1 / scale
    i = np.arange(out)
    if mode.startswith("nearest"):
        place = np.float32(step) * (i + 0.5 if mode == "nearest-exact" else i)
        matrix[i, np.minimum(np.floor(place).astype(int), n - 1)] = 1
        return matrix
    if align_corners:
        place = i * ((n - 1) / (out - 1) if out > 1 else 0.0)
    else:
        place = (i + 0.5) * step - 0.5
    if mode == "bicubic":
        return _cubic(matrix, place, n)
    place = np.maximum(place, 0)
    low = np.minimum(np.floor(place).astype(int), n - 1)
    np.add.at(matrix, (i, low), 1 - (place - low))
    np.add.at(matrix, (i, np.minimum(low + 1, n - 1)), place - low)
    return matrix


def _cubic(matrix: np.ndarray, place: np.ndarray, n: int) -> np.ndarray:
    """The kernel of cubic convolution with a = −0.75 (Keys 1981), as in PyTorch."""
    a = -0.75
    low = np.floor(place).astype(int)
    for offset in (-1, 0, 1, 2):
        t = np.abs(place - (low + offset))
        near = ((a + 2) * t - (a + 3)) * t * t + 1
        far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
        np.add.at(matrix, (np.arange(len(place)), np.clip(low + offset, 0, n - 1)), np.where(t <= 1, near, far))
    return matrix


def pixel_shuffle(x: Tensor, upscale_factor: int) -> Tensor:
    """(N, C r², H, W) as (N, C, H r, W r)."""
    channels = x.array.shape[-3]
    r = upscale_factor
    if channels % (r * r):
        raise RuntimeError(
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            f"upscale_factor, but input.size(-3)={channels} is not divisible by {r * r}"
        )
    return apply(TABLE["pixel_shuffle"], (x,), (r,))


def pixel_unshuffle(x: Tensor, downscale_factor: int) -> Tensor:
    """(N, C, H r, W r) as (N, C r², H, W)."""
    height, width = x.array.shape[-2:]
    r = downscale_factor
    if height % r or width % r:
        raise RuntimeError(
            f"pixel_unshuffle expects height and width to be divisible by downscale_factor, but got {height} and "
            f"{width} with {r}"
        )
    return apply(TABLE["pixel_unshuffle"], (x,), (r,))


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """The channels of (N, C, ...), in `groups` equal parts, taken in turn from each part."""
    channels = x.array.shape[1]
    if channels % groups:
        raise RuntimeError(
            f"Number of channels must be divisible by groups. Got {channels} channels and {groups} groups."
        )
    return apply(TABLE["channel_shuffle"], (x,), (groups,))
