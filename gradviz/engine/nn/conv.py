"""Convolution and its transpose as modules."""

from __future__ import annotations

from typing import Any

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn import init
from gradviz.engine.nn.functional.conv import sizes_of
from gradviz.engine.nn.linear import empty_parameter
from gradviz.engine.nn.module import Module


class _Conv(Module):
    n: int  # the number of dimensions it works over

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if in_channels % groups:
            raise ValueError("in_channels must be divisible by groups")
        if out_channels % groups:
            raise ValueError("out_channels must be divisible by groups")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                "padding_mode must be one of {'zeros', 'reflect', 'replicate', 'circular'}, but got "
                f"padding_mode='{padding_mode}'"
            )
        self.padding_mode = padding_mode
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = sizes_of(kernel_size, self.n), sizes_of(stride, self.n)
        self.dilation = sizes_of(dilation, self.n)
        self.padding = padding if isinstance(padding, str) else sizes_of(padding, self.n)
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'same', 'valid'}}")
        if padding == "same" and any(s != 1 for s in self.stride):
            raise ValueError("padding='same' is not supported for strided convolutions")
        self.weight = empty_parameter(out_channels, in_channels // groups, *self.kernel_size, dtype=dtype)
        self.register_parameter("bias", empty_parameter(out_channels, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialize the weight and the bias."""
        init.default_(self.weight, self.bias)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        if self.padding != (0,) * self.n:
            text += f", padding={self.padding}"
        if self.dilation != (1,) * self.n:
            text += f", dilation={self.dilation}"
        if self.groups != 1:
            text += f", groups={self.groups}"
        if self.bias is None:
            text += ", bias=False"
        return text if self.padding_mode == "zeros" else f"{text}, padding_mode={self.padding_mode}"

    def forward(self, input: Tensor) -> Tensor:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input, padding = F.pad(input, self._border(), self.padding_mode), 0
        convolve = (F.conv1d, F.conv2d, F.conv3d)[self.n - 1]
        return convolve(input, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _border(self) -> list[int]:
        """The widths of the border in the order of `pad`, the last dimension first."""
        if not isinstance(self.padding, str):
            return [p for p in reversed(self.padding) for _ in (0, 1)]
        totals = [d * (k - 1) * (self.padding == "same") for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        return [width for total in reversed(totals) for width in (total // 2, total - total // 2)]


class Conv1d(_Conv):
    """Convolution of (N, C, L)."""

    n = 1


class Conv2d(_Conv):
    """Convolution of (N, C, H, W)."""

    n = 2


class Conv3d(_Conv):
    """Convolution of (N, C, D, H, W)."""

    n = 3


class _ConvTranspose(Module):
    n: int  # the number of dimensions it works over

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        if in_channels % groups or out_channels % groups:
            raise ValueError("in_channels and out_channels must be divisible by groups")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = sizes_of(kernel_size, self.n), sizes_of(stride, self.n)
        self.padding, self.dilation = sizes_of(padding, self.n), sizes_of(dilation, self.n)
        self.output_padding = sizes_of(output_padding, self.n)
        self.weight = empty_parameter(in_channels, out_channels // groups, *self.kernel_size, dtype=dtype)
        self.register_parameter("bias", empty_parameter(out_channels, dtype=dtype) if bias else None)
        init.default_(self.weight, self.bias)

    def forward(self, input: Tensor, output_size: Any = None) -> Tensor:
        more = self.output_padding if output_size is None else self._padding_for(input, output_size)
        convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self.n - 1]
        settings = self.stride, self.padding, more, self.groups, self.dilation
        return convolve(input, self.weight, self.bias, *settings)

    def _padding_for(self, input: Tensor, output_size: Any) -> tuple[int, ...]:
        """The output padding for an output size. Raises ValueError where no padding gives that size."""
        wanted = tuple(output_size)[-self.n :]
        least = [
            (i - 1) * s - 2 * p + d * (k - 1) + 1
            for i, s, p, d, k in zip(
                input.array.shape[-self.n :], self.stride, self.padding, self.dilation, self.kernel_size, strict=True
            )
        ]
        more = tuple(w - n for w, n in zip(wanted, least, strict=True))
        if any(not 0 <= m < s for m, s in zip(more, self.stride, strict=True)):
            most = [n + s - 1 for n, s in zip(least, self.stride, strict=True)]
            raise ValueError(f"requested an output size of {wanted}, but valid sizes range from {least} to {most}")
        return more

    def extra_repr(self) -> str:
        none = (0,) * self.n
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += f", padding={self.padding}" * (self.padding != none)
        text += f", dilation={self.dilation}" * (self.dilation != (1,) * self.n)
        text += f", output_padding={self.output_padding}" * (self.output_padding != none)
        text += f", groups={self.groups}" * (self.groups != 1)
        return text if self.bias is not None else f"{text}, bias=False"


class ConvTranspose1d(_ConvTranspose):
    """The transpose of `Conv1d`."""

    n = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of `Conv2d`."""

    n = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of `Conv3d`."""

    n = 3


class Unfold(Module):
    """The windows of (N, C, H, W) as columns (N, C · kernel, windows)."""

    def __init__(self, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> None:
        super().__init__()
        self.kernel_size, self.dilation, self.padding, self.stride = kernel_size, dilation, padding, stride

    def forward(self, input: Tensor) -> Tensor:
        return F.unfold(input, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, dilation={self.dilation}, padding={self.padding}, stride={self.stride}"


class Fold(Unfold):
    """Columns (N, C · kernel, windows), added to an image (N, C, H, W)."""

    def __init__(
        self, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        return F.fold(input, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}, {super().extra_repr()}"
