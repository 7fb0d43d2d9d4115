"""Losses and their gradients. `reduction` is "mean", "sum" or "none"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.table.kernels.elementwise import sigmoid
from gradviz.engine.table.kernels.indexing import put_back
from gradviz.engine.table.kernels.row import raw


def reduced(losses: Any, reduction: str) -> Any:
    """The losses, their mean, or their sum."""
    if reduction == "none":
        return losses
    return np.mean(losses) if reduction == "mean" else np.sum(losses)


def nll(x: Any, target: np.ndarray, share: np.ndarray | float, reduction: str) -> Any:
    """−share · x at the target class (axis 1), and their sum unless `reduction` is "none".

    `share` is a number for each target, or one number. Where it is 0 the log-probability does not count, even if it
    is −inf. The class of an ignored target is −1."""
    picked = x[_at_classes(target)]
    if not isinstance(share, np.ndarray):
        return (picked if reduction == "none" else picked.sum()) * -share
    losses = picked * -share
    if not share.all():
        losses = np.where(share == 0, 0, losses)
    return losses if reduction == "none" else losses.sum()


def nll_back(g: Any, x_shape: tuple[int, ...], target: np.ndarray, share: np.ndarray | float) -> Any:
    """The gradient of `nll`: −share at the target class, 0 elsewhere and where the target is ignored, even if the
    upstream gradient or the share is NaN."""
    given, at = g * -share, _at_classes(target)
    if (target < 0).any():
        given = np.where(target < 0, 0, given)
    if not isinstance(given, (np.ndarray, np.generic)):
        return put_back(np.broadcast_to(given, target.shape), x_shape, at)
    gradient = np.zeros(x_shape, given.dtype)
    gradient[at] = given
    return gradient


def _at_classes(target: np.ndarray) -> tuple[np.ndarray, ...]:
    """The index of the target classes in an array that has the classes along axis 1."""
    if target.ndim == 0:
        return (target,)
    if target.ndim == 1:
        return np.arange(len(target)), target
    grid: tuple[np.ndarray, ...] = np.indices(target.shape, sparse=True)
    return grid[0], target, *grid[1:]


def mse(x: Any, y: Any, reduction: str) -> Any:
    """(x − y)²."""
    difference = x - y
    return reduced(difference * difference, reduction)


def soft_margin(x: Any, target: np.ndarray, reduction: str) -> Any:
    """ln(1 + exp(−y x))."""
    return reduced(np.log1p(np.exp(-target * x)), reduction)


def soft_margin_slope(x: Any, target: np.ndarray) -> Any:
    """The derivative of each single loss: −y σ(−y x)."""
    return -target * sigmoid(-target * x)


def _gaps(rows: Any, classes: np.ndarray, margin: float) -> tuple[Any, np.ndarray]:
    """max(0, margin − x[y] + x[i]) for each class i, and whether i is another class than the target y."""
    at = (np.arange(len(classes)), classes)
    others = np.ones(rows.shape, bool)
    others[at] = False
    return np.maximum(rows - np.expand_dims(rows[at], 1) + margin, 0), others


def _as_rows(shape: tuple[int, ...]) -> tuple[int, int]:
    return -1, shape[-1] if shape else 1


def _of_classes(weight: np.ndarray | None, classes: np.ndarray, n: int) -> Any:
    return 1 / n if weight is None else np.expand_dims(weight[classes], 1) / n


def multi_margin(x: Any, target: np.ndarray, p: int, margin: float, weight: np.ndarray | None, reduction: str) -> Any:
    """max(0, margin − x[y] + x[i])^p, summed over the classes i other than the target y, divided by their number."""
    rows, classes = x.reshape(_as_rows(x.shape)), np.atleast_1d(target)
    gaps, others = _gaps(rows, classes, margin)
    terms = gaps**p * others * _of_classes(weight, classes, rows.shape[1])
    return reduced(terms.sum(1).reshape(target.shape), reduction)


def multi_margin_back(
    slope: Callable, g: Any, x: Any, target: np.ndarray, margin: float, weight: np.ndarray | None
) -> Any:
    """The gradient of `multi_margin` from that of each row's loss. `slope` is the derivative of a gap's power."""
    rows, classes = np.reshape(x, _as_rows(x.shape)), np.atleast_1d(target)
    gaps, others = _gaps(rows, classes, margin)
    share = _of_classes(weight, classes, rows.shape[1]) * others * (raw(gaps) > 0)
    slopes = np.reshape(g, (-1, 1)) * slope(gaps, share.astype(raw(gaps).dtype))
    own = np.sum(slopes, axis=1, keepdims=True) * np.logical_not(others).astype(share.dtype)
    return np.reshape(slopes - own, x.shape)


def slope_of_gap(gaps: Any, share: Any) -> Any:
    """The derivative of each gap, times its share."""
    return share


def slope_of_square(gaps: Any, share: Any) -> Any:
    """The derivative of each squared gap, times its share."""
    return share * (2 * gaps)


def huber(x: Any, y: Any, delta: float, reduction: str) -> Any:
    """(x − y)² / 2 where |x − y| < delta, else delta · (|x − y| − delta / 2)."""
    distance = np.abs(x - y)
    return reduced(np.where(distance < delta, 0.5 * distance * distance, delta * (distance - 0.5 * delta)), reduction)


def smooth_l1(x: Any, y: Any, beta: float, reduction: str) -> Any:
    """(x − y)² / 2β where |x − y| < beta, else |x − y| − beta / 2."""
    distance = np.abs(x - y)
    return reduced(np.where(distance < beta, 0.5 * distance * distance / beta, distance - 0.5 * beta), reduction)


def bce(x: Any, y: Any, weight: Any, reduction: str) -> Any:
    """−(y ln x + (1 − y) ln(1 − x)) · weight. Logarithms are at least −100."""
    log_x, log_rest = np.maximum(np.log(x), -100), np.maximum(np.log1p(-x), -100)
    return reduced(((y - 1) * log_rest - y * log_x) * weight, reduction)


def bce_logits(x: Any, y: Any, weight: Any, pos_weight: Any, reduction: str) -> Any:
    """−(p y ln σ(x) + (1 − y) ln(1 − σ(x))) · weight, without overflow."""
    log_sigmoid = np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
    losses = (1 - y) * x - (1 + (pos_weight - 1) * y) * log_sigmoid
    return reduced(losses * weight, reduction)


def logits_slope(x: Any, y: Any, pos_weight: Any) -> Any:
    """The derivative of each single loss in x."""
    return (1 - y) - (1 + (pos_weight - 1) * y) * (1 - sigmoid(x))


def target_slope(x: Any, pos_weight: Any) -> Any:
    """The derivative of each single loss in y."""
    log_sigmoid = np.minimum(x, 0) - np.log1p(np.exp(-np.abs(x)))
    return -x - (pos_weight - 1) * log_sigmoid
