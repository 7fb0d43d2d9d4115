"""Losses. `reduction` is mean, sum or none."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import torch_type_name
from gradviz.engine.core.apply import apply
from gradviz.engine.core.state import is_grad_enabled
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.nn.functional.activation import log_softmax, logsigmoid
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE

_UNSIGNED: dict[int, Any] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
    8: np.dtype(np.uint64),
}


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """Losses as `reduction` asks: their mean, their sum, or each ("none")."""
    _check_reduction(reduction)
    return {"mean": ops.mean, "sum": ops.sum, "none": lambda x: x}[reduction](losses)


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{reduction} is not a valid value for reduction: mean, sum or none")


def _alike(x: Tensor, target: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """Input and target, broadcast to one shape."""
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
        raise RuntimeError(
            f"losses are computed of floating-point numbers, not {x.dtype}: convert with .float()"
        )
    if x.requires_grad and target.array.dtype != x.array.dtype:
        found, expected = (torch_type_name(t.array.dtype)[6:].removesuffix("Tensor") for t in (target, x))
        raise RuntimeError(
            f"Found dtype {found} but expected {expected}: convert the target with .to(input.dtype)"
        )


def _same(x: Tensor, target: Tensor, name: str, reduction: str) -> None:
    _check_reduction(reduction)
    _check_dtypes(x, target)
    if x.array.shape != target.array.shape:
        raise ValueError(f"{name}: target size ({target.shape}) must be the same as input size ({x.shape})")


def mse_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The squared difference."""
    return apply(TABLE["mse_loss"], _alike(x, target, reduction), (reduction,))


def l1_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """The absolute difference."""
    x, target = _alike(x, target, reduction)
    return reduced(ops.abs_(ops.sub(x, target)), reduction)


