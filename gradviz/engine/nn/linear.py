"""Linear maps, embeddings, dropout, and modules that only reshape."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import default_dtype, to_numpy
from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, new_tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn import init
from gradviz.engine.nn.module import Module
from gradviz.engine.nn.parameter import Parameter
from gradviz.engine.table import ops


def empty_parameter(*size: int, dtype: Any = None) -> Parameter:
    """A parameter whose values are set later."""
    kind = default_dtype() if dtype is None else to_numpy(dtype)
    parameter = new_tensor(np.zeros(size, kind), LEAF_EDGE, Parameter)
    parameter.unfilled = True
    return parameter


class Linear(Module):
    """x Wᵀ + b, with weights uniform within ±1/√in (PyTorch documentation, `torch.nn.Linear`)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = empty_parameter(out_features, in_features, dtype=dtype)
        self.register_parameter("bias", empty_parameter(out_features, dtype=dtype) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        init.default_(self.weight, self.bias)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class Bilinear(Module):
    """x1ᵀ W x2 + b."""

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = empty_parameter(out_features, in1_features, in2_features)
        self.register_parameter("bias", empty_parameter(out_features) if bias else None)
        bound = 1 / math.sqrt(in1_features)
        for parameter in self.parameters():
            init.uniform_(parameter, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        return F.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        sizes = f"in1_features={self.in1_features}, in2_features={self.in2_features}"
        return f"{sizes}, out_features={self.out_features}, bias={self.bias is not None}"


class Identity(Module):
    """x."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Flatten(Module):
    """The dimensions from `start_dim` to `end_dim` merged."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Tensor:
        return ops.flatten(input, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """One dimension split into several."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, unflattened_size

    def forward(self, input: Tensor) -> Tensor:
        dim = ops.checked_dim(self.dim, input.array.ndim)
        return ops.reshape(input, *input.array.shape[:dim], *self.unflattened_size, *input.array.shape[dim + 1 :])

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


class _Table(Module):
    """A table of rows. The row `padding_idx` is zeros and does not change."""

    def _make(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None, dtype: Any) -> None:
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = empty_parameter(num_embeddings, embedding_dim, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the rows anew."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.array[self.padding_idx] = 0

    def _shown(self, *settings: str) -> str:
        padding = () if self.padding_idx is None else (f"padding_idx={self.padding_idx}",)
        return ", ".join((f"{self.num_embeddings}", f"{self.embedding_dim}", *settings, *padding))


class EmbeddingBag(_Table):
    """A table of rows. Bags of rows are summed, averaged, or their maximum is taken. The row `padding_idx` does not
    count."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise NotImplementedError("gradviz's EmbeddingBag has no max_norm, scale_grad_by_freq or sparse.")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise AssertionError("padding_idx must be within num_embeddings")
        self.mode, self.include_last_offset = mode, include_last_offset
        self._make(num_embeddings, embedding_dim, padding_idx, dtype)

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        return F.embedding_bag(
            input, self.weight, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset, padding_idx=self.padding_idx,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return self._shown(f"mode={self.mode!r}")


class Embedding(_Table):
    """A table of rows, taken by index. The row `padding_idx` is zeros and does not change."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if max_norm is not None or scale_grad_by_freq or sparse:
            raise NotImplementedError("gradviz's Embedding has no max_norm, scale_grad_by_freq or sparse.")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise AssertionError("Padding_idx must be within num_embeddings")
        self._make(num_embeddings, embedding_dim, padding_idx, dtype)

    @classmethod
    def from_pretrained(cls, embeddings: Tensor, freeze: bool = True, padding_idx: int | None = None) -> Embedding:
        """A table with given rows. They are trained unless `freeze` is set."""
        module = cls(embeddings.array.shape[0], embeddings.array.shape[1], padding_idx)
        module.weight = Parameter(embeddings, requires_grad=not freeze)
        return module

    def forward(self, input: Tensor) -> Tensor:
        return F.embedding(input, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        return self._shown()


class Dropout(Module):
    """In training, set each element to 0 with probability p."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout(input, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout1d(Dropout):
    """`Dropout` of whole channels of (N, C, L)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout1d(input, self.p, self.training, self.inplace)


class Dropout2d(Dropout):
    """`Dropout` of whole channels of (N, C, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout2d(input, self.p, self.training, self.inplace)


class Dropout3d(Dropout):
    """`Dropout` of whole channels of (N, C, D, H, W)."""

    def forward(self, input: Tensor) -> Tensor:
        return F.dropout3d(input, self.p, self.training, self.inplace)


class AlphaDropout(Dropout):
    """`Dropout` that sets elements to the minimum of SELU instead of 0."""

    def forward(self, input: Tensor) -> Tensor:
        return F.alpha_dropout(input, self.p, self.training)  # never in place, as in PyTorch
