"""Attention as modules."""

from __future__ import annotations

from typing import Any

from gradviz.engine import ops
from gradviz.engine.tensor import Tensor
from gradviz.nn import init
from gradviz.nn.functional.attention import multi_head_attention
from gradviz.nn.linear import Linear, empty_parameter
from gradviz.nn.module import Module


class NonDynamicallyQuantizableLinear(Linear):
    """`Linear`, by the name that PyTorch prints for the last one in attention."""


class MultiheadAttention(Module):
    """Attention in several heads (Vaswani et al. 2017)."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
    ) -> None:
        super().__init__()
        if add_bias_kv or add_zero_attn:
            raise NotImplementedError("gradviz's MultiheadAttention has no add_bias_kv and no add_zero_attn.")
        if embed_dim <= 0 or num_heads <= 0 or embed_dim % num_heads:
            raise AssertionError("embed_dim must be divisible by num_heads")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.batch_first, self.head_dim = batch_first, embed_dim // num_heads
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        self._same_width = self.kdim == embed_dim and self.vdim == embed_dim
        self._register_weights(bias)
        self.out_proj = NonDynamicallyQuantizableLinear(embed_dim, embed_dim, bias=bias)
        self._draw()

    def _register_weights(self, bias: bool) -> None:
        e = self.embed_dim
        apart = {"q_proj_weight": (e, e), "k_proj_weight": (e, self.kdim), "v_proj_weight": (e, self.vdim)}
        if self._same_width:
            self.in_proj_weight = empty_parameter(3 * e, e)
        for name, size in apart.items():
            self.register_parameter(name, None if self._same_width else empty_parameter(*size))
        if not self._same_width:
            self.register_parameter("in_proj_weight", None)
        self.register_parameter("in_proj_bias", empty_parameter(3 * e) if bias else None)

    def _draw(self) -> None:
        for name, parameter in self._parameters.items():
            if parameter is not None and name.endswith("weight"):
                init.xavier_uniform_(parameter)
        if self.in_proj_bias is not None:
            init.zeros_(self.in_proj_bias)
            init.zeros_(self.out_proj.bias)

    def _weights(self) -> tuple[Any, Any]:
        """Weights and biases of queries, keys and values."""
        e = self.embed_dim
        parts = [slice(0, e), slice(e, 2 * e), slice(2 * e, None)]
        bias = self.in_proj_bias
        biases = (None,) * 3 if bias is None else tuple(ops.getitem(bias, part) for part in parts)
        if not self._same_width:
            return (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight), biases
        return tuple(ops.getitem(self.in_proj_weight, part) for part in parts), biases

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        if query.array.ndim == 2:
            return self._unbatched(
                query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights
            )
        if query.array.ndim != 3:
            raise AssertionError(
                f"query should be unbatched 2D or batched 3D tensor but received {query.array.ndim}-D"
            )
        if self.batch_first:
            query, key, value = (ops.transpose(x, 0, 1) for x in (query, key, value))
        weights, biases = self._weights()
        out, attention = multi_head_attention(
            query, key, value, self.num_heads, weights, biases, self.out_proj.weight, self.out_proj.bias,
            self.dropout if self.training else 0.0, key_padding_mask, attn_mask,
        )  # fmt: skip
        out = ops.transpose(out, 0, 1) if self.batch_first else out
        if not need_weights:
            return out, None
        return out, ops.mean(attention, 1) if average_attn_weights else attention

    def _unbatched(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None, *rest: Any
    ) -> Any:
        batch = 0 if self.batch_first else 1
        padding = None if padding is None else ops.unsqueeze(padding, 0)
        need_weights, attn_mask, average = rest
        query, key, value = (ops.unsqueeze(x, batch) for x in (query, key, value))
        out, attention = self.forward(query, key, value, padding, need_weights, attn_mask, average)
        return ops.squeeze(out, batch), None if attention is None else ops.squeeze(attention, 0)
