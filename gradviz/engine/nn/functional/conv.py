"""Convolution, and windows as columns.

`stride`, `padding` and `dilation` are one number, or one for each dimension.
"""

from __future__ import annotations

from typing import Any

from gradviz.engine.core.apply import apply, constant
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn.functional.padding import pad
from gradviz.engine.table import kernels, ops
from gradviz.engine.table.derivatives import TABLE


def sizes_of(value: Any, n: int) -> tuple[int, ...]:
    """A number for each of n dimensions, from one number or a sequence of n. Raises ValueError for anything else."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,) * n
    if len(given) == 1:
        given *= n
    if len(given) != n or not all(isinstance(i, int) for i in given):
        raise ValueError(f"expected one whole number or {n} of them, got {value!r}")
    return given


def _convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, groups: int, n: int
) -> Tensor:
    """Convolution over the last n dimensions. An input without a batch becomes a batch of one."""
    stride, dilation = sizes_of(stride, n), sizes_of(dilation, n)
    if x.array.ndim == n + 1:
        batch = ops.unsqueeze(x, 0)
        return ops.squeeze(_convolve(batch, weight, bias, stride, padding, dilation, groups, n), 0)
    _check(x, weight, bias, groups, n)
    if isinstance(padding, str):
        x, padding = _padded_by_name(x, weight, padding, stride, dilation, n)
    padding = sizes_of(padding, n)
    out = kernels.windows_out(x.array.shape[2:], weight.array.shape[2:], stride, padding, dilation)
    if min(out) < 1:
        raise RuntimeError(
            f"Calculated padded input size per channel: ({_by(x.array.shape[2:], padding)}). Kernel size: "
            f"({' x '.join(map(str, weight.array.shape[2:]))}). Kernel size can't be greater than actual input size"
        )
    bias = constant(0.0, x.array) if bias is None else bias
    return apply(TABLE["convolution"], (x, weight, bias), (stride, padding, dilation, groups))


def _by(size: tuple[int, ...], padding: tuple[int, ...]) -> str:
    return " x ".join(str(n + 2 * p) for n, p in zip(size, padding, strict=True))


def _padded_by_name(
    x: Tensor, weight: Tensor, padding: str, stride: tuple, dilation: tuple, n: int
) -> tuple[Tensor, tuple[int, ...]]:
    """The padding for "valid" and "same". Where it is uneven, x is padded at its end."""
    if padding == "valid":
        return x, (0,) * n
    if padding != "same":
        raise RuntimeError(f"Invalid padding string: '{padding}'")
    if any(s != 1 for s in stride):
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    totals = [d * (k - 1) for d, k in zip(dilation, weight.array.shape[2:], strict=True)]
    if any(total % 2 for total in totals):
        x = pad(x, [width for total in reversed(totals) for width in (0, total % 2)])
    return x, tuple(total // 2 for total in totals)


def _check(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int, n: int) -> None:
    if x.array.ndim != n + 2 or weight.array.ndim != n + 2:
        raise RuntimeError(
            f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to conv{n}d, but got input of size: "
            f"{list(x.shape)}"
        )
    if weight.array.shape[0] % groups:
        raise RuntimeError(
            f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0, but got "
            f"weight of size {list(weight.shape)} instead"
        )
    channels = weight.array.shape[1] * groups
    if x.array.shape[1] != channels:
        raise RuntimeError(
            f"Given groups={groups}, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{channels} channels, but got {x.array.shape[1]} channels instead"
        )
    for other, name in ((weight, "weight"), (bias, "bias")):
        if other is not None and other.array.dtype != x.array.dtype:
            raise RuntimeError(
                f"Input type ({x.dtype}) and {name} type ({other.dtype}) should be the same. "
                "Convert one of them with .to()."
            )


def conv1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of (N, C, L) with a weight (out, C / groups, k)."""
    return _convolve(x, weight, bias, stride, padding, dilation, groups, 1)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of (N, C, H, W) with a weight (out, C / groups, kH, kW)."""
    return _convolve(x, weight, bias, stride, padding, dilation, groups, 2)


def conv3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolution of (N, C, D, H, W) with a weight (out, C / groups, kD, kH, kW)."""
    return _convolve(x, weight, bias, stride, padding, dilation, groups, 3)


