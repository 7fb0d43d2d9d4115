"""Layers as functions. See PyTorch's `torch.nn.functional`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine import ops
from gradviz.engine.ops import log_softmax, relu, sigmoid, softmax, tanh
from gradviz.engine.tensor import Tensor

__all__ = [
    "cross_entropy",
    "linear",
    "log_softmax",
    "mse_loss",
    "nll_loss",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b; weight is (out, in)."""
    if x.array.ndim == 2 and bias is not None:
        return ops.addmm(bias, x, ops.t(weight))
    product = ops.matmul(x, ops.t(weight))
    return product if bias is None else ops.add(product, bias)


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Losses as `reduction` asks: their mean, their sum, or each ("none")."""
    try:
        return {"mean": ops.mean, "sum": ops.sum, "none": lambda x: x}[reduction](losses)
    except KeyError:
        raise ValueError(f"{reduction} is not a valid value for reduction: mean, sum or none") from None


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared difference."""
    return reduced(ops.pow(ops.sub(x, target), 2), reduction)


def nll_loss(log_probabilities: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Minus the log-probability of the target class; (N, C) and (N,)."""
    rows = np.arange(len(target.array))
    return reduced(ops.neg(ops.getitem(log_probabilities, (rows, target.array))), reduction)


def cross_entropy(x: Tensor, target: Any, reduction: str = "mean") -> Tensor:
    """Minus the log of the softmax at the target class; (N, C) and (N,)."""
    return nll_loss(log_softmax(x, 1), target, reduction)
