"""Attention."""

from __future__ import annotations

import math

import numpy as np

from gradviz.engine import ops
from gradviz.engine.tensor import Tensor, new_tensor
from gradviz.nn.functional.activation import softmax
from gradviz.nn.functional.basic import dropout, linear


def additive_mask(mask: Tensor, like: Tensor, hides: bool) -> Tensor:
    """A mask as numbers to add: −∞ where a boolean one says `hides`; a float one is taken as it is."""
    if mask.array.dtype.kind != "b":
        return mask
    kind = like.array.dtype
    return new_tensor(np.where(mask.array == hides, kind.type(-np.inf), kind.type(0)))


def _causal(scores: Tensor) -> Tensor:
    allowed = np.tril(np.ones(scores.array.shape[-2:], bool))
    return additive_mask(new_tensor(allowed), scores, hides=False)


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(q kᵀ / √d) v; a boolean mask is True where attention may go, a float one is added."""
    if enable_gqa:
        raise NotImplementedError("gradviz has no grouped-query attention: repeat the keys and values.")
    if is_causal and attn_mask is not None:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    scale = 1 / math.sqrt(query.array.shape[-1]) if scale is None else scale
    scores = ops.matmul(ops.mul(query, scale), ops.transpose(key, -2, -1))
    if is_causal:
        scores = ops.add(scores, _causal(scores))
    elif attn_mask is not None:
        scores = ops.add(scores, additive_mask(attn_mask, scores, hides=False))
    weights = dropout(softmax(scores, -1), dropout_p) if dropout_p else softmax(scores, -1)
    return ops.matmul(weights, value)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(L, N, E) as (N · heads, L, E / heads)."""
    length, batch, width = x.array.shape
    return ops.transpose(ops.reshape(x, length, batch * heads, width // heads), 0, 1)


def _mask_for_heads(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, scores: Tensor, batch: int, heads: int
) -> Tensor | None:
    """Both masks as one to add to scores (N · heads, L, S)."""
    length, source = scores.array.shape[-2:]
    mask = None if attn_mask is None else additive_mask(attn_mask, scores, hides=True)
    if mask is not None and mask.array.ndim == 3 and mask.array.shape[0] != batch * heads:
        raise RuntimeError(
            f"The shape of the 3D attn_mask is {list(mask.shape)}, but should be {[batch * heads, length, source]}."
        )
    if key_padding_mask is None:
        return mask
    padding = additive_mask(key_padding_mask, scores, hides=True)
    wide = np.repeat(padding.array.reshape(batch, 1, 1, source), heads, 1).reshape(batch * heads, 1, source)
    return new_tensor(wide) if mask is None else ops.add(mask, new_tensor(wide))


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    in_weights: tuple[Tensor, Tensor, Tensor],
    in_biases: tuple[Tensor | None, Tensor | None, Tensor | None],
    out_weight: Tensor,
    out_bias: Tensor | None,
    dropout_p: float = 0.0,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention in several heads of (L, N, E), (S, N, E), (S, N, E): output (L, N, E), weights (N, heads, L, S)."""
    length, batch, width = query.array.shape
    projected = (
        linear(x, weight, bias)
        for x, weight, bias in zip((query, key, value), in_weights, in_biases, strict=True)
    )
    q, k, v = (_split_heads(x, heads) for x in projected)
    scores = ops.bmm(ops.mul(q, 1 / math.sqrt(width // heads)), ops.transpose(k, -2, -1))
    mask = _mask_for_heads(attn_mask, key_padding_mask, scores, batch, heads)
    weights = softmax(scores if mask is None else ops.add(scores, mask), -1)
    weights = dropout(weights, dropout_p) if dropout_p else weights
    joined = ops.reshape(ops.transpose(ops.bmm(weights, v), 0, 1), length * batch, width)
    out = ops.reshape(linear(joined, out_weight, out_bias), length, batch, -1)
    return out, ops.reshape(weights, batch, heads, length, weights.array.shape[-1])
