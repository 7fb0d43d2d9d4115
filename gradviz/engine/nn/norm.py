"""Normalization as modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import default_dtype
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn import init
from gradviz.engine.nn.linear import empty_parameter
from gradviz.engine.nn.module import Module
from gradviz.engine.table import ops
from gradviz.engine.tensors.writing import overwrite


class _BatchNorm(Module):
    dims: tuple[int, ...]  # the numbers of dimensions that inputs may have

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self.register_parameter("weight", empty_parameter(num_features) if affine else None)
        self.register_parameter("bias", empty_parameter(num_features) if affine else None)
        kept = track_running_stats
        self.register_buffer("running_mean", _buffer(np.zeros(num_features)) if kept else None)
        self.register_buffer("running_var", _buffer(np.ones(num_features)) if kept else None)
        count = new_tensor(np.array(0, np.int64)) if kept else None
        self.register_buffer("num_batches_tracked", count)
        self._reset_affine()

    def _reset_affine(self) -> None:
        if self.affine:
            init.ones_(self.weight)
            if self.bias is not None:
                init.zeros_(self.bias)

    def reset_running_stats(self) -> None:
        """Forget the running mean and variance, and how many batches there were."""
        if self.track_running_stats:
            overwrite(self.running_mean, 0, "zero_")
            overwrite(self.running_var, 1, "fill_")
            overwrite(self.num_batches_tracked, 0, "zero_")

    def reset_parameters(self) -> None:
        """The same, and begin with weights of 1 and biases of 0."""
        self.reset_running_stats()
        self._reset_affine()

    def forward(self, input: Tensor) -> Tensor:
        if input.array.ndim not in self.dims:
            expected = " or ".join(f"{n}D" for n in self.dims)
            raise ValueError(f"expected {expected} input (got {input.array.ndim}D input)")
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats:
            count = self.num_batches_tracked
            overwrite(count, count.array + 1, "add_")
            if self.momentum is None:
                momentum = 1.0 / float(count.array)
        by_batch = self.training or not self.track_running_stats
        return F.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, by_batch, momentum, self.eps
        )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


def _buffer(array: Any) -> Tensor:
    return new_tensor(array.astype(default_dtype()))


class BatchNorm1d(_BatchNorm):
    """Normalize each channel of (N, C) or (N, C, L) over the batch."""

    dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalize each channel of (N, C, H, W) over the batch."""

    dims = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalize each channel of (N, C, D, H, W) over the batch."""

    dims = (5,)


class _InstanceNorm(_BatchNorm):
    """Normalize each channel of each sample."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: Tensor) -> Tensor:
        unbatched = input.array.ndim == self.dims[0] - 1
        if input.array.ndim not in self.dims and not unbatched:
            raise ValueError(f"expected {self.dims[0] - 1}D or {self.dims[0]}D input (got {input.array.ndim}D input)")
        by_itself = self.training or not self.track_running_stats
        batch = ops.unsqueeze(input, 0) if unbatched else input
        out = F.instance_norm(
            batch, self.running_mean, self.running_var, self.weight, self.bias, by_itself,
            0.0 if self.momentum is None else self.momentum, self.eps,
        )  # fmt: skip
        return ops.squeeze(out, 0) if unbatched else out


class InstanceNorm1d(_InstanceNorm):
    """Normalize each channel of each sample of (N, C, L)."""

    dims = (3,)


class InstanceNorm2d(_InstanceNorm):
    """Normalize each channel of each sample of (N, C, H, W)."""

    dims = (4,)


class InstanceNorm3d(_InstanceNorm):
    """Normalize each channel of each sample of (N, C, D, H, W)."""

    dims = (5,)


class LocalResponseNorm(Module):
    """x / (k + alpha · the mean square of `size` neighbouring channels)^beta."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, input: Tensor) -> Tensor:
        return F.local_response_norm(input, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class LayerNorm(Module):
    """Normalize over the last dimensions."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        super().__init__()
        single = isinstance(normalized_shape, int)
        self.normalized_shape: tuple[int, ...] = (
            (normalized_shape,) if single else tuple(normalized_shape)  # type: ignore[arg-type, assignment]
        )
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter("weight", empty_parameter(*self.normalized_shape) if elementwise_affine else None)
        has_bias = elementwise_affine and bias
        self.register_parameter("bias", empty_parameter(*self.normalized_shape) if has_bias else None)
        if elementwise_affine:
            init.ones_(self.weight)
            if self.bias is not None:
                init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}, "
            f"bias={self.bias is not None}"
        )


class RMSNorm(Module):
    """Divide by the root of the mean square over the last dimensions."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None, elementwise_affine: bool = True
    ) -> None:
        super().__init__()
        single = isinstance(normalized_shape, int)
        self.normalized_shape: tuple[int, ...] = (
            (normalized_shape,) if single else tuple(normalized_shape)  # type: ignore[arg-type, assignment]
        )
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter("weight", empty_parameter(*self.normalized_shape) if elementwise_affine else None)
        if elementwise_affine:
            init.ones_(self.weight)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Normalize each group of channels of (N, C, ...)."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError("num_channels must be divisible by num_groups")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self.register_parameter("weight", empty_parameter(num_channels) if affine else None)
        self.register_parameter("bias", empty_parameter(num_channels) if affine else None)
        if affine:
            init.ones_(self.weight)
            if self.bias is not None:
                init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}, "
            f"bias={self.bias is not None}"
        )
