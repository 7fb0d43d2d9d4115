"""Losses. `reduction` is "mean", "sum" or "none".

Input and target have the same shape and dtype, unless something else is said. The loss is a scalar, or has their
shape with reduction "none". ValueError is raised for another reduction.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import torch_type_name
from gradviz.engine.core.apply import apply, given
from gradviz.engine.core.state import is_grad_enabled, no_grad
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.nn.functional.activation import log_softmax, logsigmoid
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.tensors.inplace import in_place

_UNSIGNED: dict[int, Any] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The losses, their mean, or their sum."""
    _check_reduction(reduction)
    return {"mean": ops.mean, "sum": ops.sum, "none": lambda x: x}[reduction](losses)


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction: mean, sum or none")


def _alike(x: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """Input and target, broadcast to one shape. Warns where their shapes differ."""
    _check_reduction(reduction)
    _check_dtypes(x, target)
    if x.array.shape == target.array.shape:
        return x, target
    warnings.warn(
        f"Using a target size ({target.shape}) that is different to the input size ({x.shape}). This will likely lead "
        "to incorrect results due to broadcasting. Please ensure they have the same size.",
        UserWarning,
        stacklevel=3,
    )
    x, target = ops.broadcast_tensors(x, target)
    return x, target


def _check_dtypes(x: Tensor, target: Tensor) -> None:
    if x.array.dtype.kind not in "fc":
        raise RuntimeError(f"losses are computed of floating-point numbers, not {x.dtype}: convert with .float()")
    if x.requires_grad and target.array.dtype != x.array.dtype:
        found, expected = (torch_type_name(t.array.dtype)[6:].removesuffix("Tensor") for t in (target, x))
        raise RuntimeError(f"Found dtype {found} but expected {expected}: convert the target with .to(input.dtype)")


def _same(x: Tensor, target: Tensor, name: str, reduction: str) -> None:
    _check_reduction(reduction)
    _check_dtypes(x, target)
    if x.array.shape != target.array.shape:
        raise ValueError(f"{name}: target size ({target.shape}) must be the same as input size ({x.shape})")


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared differences."""
    return apply(TABLE["mse_loss"], _alike(x, target, reduction), (reduction,))


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The absolute differences."""
    x, target = _alike(x, target, reduction)
    return reduced(ops.abs_(ops.sub(x, target)), reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """(x − y)² / 2β where |x − y| < β, else |x − y| − β/2. Raises RuntimeError for a negative β."""
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    if beta == 0:
        return l1_loss(x, target, reduction)
    return apply(TABLE["smooth_l1_loss"], _alike(x, target, reduction), (beta, reduction))


def huber_loss(x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """(x − y)² / 2 where |x − y| < δ, else δ (|x − y| − δ/2). Raises RuntimeError where δ is not positive."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    return apply(TABLE["huber_loss"], _alike(x, target, reduction), (delta, reduction))


def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Minus the log-probability of the target class.

    x is (N, C, ...) and the target (N, ...), or (C,) and a single class. `weight` is (C,). Raises IndexError for a
    class that x does not have."""
    _check_reduction(reduction)
    classes, share = _classes_and_shares(x, target, weight, ignore_index, reduction == "mean")
    key = "nll_loss" if x.array.ndim <= 2 else "nll_loss2d"
    return apply(TABLE[key], (x,), (classes, share, ignore_index, reduction), given(target, weight))


def _classes_and_shares(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, mean: bool
) -> tuple[np.ndarray, np.ndarray | float]:
    """The target classes, and the share of each log-probability: the weight of the class, or 0 where it is ignored.

    For a mean, shares are parts of the whole. An ignored class is −1. Where all shares are equal they are one number.
    Raises IndexError for a class that x does not have."""
    if target.array.dtype.kind not in "iu":
        raise RuntimeError(f"expected scalar type Long but found {target.dtype}: classes are whole numbers")
    expected = () if x.array.ndim == 1 else (x.array.shape[0], *x.array.shape[2:])
    if target.array.shape != expected:
        raise ValueError(
            f"Expected input batch_size ({x.array.shape[0]}) to match target batch_size "
            f"({target.array.shape[0] if target.array.ndim else 1}). The target has shape {list(target.shape)}, "
            f"where {list(expected)} is expected."
        )
    n_classes = x.array.shape[0 if x.array.ndim == 1 else 1]
    if weight is None and not 0 <= ignore_index < n_classes and _all_below(target.array, n_classes):
        return target.array.copy(), 1 / (target.array.size or math.nan) if mean else 1.0
    kept = np.asarray(target.array != ignore_index)
    outside = kept & ((target.array < 0) | (target.array >= n_classes))
    if outside.any():
        raise IndexError(f"Target {target.array[outside][0]} is out of bounds.")
    classes = np.where(kept, target.array, -1)
    kind = x.array.dtype
    share = kept.astype(kind) if weight is None else np.where(kept, weight.array[classes], 0).astype(kind)
    if mean:
        share = share / (share.sum() or np.nan)  # the mean of nothing is NaN, as in PyTorch
    return classes, share


def _all_below(numbers: np.ndarray, bound: int) -> bool:
    """Whether all integers are in 0 ... bound − 1."""
    unsigned = numbers.view(_UNSIGNED[numbers.itemsize])  # a negative number becomes very large
    return not numbers.size or bool(unsigned.max() < bound)


def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Minus the logarithm of the softmax of x at the target.

    x is (N, C, ...), or (C,). The target has classes (N, ...), or probabilities of the shape of x. `weight` is
    (C,)."""
    _check_reduction(reduction)
    if not 0.0 <= label_smoothing <= 1.0:
        raise RuntimeError(f"label_smoothing must be between 0.0 and 1.0. Got: {label_smoothing}")
    axis = 0 if x.array.ndim == 1 else 1
    log_probabilities = log_softmax(x, axis)
    if target.array.dtype.kind == "f":
        if target.array.shape != x.array.shape:
            raise RuntimeError(
                f"expected target dtype to be Long or Byte, but got {target.dtype}: classes are whole numbers, and "
                "probabilities have the shape of the input"
            )
        return _cross_entropy_soft(log_probabilities, target, weight, reduction, label_smoothing, axis)
    picked = nll_loss(log_probabilities, target, weight, ignore_index, reduction)
    if label_smoothing == 0:
        return picked
    smooth = _smooth_part(log_probabilities, target, weight, ignore_index, reduction, axis)
    return ops.add(
        ops.mul_number(picked, 1 - label_smoothing), ops.mul_number(smooth, label_smoothing / x.array.shape[axis])
    )


def _smooth_part(
    log_p: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, axis: int
) -> Tensor:
    """Minus the sum of the log-probabilities of all classes. Ignored targets do not count."""
    weighted = log_p if weight is None else ops.mul(log_p, _by_class(weight, log_p, axis))
    kept = np.asarray(target.array != ignore_index)
    losses = ops.masked_fill(ops.neg(ops.sum(weighted, axis)), new_tensor(~kept), 0.0)
    if reduction != "mean":
        return reduced(losses, reduction)
    count = kept.sum() if weight is None else weight.array[np.where(kept, target.array, 0)][kept].sum()
    return ops.div(ops.sum(losses), float(count))


def _by_class(weight: Tensor, x: Tensor, axis: int) -> Tensor:
    """The weights of classes beside x, which has the classes along `axis`: no gradient flows to them."""
    return ops.reshape(weight.detach(), (-1, *(1,) * (x.array.ndim - 1 - axis)))


def _cross_entropy_soft(
    log_p: Tensor, target: Tensor, weight: Tensor | None, reduction: str, smoothing: float, axis: int
) -> Tensor:
    if smoothing:
        target = ops.add(ops.mul(target, 1 - smoothing), smoothing / log_p.array.shape[axis])
    terms = ops.mul(log_p, target)
    terms = terms if weight is None else ops.mul(terms, _by_class(weight, log_p, axis))
    if reduction == "none":
        return ops.neg(ops.sum(terms, axis))
    total = ops.neg(ops.sum(terms))
    return total if reduction == "sum" else ops.div_number(total, log_p.array.size // log_p.array.shape[axis])


def _plain_weight(weight: Tensor | None, x: Tensor) -> Any:
    if weight is None:
        return x.array.dtype.type(1)
    return np.broadcast_to(weight.array, x.array.shape).astype(x.array.dtype)


def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean") -> Tensor:
    """−(y ln x + (1 − y) ln(1 − x)) for probabilities x. Raises RuntimeError outside of [0, 1]."""
    _same(x, target, "binary_cross_entropy", reduction)
    if x.array.size and not (x.array.min() >= 0 and x.array.max() <= 1):
        raise RuntimeError("all elements of input should be between 0 and 1")
    return apply(TABLE["binary_cross_entropy"], (x, target), (_plain_weight(weight, x), reduction), given(weight))


def binary_cross_entropy_with_logits(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean", pos_weight: Tensor | None = None
) -> Tensor:
    """`binary_cross_entropy` of sigmoid(x), computed without overflow."""
    _same(x, target, "binary_cross_entropy_with_logits", reduction)
    weights = _plain_weight(weight, x), _plain_weight(pos_weight, x)
    read = given(weight, pos_weight)
    return apply(TABLE["binary_cross_entropy_with_logits"], (x, target), (*weights, reduction), read)


def kl_div(x: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """y (ln y − x) for log-probabilities x. With `log_target` y is given as its logarithm.

    Reduction "batchmean" divides the sum by the size of the batch."""
    _check_reduction("sum" if reduction == "batchmean" else reduction)
    _check_dtypes(x, target)
    x, target = ops.broadcast_tensors(x, target)
    if log_target:
        difference = ops.sub(target, x)  # before exp, as in PyTorch
        losses = ops.mul(ops.exp(target), difference)
    else:
        losses = ops.sub(ops.functions["xlogy"](target, target), ops.mul(target, x))
    if reduction == "batchmean":
        return ops.div(ops.sum(losses), x.array.shape[0])
    return reduced(losses, reduction)


def hinge_embedding_loss(x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """x where the target is 1, max(0, margin − x) where it is −1."""
    zero = new_tensor(np.zeros((), x.array.dtype))
    gap = ops.sub(ops.add_number(zero, margin), x)
    far = ops.where(target.array != 1, ops.clamp_min(gap, 0), zero)
    near = ops.where(target.array != -1, x, zero)
    return reduced(ops.add(far, near), reduction)


def _undifferentiated(function: str, argument: str, tensor: Tensor) -> np.ndarray:
    """The array of an argument without a gradient. Raises RuntimeError where it requires grad, as PyTorch does."""
    if tensor.requires_grad and is_grad_enabled():
        raise RuntimeError(
            f"The function '{function}' is not differentiable with respect to argument '{argument}'. This input cannot "
            "have requires_grad True."
        )
    return tensor.array


def soft_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """ln(1 + exp(−y x)), for targets y of 1 and −1."""
    _check_reduction(reduction)
    if x.array.shape != target.array.shape:
        x, target = ops.broadcast_tensors(x, target)
    constant = _undifferentiated("soft_margin_loss", "target", target)
    return apply(TABLE["soft_margin_loss"], (x,), (constant, reduction), (target,))


def margin_ranking_loss(x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean") -> Tensor:
    """max(0, −y (x1 − x2) + margin), for targets y of 1 and −1."""
    gap = ops.mul(ops.neg(target), ops.sub(x1, x2))
    return reduced(ops.clamp_min(ops.add_number(gap, margin), 0), reduction)


def poisson_nll_loss(
    x: Tensor, target: Tensor, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
) -> Tensor:
    """exp(x) − y x, where x is the logarithm of a rate, or x − y ln(x + eps) where it is the rate.

    `full` adds Stirling's approximation of ln y! where y > 1."""
    if log_input:
        losses = ops.sub(ops.exp(x), ops.mul(target, x))
    else:
        losses = ops.sub(x, ops.mul(target, ops.log(ops.add(x, eps))))
    if full:
        y = target
        terms = ops.add(ops.sub(ops.mul(y, ops.log(y)), y), ops.mul(ops.log(ops.mul(y, 2 * np.pi)), 0.5))
        losses = ops.add(losses, ops.masked_fill(terms, new_tensor(np.asarray(y.array <= 1)), 0))
    return reduced(losses, reduction)


def gaussian_nll_loss(
    x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """½ (ln v + (x − y)² / v), where v is the variance, but at least eps. `full` adds ½ ln 2π.

    The gradient of the variance ignores that it is at least eps, as in PyTorch. Raises ValueError for a negative
    variance."""
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = new_tensor(np.full(x.array.shape, var, x.array.dtype))
    if (var.array < 0).any():
        raise ValueError("var has negative entry/entries")
    if var.array.shape != x.array.shape and var.array.shape == x.array.shape[:-1]:
        var = ops.unsqueeze(var, -1)
    v = ops.clone(var)
    with no_grad():
        in_place["clamp_"](v, eps)
    losses = ops.mul(ops.add(ops.log(v), ops.div(ops.square(ops.sub(x, target)), v)), 0.5)
    if full:
        losses = ops.add(losses, 0.5 * float(np.log(2 * np.pi)))
    return reduced(losses, reduction)


def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """−(y ln σ(x) + (1 − y) ln(1 − σ(x))), averaged over the classes: x and y are (N, C)."""
    terms = ops.neg(ops.add(ops.mul(target, logsigmoid(x)), ops.mul(ops.rsub(target, 1), logsigmoid(ops.neg(x)))))
    terms = terms if weight is None else ops.mul(terms, weight)
    return reduced(ops.div(ops.sum(terms, -1), terms.array.shape[-1]), reduction)


def multi_margin_loss(
    x: Tensor, target: Tensor, p: int = 1, margin: float = 1.0, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """max(0, margin − x[y] + x[i])^p, summed over the classes i other than y, divided by their number.

    x is (N, C) and the target (N,). Raises ValueError where p is not 1 or 2."""
    if p not in (1, 2):
        raise ValueError("multi_margin_loss: only p == 1 and p == 2 supported")
    _check_reduction(reduction)
    constant = None if weight is None else _undifferentiated("multi_margin_loss", "weight", weight)
    args = (target.array, p, margin, constant, reduction)
    return apply(TABLE["multi_margin_loss"], (x,), args, given(target, weight))