def smooth_l1_loss(x: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """The squared difference over 2β where it is below β, else the absolute one less β/2."""
    if beta < 0:
        raise RuntimeError("smooth_l1_loss does not support negative values for beta.")
    if beta == 0:
        return l1_loss(x, target, reduction)
    return apply(TABLE["smooth_l1_loss"], _alike(x, target, reduction), (beta, reduction))


def huber_loss(x: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Half the squared difference where it is below δ, else δ times the absolute one less δ²/2."""
    if delta <= 0:
        raise RuntimeError("huber_loss does not support non-positive values for delta.")
    return apply(TABLE["huber_loss"], _alike(x, target, reduction), (delta, reduction))


def nll_loss(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Minus the log-probability of the target class; (N, C, ...) and (N, ...), or (C,) and one class."""
    _check_reduction(reduction)
    classes, share = _classes_and_shares(x, target, weight, ignore_index, reduction == "mean")
    key = "nll_loss" if x.array.ndim <= 2 else "nll_loss2d"
    return apply(TABLE[key], (x,), (classes, share, reduction))


def _classes_and_shares(
    x: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, mean: bool
) -> tuple[np.ndarray, np.ndarray | float]:
    """The target classes, 0 where one is ignored, and how much each log-probability counts: the class's weight,
    or 0; for a mean, as part of the whole. One number where all count alike. Raises where a class is none of x's."""
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
    classes = np.where(kept, target.array, 0)
    if classes.size and (classes.min() < 0 or classes.max() >= n_classes):
        bad = classes.min() if classes.min() < 0 else classes.max()
        raise IndexError(f"Target {bad} is out of bounds.")
    kind = x.array.dtype
    share = kept.astype(kind) if weight is None else kept * weight.array[classes].astype(kind)
    if mean:
        share = share / (share.sum() or np.nan)  # where all is ignored the mean is NaN, as in PyTorch
    return classes, share


def _all_below(numbers: np.ndarray, bound: int) -> bool:
    """Whether whole numbers are all from 0 to below `bound`."""
    unsigned = numbers.view(_UNSIGNED[numbers.itemsize])  # a negative one becomes very large
    return not numbers.size or bool(unsigned.max() < bound)


def cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Minus the log of the softmax at the target: classes (N, ...), or probabilities shaped as x."""
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
        ops.mul_number(picked, 1 - label_smoothing),
        ops.mul_number(smooth, label_smoothing / x.array.shape[axis]),
    )


def _smooth_part(
    log_p: Tensor, target: Tensor, weight: Tensor | None, ignore_index: int, reduction: str, axis: int
) -> Tensor:
    """Minus the sum over the classes, as each were the target; what is ignored does not count."""
    weighted = log_p if weight is None else ops.mul(log_p, _by_class(weight, log_p, axis))
    kept = np.asarray(target.array != ignore_index)
    losses = ops.masked_fill(ops.neg(ops.sum(weighted, axis)), new_tensor(~kept), 0.0)
    if reduction != "mean":
        return reduced(losses, reduction)
    count = kept.sum() if weight is None else weight.array[np.where(kept, target.array, 0)][kept].sum()
    return ops.div(ops.sum(losses), float(count))


def _by_class(weight: Tensor, x: Tensor, axis: int) -> Tensor:
    return new_tensor(weight.array.reshape(-1, *(1,) * (x.array.ndim - 1 - axis)))


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


def binary_cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """−(y ln x + (1 − y) ln(1 − x)) of probabilities x."""
    _same(x, target, "binary_cross_entropy", reduction)
    if x.array.size and not (x.array.min() >= 0 and x.array.max() <= 1):
        raise RuntimeError("all elements of input should be between 0 and 1")
    return apply(TABLE["binary_cross_entropy"], (x, target), (_plain_weight(weight, x), reduction))


def binary_cross_entropy_with_logits(
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """`binary_cross_entropy` of sigmoid(x), without overflow."""
    _same(x, target, "binary_cross_entropy_with_logits", reduction)
    weights = _plain_weight(weight, x), _plain_weight(pos_weight, x)
    return apply(TABLE["binary_cross_entropy_with_logits"], (x, target), (*weights, reduction))


def kl_div(x: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """target (ln target − x), of log-probabilities x; `batchmean` divides by the batch only."""
    _check_reduction("sum" if reduction == "batchmean" else reduction)
    _check_dtypes(x, target)
    x, target = ops.broadcast_tensors(x, target)
    if log_target:
        losses = ops.mul(ops.exp(target), ops.sub(target, x))
    else:
        losses = ops.sub(_x_log_x(target), ops.mul(target, x))
    if reduction == "batchmean":
        return ops.div(ops.sum(losses), x.array.shape[0])
    return reduced(losses, reduction)


def _x_log_x(x: Tensor) -> Tensor:
    """x ln x, 0 at 0."""
    positive = np.asarray(x.array > 0)
    one, zero = new_tensor(np.ones((), x.array.dtype)), new_tensor(np.zeros((), x.array.dtype))
    return ops.where(positive, ops.mul(x, ops.log(ops.where(positive, x, one))), zero)


def hinge_embedding_loss(x: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean") -> Tensor:
    """x where the target is 1; max(0, margin − x) where it is −1."""
    zero = new_tensor(np.zeros((), x.array.dtype))
    gap = ops.sub(ops.add_number(zero, margin), x)
    far = ops.where(target.array != 1, ops.clamp_min(gap, 0), zero)
    near = ops.where(target.array != -1, x, zero)
    return reduced(ops.add(far, near), reduction)


def _undifferentiated(function: str, argument: str, tensor: Tensor) -> np.ndarray:
    """The array of an argument that has no gradient; raises RuntimeError where one is wanted, as PyTorch does."""
    if tensor.requires_grad and is_grad_enabled():
        raise RuntimeError(
            f"The function '{function}' is not differentiable with respect to argument '{argument}'. This input cannot "
            "have requires_grad True."
        )
    return tensor.array


def soft_margin_loss(x: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """ln(1 + exp(−y x))."""
    _check_reduction(reduction)
    if x.array.shape != target.array.shape:
        x, target = ops.broadcast_tensors(x, target)
    constant = _undifferentiated("soft_margin_loss", "target", target)
    return apply(TABLE["soft_margin_loss"], (x,), (constant, reduction))


def margin_ranking_loss(
    x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """max(0, −y (x1 − x2) + margin)."""
    gap = ops.mul(ops.neg(target), ops.sub(x1, x2))
    return reduced(ops.clamp_min(ops.add_number(gap, margin), 0), reduction)


def poisson_nll_loss(
    x: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """exp(x) − y x, of the logarithm x of a rate; x − y ln(x + eps) of the rate itself.

    `full` adds Stirling's approximation of ln y! where y > 1."""
    if log_input:
        losses = ops.sub(ops.exp(x), ops.mul(target, x))
    else:
        losses = ops.sub(x, ops.mul(target, ops.log(ops.add(x, eps))))
    if full:
        one, zero = (new_tensor(np.full((), n, target.array.dtype)) for n in (1, 0))
        y = ops.where(target.array > 1, target, one)
        terms = ops.add(ops.sub(ops.mul(y, ops.log(y)), y), ops.mul(ops.log(ops.mul(y, 2 * np.pi)), 0.5))
        losses = ops.add(losses, ops.where(target.array > 1, terms, zero))
    return reduced(losses, reduction)


def gaussian_nll_loss(
    x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """½ (ln v + (x − y)² / v), v the variance or eps where that is less; `full` adds ½ ln 2π.

    Gradients flow to the variance as if eps had not taken its place, as in PyTorch."""
    if not isinstance(var, Tensor):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = new_tensor(np.full(x.array.shape, var, x.array.dtype))
    if (var.array < 0).any():
        raise ValueError("var has negative entry/entries")
    if var.array.shape != x.array.shape and var.array.shape == x.array.shape[:-1]:
        var = ops.unsqueeze(var, -1)
    low = np.maximum(eps - var.array, 0).astype(var.array.dtype)
    v = ops.add(var, new_tensor(low))
    losses = ops.mul(ops.add(ops.log(v), ops.div(ops.square(ops.sub(x, target)), v)), 0.5)
    if full:
        losses = ops.add(losses, 0.5 * float(np.log(2 * np.pi)))
    return reduced(losses, reduction)


def multilabel_soft_margin_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """−(y ln σ(x) + (1 − y) ln(1 − σ(x))), averaged over the classes."""
    terms = ops.neg(
        ops.add(
            ops.mul(target, logsigmoid(x)),
            ops.mul(ops.rsub(target, 1), logsigmoid(ops.neg(x))),
        )
    )
    terms = terms if weight is None else ops.mul(terms, weight)
    return reduced(ops.div(ops.sum(terms, -1), terms.array.shape[-1]), reduction)


def multi_margin_loss(
    x: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin − x[y] + x[i])^p over the classes i other than y, over their number."""
    if p not in (1, 2):
        raise ValueError("multi_margin_loss: only p == 1 and p == 2 supported")
    _check_reduction(reduction)
    constant = None if weight is None else _undifferentiated("multi_margin_loss", "weight", weight)
    return apply(TABLE["multi_margin_loss"], (x,), (target.array, p, margin, constant, reduction))
