"""Resizing images, as modules."""

from __future__ import annotations

from typing import Any

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn.module import Module


class Upsample(Module):
    """Resize (N, C, ...) to `size`, or by `scale_factor`."""

    def __init__(
        self,
        size: Any = None,
        scale_factor: Any = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size = tuple(size) if isinstance(size, (tuple, list)) else size
        several = isinstance(scale_factor, (tuple, list))
        one = None if scale_factor is None or several else float(scale_factor)
        self.scale_factor: Any = tuple(map(float, scale_factor)) if several else one
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, input: Tensor) -> Tensor:
        how = self.mode, self.align_corners, self.recompute_scale_factor
        return F.interpolate(input, self.size, self.scale_factor, *how)

    def extra_repr(self) -> str:
        given = f"scale_factor={self.scale_factor!r}" if self.scale_factor is not None else f"size={self.size!r}"
        return f"{given}, mode={self.mode!r}"


class PixelShuffle(Module):
    """(N, C r², H, W) as (N, C, H r, W r)."""

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_shuffle(input, self.upscale_factor)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """(N, C, H r, W r) as (N, C r², H, W)."""

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, input: Tensor) -> Tensor:
        return F.pixel_unshuffle(input, self.downscale_factor)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class UpsamplingNearest2d(Upsample):
    """Resize (N, C, H, W). Each element is the nearest one."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "nearest")


class UpsamplingBilinear2d(Upsample):
    """Resize (N, C, H, W) by bilinear interpolation with aligned corners."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, "bilinear", align_corners=True)
