"""Attention as modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn import init
from gradviz.engine.nn.functional.attention import multi_head_attention
from gradviz.engine.nn.linear import Linear, empty_parameter
from gradviz.engine.nn.module import Module
from gradviz.engine.table import ops


class NonDynamicallyQuantizableLinear(Linear):
    """`Linear`, with the name that PyTorch prints for the output layer of attention."""


class MultiheadAttention(Module):
    """Attention with several heads (Vaswani et al. 2017)."""

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

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values. Where they are the same tensor, one product computes them, as in PyTorch's
        `_in_projection_packed`."""
        weight, bias, e = self.in_proj_weight, self.in_proj_bias, self.embed_dim
        if self._same_width and key is value:
            if query is key:
                return _parts(F.linear(query, weight, bias), 3)
            w_q, w_kv = ops.split_with_sizes(weight, (e, 2 * e))
            b_q, b_kv = (None, None) if bias is None else ops.split_with_sizes(bias, (e, 2 * e))
            return F.linear(query, w_q, b_q), *_parts(F.linear(key, w_kv, b_kv), 2)
        apart = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        weights = ops.chunk(weight, 3) if self._same_width else apart
        biases = (None,) * 3 if bias is None else ops.chunk(bias, 3)
        q, k, v = map(F.linear, (query, key, value), weights, biases)
        return q, k, v

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
        if query.array.ndim not in (2, 3):
            raise AssertionError(f"query should be unbatched 2D or batched 3D tensor but received {query.array.ndim}-D")
        batched = query.array.ndim == 3
        if not batched:
            query, key, value = (ops.unsqueeze(x, 1) for x in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else ops.unsqueeze(key_padding_mask, 0)
        elif self.batch_first:
            query, key, value = _each_once(lambda x: ops.transpose(x, 0, 1), query, key, value)
        out, attention = multi_head_attention(
            *self._projected(query, key, value), self.num_heads, self.out_proj.weight, self.out_proj.bias,
            self.dropout if self.training else 0.0, key_padding_mask, attn_mask, need_weights, is_causal,
        )  # fmt: skip
        if not batched:
            out = ops.squeeze(out, 1)
        elif self.batch_first:
            out = ops.transpose(out, 0, 1)
        if attention is None:
            return out, None
        attention = ops.mean(attention, 1) if average_attn_weights else attention
        return out, attention if batched else ops.squeeze(attention, 0)


def _each_once(change: Callable, *tensors: Tensor) -> Any:
    """Each tensor changed by a function. A tensor that is given several times is changed once."""
    changed = {id(tensor): change(tensor) for tensor in dict.fromkeys(tensors)}
    return tuple(changed[id(tensor)] for tensor in tensors)


def _parts(x: Tensor, n: int) -> Any:
    """A projection (..., n E) split into n tensors (..., E)."""
    apart = ops.unsqueeze(ops.unflatten(x, -1, (n, x.array.shape[-1] // n)), 0)
    together = ops.contiguous(ops.squeeze(ops.transpose(apart, 0, -2), -2))
    return tuple(ops.getitem(together, i) for i in range(n))
