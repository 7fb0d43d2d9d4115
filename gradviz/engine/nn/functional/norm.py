"""Normalization: over the batch, a layer, or groups of channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.engine.basics.shape_errors import check_kernel
from gradviz.engine.core.apply import apply, constant
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table import kernels, ops
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.tensors.writing import overwrite


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """x with its weight and bias. Where there is none, constants 1 and 0 without a gradient."""
    one = constant(1.0, x.array) if weight is None else weight
    return x, one, constant(0.0, x.array) if bias is None else bias


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel of (N, C, ...). In training the statistics are those of the batch, and the running
    statistics are updated. Otherwise the running statistics are used."""
    if x.array.ndim < 2:
        raise RuntimeError(f"batch_norm takes an input (N, C, ...), got {list(x.shape)}")
    axes = (0, *range(2, x.array.ndim))
    shape = (1, -1) + (1,) * (x.array.ndim - 2)
    shape = tuple(x.array.shape[1] if n == -1 else n for n in shape)
    if not training:
        if running_mean is None or running_var is None:
            raise RuntimeError("Expected running_mean and running_var to be defined when training=False")
        fixed = (
            running_mean.array.reshape(shape),
            1 / np.sqrt(running_var.array.reshape(shape) + x.array.dtype.type(eps)),
        )
        return apply(TABLE["fixed_norm"], _affine(x, weight, bias), (shape, fixed), (running_mean, running_var))
    n = x.array.size // max(x.array.shape[1], 1)
    if n <= 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {x.shape}")
    stats = kernels.moments(x.array, axes, eps)
    if running_mean is not None and running_var is not None:
        variance = 1 / stats[1] ** 2 - eps
        _follow(running_mean, stats[0], momentum)
        _follow(running_var, variance * (n / (n - 1)), momentum)
    return apply(TABLE["native_batch_norm"], _affine(x, weight, bias), (x.array.shape, axes, shape, eps, stats))


def _follow(running: Tensor, found: Any, momentum: float) -> None:
    """Move a running statistic towards that of this batch."""
    new = (1 - momentum) * running.array + momentum * found.reshape(running.array.shape)
    overwrite(running, new, "batch_norm")


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize x over its last dimensions, whose sizes are `normalized_shape`."""
    wanted = tuple(normalized_shape)
    if not wanted:
        raise RuntimeError(
            "Expected normalized_shape to be at least 1-dimensional, i.e., containing at least one element, but got "
            "normalized_shape = []"
        )
    check_kernel("LayerNormKernelImpl", x.array)
    if x.array.shape[-len(wanted) :] != wanted:
        raise RuntimeError(
            f"Given normalized_shape={list(wanted)}, expected input with shape "
            f"[*, {', '.join(map(str, wanted))}], but got input of size{list(x.shape)}"
        )
    lead = x.array.ndim - len(wanted)
    axes = tuple(range(lead, x.array.ndim))
    args = (x.array.shape, axes, (1,) * lead + wanted, eps, kernels.moments(x.array, axes, eps))
    return apply(TABLE["native_layer_norm"], _affine(x, weight, bias), args)


def group_norm(
    x: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalize each group of channels of (N, C, ...)."""
    if x.array.ndim < 2 or x.array.shape[1] % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of shape "
            f"{list(x.shape)} and num_groups={num_groups}"
        )
    n, channels = x.array.shape[:2]
    view = (n, num_groups, channels // num_groups, *x.array.shape[2:])
    axes = tuple(range(2, len(view)))
    shape = (1, num_groups, channels // num_groups) + (1,) * (len(view) - 3)
    args = (view, axes, shape, eps, kernels.moments(x.array.reshape(view), axes, eps))
    return apply(TABLE["native_group_norm"], _affine(x, weight, bias), args)


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """Divide x by the root of its mean square over its last dimensions."""
    dims = tuple(range(x.array.ndim - len(tuple(normalized_shape)), x.array.ndim))
    eps = float(np.finfo(x.array.dtype).eps) if eps is None else eps
    out = ops.mul(x, ops.rsqrt(ops.add_number(ops.mean(ops.pow(x, 2), dims, True), eps)))
    return out if weight is None else ops.mul(out, weight)


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalize each channel of each sample of (N, C, ...), or use the running statistics."""
    n, channels, *rest = x.array.shape
    if use_input_stats and int(np.prod(rest)) <= 1:
        raise ValueError(f"Expected more than 1 spatial element when training, got input size {x.shape}")

    def repeated(parameter: Tensor | None) -> Tensor | None:
        return None if parameter is None else ops.repeat(parameter, n)

    mean, var = repeated(running_mean), repeated(running_var)
    apart = ops.reshape(x, 1, n * channels, *rest)
    out = batch_norm(apart, mean, var, repeated(weight), repeated(bias), use_input_stats, momentum, eps)
    for kept, followed in ((running_mean, mean), (running_var, var)):
        if kept is not None and followed is not None and use_input_stats:
            overwrite(kept, followed.array.reshape(n, channels).mean(0), "copy_")
    return ops.reshape(out, n, channels, *rest)


def local_response_norm(x: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Tensor:
    """x / (k + alpha · the mean square of `size` neighbouring channels)^beta."""
    if x.array.ndim < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {x.array.ndim} dimensions)")
    if not x.array.size:
        return x
    channels = x.array.shape[1]
    window = np.zeros((channels, channels))
    for i in range(channels):
        window[i, max(i - size // 2, 0) : i - size // 2 + size] = 1 / size
    squares = ops.transpose(ops.mul(x, x), 1, -1)
    means = ops.transpose(ops.matmul(squares, new_tensor(window.T.astype(x.array.dtype))), 1, -1)
    return ops.div(x, ops.pow(ops.add(ops.mul(means, alpha), k), beta))
