"""Distances between vectors, and the losses that compare them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.state import no_grad
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.nn.functional.loss import reduced
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.tensors.inplace import in_place


def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The cosine of the angle between x1 and x2 along `dim`. Their lengths are at least `eps`."""
    x1, x2 = ops.broadcast_tensors(x1, x2)
    lengths = [ops.clone(ops.vector_norm(x, 2, dim, True)) for x in (x1, x2)]
    with no_grad():  # gradients ignore that the lengths are clamped
        for length in lengths:
            in_place["clamp_min_"](length, eps)
    second = ops.div(x2, lengths[1])  # first, as in PyTorch
    return ops.sum(ops.mul(ops.div(x1, lengths[0]), second), dim)


def pairwise_distance(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    """The p-norm of x1 − x2 + eps over the last dimension."""
    return ops.norm_along(ops.add_number(ops.sub(x1, x2), eps), p, -1, keepdim)


def cosine_embedding_loss(x1: Tensor, x2: Tensor, target: Tensor, margin: float = 0, reduction: str = "mean") -> Tensor:
    """1 − cos where the target is 1; max(0, cos − margin) where it is −1."""
    epsilon = 1e-12  # as in PyTorch, where it differs from `cosine_similarity`
    inner = ops.sum(ops.mul(x1, x2), -1)
    squares = [ops.add_number(ops.sum(ops.mul(x, x), -1), epsilon) for x in (x1, x2)]
    cosine = ops.div(inner, ops.sqrt(ops.mul(*squares)))
    zero = new_tensor(np.zeros((), cosine.array.dtype))
    near = ops.where(target.array == 1, ops.sub(ops.add_number(zero, 1), cosine), zero)
    far = ops.where(target.array == -1, ops.clamp_min(ops.sub_number(cosine, margin), 0), zero)
    return reduced(ops.add(near, far), reduction)


def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """max(0, distance to the positive − distance to the negative + margin).

    With `swap` the distance between positive and negative counts where it is smaller than the distance to the
    negative."""

    near, far = pairwise_distance(anchor, positive, p, eps), pairwise_distance(anchor, negative, p, eps)
    if swap:
        far = ops.minimum(far, pairwise_distance(positive, negative, p, eps))
    return reduced(ops.clamp_min(ops.sub(ops.add_number(near, margin), far), 0), reduction)


def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with a given distance function."""
    distance = pairwise_distance if distance_function is None else distance_function
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    return reduced(ops.clamp_min(ops.sub(ops.add(near, margin), far), 0), reduction)


def pdist(x: Tensor, p: float = 2.0) -> Tensor:
    """The distances in the p-norm between all pairs of rows of a matrix, as a vector."""
    return apply(TABLE["pdist"], (x,), (float(p),))
