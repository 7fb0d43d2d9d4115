"""The Transformer (Vaswani et al. 2017): encoder, decoder, and both."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.core.tensor import Tensor
from gradviz.engine.nn import functional as F
from gradviz.engine.nn import init
from gradviz.engine.nn.attention import MultiheadAttention
from gradviz.engine.nn.container import ModuleList
from gradviz.engine.nn.linear import Dropout, Linear
from gradviz.engine.nn.module import Module
from gradviz.engine.nn.norm import LayerNorm
from gradviz.engine.table import ops
from gradviz.engine.tensors.creation import full


class _Layer(Module):
    """What encoder and decoder layers share: self-attention and two Linears."""

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if activation not in ("relu", "gelu") and not callable(activation):
            raise RuntimeError(f"activation should be relu/gelu, not {activation}")
        attention = [
            MultiheadAttention(d_model, nhead, dropout, bias, batch_first=batch_first) for _ in self.attentions
        ]
        for name, module in zip(self.attentions, attention, strict=True):
            setattr(self, name, module)
        self.linear1 = Linear(d_model, dim_feedforward, bias)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(dim_feedforward, d_model, bias)
        self.norm_first = norm_first
        parts = range(1, len(self.attentions) + 2)
        for i in parts:
            setattr(self, f"norm{i}", LayerNorm(d_model, layer_norm_eps, bias=bias))
        for i in parts:
            setattr(self, f"dropout{i}", Dropout(dropout))
        self.activation = getattr(F, activation) if isinstance(activation, str) else activation

    attentions: tuple[str, ...]

    def _residual(self, part: int, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        """x + function(x), with dropout. The norm comes before the function, or after the sum."""
        norm, dropout = getattr(self, f"norm{part}"), getattr(self, f"dropout{part}")
        if self.norm_first:
            return ops.add(x, dropout(function(norm(x))))
        return norm(ops.add(x, dropout(function(x))))

    def _feed(self, x: Tensor) -> Tensor:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_Layer):
    """Self-attention and two Linears, each with a residual connection and a norm."""

    attentions = ("self_attn",)

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        x = self._residual(1, src, lambda x: self.self_attn(x, x, x, src_key_padding_mask, False, src_mask)[0])
        return self._residual(2, x, self._feed)


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to an encoder's `memory`, and two Linears, each with a residual connection and a
    norm."""

    attentions = ("self_attn", "multihead_attn")

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        def attend(x: Tensor) -> Tensor:
            return self.self_attn(x, x, x, tgt_key_padding_mask, False, tgt_mask)[0]

        def attend_memory(x: Tensor) -> Tensor:
            return self.multihead_attn(x, memory, memory, memory_key_padding_mask, False, memory_mask)[0]

        x = self._residual(2, self._residual(1, tgt, attend), attend_memory)
        return self._residual(3, x, self._feed)


class _Stack(Module):
    """Copies of a layer, one after another, and a final norm if one is given."""

    def __init__(self, layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(layer) for _ in range(num_layers)])
        self.num_layers, self.norm = num_layers, norm

    def _through(self, x: Tensor, *given: Any) -> Tensor:
        for layer in self.layers:
            x = layer(x, *given)
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Copies of `encoder_layer`, one after another, and a final norm if one is given.

    `enable_nested_tensor` and `mask_check` have no effect."""

    def __init__(
        self,
        encoder_layer: Module,
        num_layers: int,
        norm: Module | None = None,
        enable_nested_tensor: bool = True,
        mask_check: bool = True,
    ) -> None:
        super().__init__(encoder_layer, num_layers, norm)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        return self._through(src, mask, src_key_padding_mask)


class TransformerDecoder(_Stack):
    """Copies of `decoder_layer`, one after another, and a final norm if one is given."""

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__(decoder_layer, num_layers, norm)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        return self._through(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)


class Transformer(Module):
    """An encoder of the source, and a decoder of the target that attends to it."""

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        settings = (dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias)

        if custom_encoder is None:
            layer = TransformerEncoderLayer(d_model, nhead, *settings)
            custom_encoder = TransformerEncoder(layer, num_encoder_layers, norm())
        if custom_decoder is None:
            decoder_layer = TransformerDecoderLayer(d_model, nhead, *settings)
            custom_decoder = TransformerDecoder(decoder_layer, num_decoder_layers, norm())
        self.encoder, self.decoder = custom_encoder, custom_decoder
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        src_mask: Tensor | None = None,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        tgt_key_padding_mask: Tensor | None = None,
        memory_key_padding_mask: Tensor | None = None,
        src_is_causal: bool | None = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        if src.shape[-1] != self.d_model or tgt.shape[-1] != self.d_model:
            raise RuntimeError("the feature number of src and tgt must be equal to d_model")
        memory = self.encoder(src, src_mask, src_key_padding_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)

    @staticmethod
    def generate_square_subsequent_mask(sz: int, device: Any = None, dtype: Any = None) -> Tensor:
        """A mask (sz, sz) that hides later elements: −inf above the diagonal, 0 elsewhere."""
        return ops.triu(full((sz, sz), -np.inf, dtype=dtype, device=device), 1)
