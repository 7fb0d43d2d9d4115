"""What the rows of losses compute with. `reduction` is mean, sum or none."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine import kernels as k


def reduced(losses: Any, reduction: str) -> Any:
    """Losses as `reduction` asks."""
    if reduction == "none":
        return losses
    return np.mean(losses) if reduction == "mean" else np.sum(losses)


def part(g: Any, x: Any, reduction: str) -> Any:
    """The gradient that reaches each single loss: g, or g / n where the mean was taken."""
    return g / int(np.prod(x.shape)) if reduction == "mean" else g


def to_each(g: Any, reduction: str, axis: int) -> Any:
    """The gradient as it meets the inputs of each loss, whose classes are at `axis`."""
    return np.expand_dims(g, axis) if reduction == "none" else g


def nll(x: Any, share: Any, reduction: str) -> Any:
    """−share · x, summed over the classes (axis 1) and, unless reduction is none, over all.

    Where share is 0 the log-probability does not count, even if it is −inf."""
    losses = -np.sum(np.where(share == 0, 0, x * share), axis=1)
    return losses if reduction == "none" else np.sum(losses)


def mse(x: Any, y: Any, reduction: str) -> Any:
    """(x − y)²."""
    difference = x - y
    return reduced(difference * difference, reduction)


def huber(x: Any, y: Any, delta: float, reduction: str) -> Any:
    """(x − y)² / 2 up to a distance of delta, then straight on."""
    distance = np.abs(x - y)
    return reduced(
        np.where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta)), reduction
    )


def smooth_l1(x: Any, y: Any, beta: float, reduction: str) -> Any:
    """(x − y)² / 2β up to a distance of beta, then the distance less β/2."""
    distance = np.abs(x - y)
    return reduced(
        np.where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta), reduction
    )


def bce(x: Any, y: Any, weight: Any, reduction: str) -> Any:
    """−(y ln x + (1 − y) ln(1 − x)), the logarithms not below −100."""
    log_x, log_rest = np.maximum(np.log(x), -100), np.maximum(np.log1p(-x), -100)
    return reduced(((y - 1) * log_rest - y * log_x) * weight, reduction)


def bce_logits(x: Any, y: Any, weight: Any, pos_weight: Any, reduction: str) -> Any:
    """−(p y ln σ(x) + (1 − y) ln(1 − σ(x))), without overflow."""
    log_sigmoid = np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
    losses = (1 - y) * x - (1 + (pos_weight - 1) * y) * log_sigmoid
    return reduced(losses * weight, reduction)


def sigmoid(x: Any) -> Any:
    """σ(x), of an array or of a Tensor."""
    if isinstance(x, (np.ndarray, np.generic)):
        return k.sigmoid(x)
    from gradviz.engine.ops import sigmoid as recorded

    return recorded(x)


def logits_slope(x: Any, y: Any, pos_weight: Any) -> Any:
    """The derivative in x of each single loss."""
    return (1 - y) - (1 + (pos_weight - 1) * y) * (1 - sigmoid(x))


def target_slope(x: Any, pos_weight: Any) -> Any:
    """The derivative in y of each single loss."""
    log_sigmoid = np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
    return -x - (pos_weight - 1) * log_sigmoid