def _convolve_transposed(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
    n: int,
) -> Tensor:
    """The transpose of a convolution over the last n dimensions. An input without a batch becomes a batch of one."""
    stride, padding, dilation = (sizes_of(v, n) for v in (stride, padding, dilation))
    more = sizes_of(output_padding, n)
    if x.array.ndim == n + 1:
        batch = ops.unsqueeze(x, 0)
        return ops.squeeze(_convolve_transposed(batch, weight, bias, stride, padding, more, groups, dilation, n), 0)
    if x.array.ndim != n + 2 or weight.array.ndim != n + 2 or x.array.shape[1] != weight.array.shape[0]:
        raise RuntimeError(
            f"Given transposed=1, weight of size {list(weight.shape)}, expected input{list(x.shape)} to have "
            f"{weight.array.shape[0]} channels, and {n + 1} or {n + 2} dimensions"
        )
    if x.array.shape[1] % groups:
        raise RuntimeError(f"Given groups={groups}, expected weight to be divisible by {groups} at dimension 0")
    if any(m >= max(s, d) for m, s, d in zip(more, stride, dilation, strict=True)):
        raise RuntimeError("output padding must be smaller than either stride or dilation")
    size = tuple(
        (i - 1) * s - 2 * p + d * (k - 1) + m + 1
        for i, k, s, p, d, m in zip(
            x.array.shape[2:], weight.array.shape[2:], stride, padding, dilation, more, strict=True
        )
    )
    bias = constant(0.0, x.array) if bias is None else bias
    return apply(TABLE["transposed_convolution"], (x, weight, bias), (size, stride, padding, dilation, groups))


def conv_transpose1d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The transpose of `conv1d`, with a weight (C, out / groups, k)."""
    return _convolve_transposed(x, weight, bias, stride, padding, output_padding, groups, dilation, 1)


def conv_transpose2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The transpose of `conv2d`, with a weight (C, out / groups, kH, kW)."""
    return _convolve_transposed(x, weight, bias, stride, padding, output_padding, groups, dilation, 2)


def conv_transpose3d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    """The transpose of `conv3d`, with a weight (C, out / groups, kD, kH, kW)."""
    return _convolve_transposed(x, weight, bias, stride, padding, output_padding, groups, dilation, 3)


def unfold(x: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The windows of (N, C, H, W) as columns (N, C · kernel, windows)."""
    if x.array.ndim != 4:
        raise RuntimeError(f"unfold takes an input (N, C, H, W), got {list(x.shape)}")
    kernel, stride, padding, dilation = (sizes_of(v, 2) for v in (kernel_size, stride, padding, dilation))
    if min(kernels.windows_out(x.array.shape[2:], kernel, stride, padding, dilation)) < 1:
        raise RuntimeError(f"unfold: no window of {kernel} fits into {list(x.shape[2:])}")
    return apply(TABLE["im2col"], (x,), (kernel, stride, padding, dilation))


def fold(x: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """Columns (N, C · kernel, windows), added to an image (N, C, H, W)."""
    size, kernel = sizes_of(output_size, 2), sizes_of(kernel_size, 2)
    stride, padding, dilation = (sizes_of(v, 2) for v in (stride, padding, dilation))
    out = kernels.windows_out(size, kernel, stride, padding, dilation)
    if x.array.ndim != 3 or x.array.shape[1] % (kernel[0] * kernel[1]) or x.array.shape[2] != out[0] * out[1]:
        raise RuntimeError(f"fold: columns of shape {list(x.shape)} do not make an image of {size}")
    return apply(TABLE["col2im"], (x,), (size, kernel, stride, padding, dilation))
