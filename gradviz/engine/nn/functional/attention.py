"""Attention."""

from __future__ import annotations

import math

import numpy as np

from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.nn.functional.activation import softmax
from gradviz.engine.nn.functional.basic import dropout, linear
from gradviz.engine.table import ops


def additive_mask(mask: Tensor, like: Tensor, hides: bool) -> Tensor:
    """A mask of numbers to add: −∞ where a bool mask is `hides`. A float mask is returned as it is."""
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
    """softmax(q kᵀ / √d) v, for q (..., L, d), k (..., S, d) and v (..., S, e).

    A bool mask is True where attention is allowed; a float mask is added to the scores. A query that may not attend
    to anything gets 0. PyTorch can compute all of it in one kernel, and then has one node for it."""
    if enable_gqa:
        raise NotImplementedError("gradviz has no grouped-query attention: repeat the keys and values.")
    if is_causal and attn_mask is not None:
        raise RuntimeError("Explicit attn_mask should not be set when is_causal=True")
    root = math.sqrt(1 / math.sqrt(query.array.shape[-1]) if scale is None else scale)
    scores = ops.matmul(ops.mul_number(query, root), ops.mul_number(ops.transpose(key, -2, -1), root))
    if is_causal:
        scores = ops.add(scores, _causal(scores))
    elif attn_mask is not None:
        scores = ops.add(scores, additive_mask(attn_mask, scores, hides=False))
    weights = ops.safe_softmax(scores, -1)
    return ops.matmul(dropout(weights, dropout_p) if dropout_p else weights, value)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    """(L, N, E) as (N · heads, L, E / heads)."""
    length, batch, width = x.array.shape
    return ops.transpose(ops.view(x, length, batch * heads, width // heads), 0, 1)


def _mask_for_heads(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, scores: tuple[int, int, int], like: Tensor
) -> Tensor | None:
    """Both masks as one mask to add to the scores (N · heads, L, S)."""
    n, _, source = scores
    mask = None if attn_mask is None else additive_mask(attn_mask, like, hides=True)
    if mask is not None and mask.array.ndim == 3 and mask.array.shape[0] != n:
        raise RuntimeError(f"The shape of the 3D attn_mask is {list(mask.shape)}, but should be {list(scores)}.")
    if key_padding_mask is None:
        return mask
    padding = additive_mask(key_padding_mask, like, hides=True).array
    wide = np.repeat(padding[:, None, None], n // len(padding), 1).reshape(n, 1, source)
    return new_tensor(wide) if mask is None else ops.add(mask, new_tensor(wide))


def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    heads: int,
    out_weight: Tensor,
    out_bias: Tensor | None,
    dropout_p: float = 0.0,
    key_padding_mask: Tensor | None = None,
    attn_mask: Tensor | None = None,
    need_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention with several heads on projected queries (L, N, E), keys (S, N, E) and values (S, N, E).

    Returns the output (L, N, E), and the weights (N, heads, L, S) where they are asked for."""
    (length, batch, width), source = query.array.shape, key.array.shape[0]
    q, k, v = (_split_heads(x, heads) for x in (query, key, value))
    mask = _mask_for_heads(attn_mask, key_padding_mask, (batch * heads, length, source), query)
    if not need_weights:
        q, k, v = (ops.view(x, batch, heads, -1, width // heads) for x in (q, k, v))
        by_causality = is_causal and key_padding_mask is None
        if mask is not None and mask.array.ndim == 3:
            mask = ops.view(mask, batch, heads, -1, source)
        mixed = scaled_dot_product_attention(q, k, v, None if by_causality else mask, dropout_p, by_causality)
        joined = ops.reshape(ops.permute(mixed, 2, 0, 1, 3), length * batch, width)
        return ops.view(linear(joined, out_weight, out_bias), length, batch, -1), None
    scaled, turned = ops.mul(q, math.sqrt(1 / (width // heads))), ops.transpose(k, -2, -1)
    scores = ops.bmm(scaled, turned) if mask is None else ops.baddbmm(mask, scaled, turned)
    weights = softmax(scores, -1)
    weights = dropout(weights, dropout_p) if dropout_p else weights
    joined = ops.reshape(ops.transpose(ops.bmm(weights, v), 0, 1), length * batch, width)
    out = ops.view(linear(joined, out_weight, out_bias), length, batch, -1)
    return out, ops.view(weights, batch, heads, length, source)
