"""Borders around signals, images and volumes, as modules."""

from __future__ import annotations

from typing import Any

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn.module import Module


class _Pad(Module):
    """A border with given widths (left, right, top, bottom, ...), or with one width on all sides."""

    dims: int
    mode = "constant"

    def __init__(self, padding: Any) -> None:
        super().__init__()
        several = isinstance(padding, (tuple, list))
        self.padding = tuple(padding) if several else (padding,) * (2 * self.dims)

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return str(self.padding)


class _ConstantPad(_Pad):
    def __init__(self, padding: Any, value: float) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Tensor) -> Tensor:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ZeroPad1d(_Pad):
    """A border of zeros around (N, C, L)."""

    dims = 1


class ZeroPad2d(_Pad):
    """A border of zeros around (N, C, H, W)."""

    dims = 2


class ZeroPad3d(_Pad):
    """A border of zeros around (N, C, D, H, W)."""

    dims = 3


class ConstantPad1d(_ConstantPad):
    """A border of `value` around (N, C, L)."""

    dims = 1


class ConstantPad2d(_ConstantPad):
    """A border of `value` around (N, C, H, W)."""

    dims = 2


class ConstantPad3d(_ConstantPad):
    """A border of `value` around (N, C, D, H, W)."""

    dims = 3


class ReflectionPad1d(_Pad):
    """A border around (N, C, L) that mirrors the inside."""

    dims, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """A border around (N, C, H, W) that mirrors the inside."""

    dims, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """A border around (N, C, D, H, W) that mirrors the inside."""

    dims, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """A border around (N, C, L) that repeats the edge."""

    dims, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """A border around (N, C, H, W) that repeats the edge."""

    dims, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """A border around (N, C, D, H, W) that repeats the edge."""

    dims, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """A border around (N, C, L) that continues from the other side."""

    dims, mode = 1, "circular"


class CircularPad2d(_Pad):
    """A border around (N, C, H, W) that continues from the other side."""

    dims, mode = 2, "circular"


class CircularPad3d(_Pad):
    """A border around (N, C, D, H, W) that continues from the other side."""

    dims, mode = 3, "circular"
