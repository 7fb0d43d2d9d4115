"""Linear maps, dropout, embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gradviz.engine.core.apply import apply, given
from gradviz.engine.core.tell import without_node
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.rng import distributions
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.tensors.creation import made
from gradviz.engine.tensors.inplace import in_place


def _unfit(x: Tensor, weight: Tensor) -> Exception:
    """The error of an x that cannot be multiplied by the weight."""
    if x.array.dtype != weight.array.dtype:
        return RuntimeError(
            f"mat1 and mat2 must have the same dtype, but got {x.dtype} and {weight.dtype}. "
            "Convert the input with .to(weight.dtype)."
        )
    out, width = weight.array.shape
    *rest, given = x.array.shape
    rows = math.prod(rest)
    return RuntimeError(f"mat1 and mat2 shapes cannot be multiplied ({rows}x{given} and {width}x{out})")


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x Wᵀ + b, for x (..., in), a weight (out, in) and a bias (out,). Raises RuntimeError where they do not fit."""
    if not (x.array.ndim and weight.array.ndim):
        dims = f"{x.array.ndim}D and {weight.array.ndim}D"
        raise RuntimeError(f"both arguments to linear need to be at least 1D, but they are {dims}")
    if weight.array.ndim != 2:
        product = ops.matmul(x, ops.t(weight))
        return product if bias is None else ops.add(product, bias)
    if x.array.shape[-1:] != weight.array.shape[1:] or x.array.dtype != weight.array.dtype:
        raise _unfit(x, weight)
    if x.array.ndim == 2 and bias is not None:
        return ops.addmm(bias, x, ops.t(weight))
    if bias is None:
        return ops.matmul(x, ops.t(weight))
    if x.array.ndim != 2 and x.array.flags.c_contiguous:
        rows = ops.reshape(x, -1, x.array.shape[-1])
        return ops.view(ops.addmm(bias, rows, ops.t(weight)), *x.array.shape[:-1], len(weight.array))
    return ops.add(ops.matmul(x, ops.t(weight)), bias)


def bilinear(x1: Tensor, x2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x1ᵀ W x2 + b, for a weight (out, in1, in2)."""
    out, n1, n2 = weight.array.shape
    lead = x1.array.shape[:-1]
    if x2.array.shape[:-1] != lead:
        raise RuntimeError("bilinear(): input batch dimensions do not match")
    left, right = ops.reshape(x1, -1, n1), ops.reshape(x2, -1, n2)
    product = ops.reshape(apply(TABLE["trilinear"], (left, weight, right)), *lead, out)
    return product if bias is None else ops.add(product, bias)


def checked_probability(p: float) -> float:
    """p. Raises ValueError where it is not in [0, 1]."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    return p


def _dropped(x: Tensor, p: float, shape: tuple[int, ...], inplace: bool) -> Tensor:
    """x times noise of `shape`, which is 0 with probability p, else 1 / (1 − p)."""
    dtype = x.array.dtype
    multiply = in_place["mul_"] if inplace else ops.mul
    if p == 1:
        return multiply(x, made(np.zeros(shape, dtype), "dropout"))
    kept = _in_memory_order(x.array, 1 - p) if shape == x.array.shape else distributions.bernoulli(shape, 1 - p)
    return multiply(x, made(kept.astype(dtype) / dtype.type(1 - p), "dropout"))


def _in_memory_order(like: np.ndarray, p: float) -> np.ndarray:
    """Random numbers in the order in which the elements of `like` lie in memory."""
    order = sorted(range(like.ndim), key=lambda i: -abs(like.strides[i]))
    draws = distributions.bernoulli(tuple(like.shape[i] for i in order), p)
    return draws.transpose(np.argsort(order)) if like.ndim else draws


def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """In training, set each element to 0 with probability p, and multiply the others by 1 / (1 − p)."""
    if not training or checked_probability(p) == 0 or not x.array.size:
        checked_probability(p)
        return x
    return _dropped(x, p, x.array.shape, inplace)


def _dropout_channels(x: Tensor, p: float, training: bool, inplace: bool, dims: Sequence[int], name: str) -> Tensor:
    if x.array.ndim not in dims:
        raise NotImplementedError(f"gradviz's {name} takes an input of {dims[-1]} dimensions, got {x.array.ndim}")
    if not training or checked_probability(p) == 0:
        checked_probability(p)
        return x
    return _dropped(x, p, x.array.shape[:2] + (1,) * (x.array.ndim - 2), inplace)


def dropout1d(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, L)."""
    return _dropout_channels(x, p, training, inplace, (3,), "dropout1d")


def dropout2d(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, H, W)."""
    return _dropout_channels(x, p, training, inplace, (4,), "dropout2d")


def dropout3d(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """`dropout` of whole channels of (N, C, D, H, W)."""
    return _dropout_channels(x, p, training, inplace, (5,), "dropout3d")


def alpha_dropout(x: Tensor, p: float = 0.5, training: bool = False, inplace: bool = False) -> Tensor:
    """`dropout` that sets elements to the minimum of SELU, and keeps mean and variance (Klambauer et al. 2017,
    "Self-Normalizing Neural Networks")."""
    if not training or checked_probability(p) == 0 or not x.array.size:
        checked_probability(p)
        return x
    alpha = 1.7580993408473766
    a = 1 / np.sqrt((alpha**2 * p + 1) * (1 - p)) if p < 1 else 0.0
    dtype = x.array.dtype
    kept = distributions.bernoulli(x.array.shape, 1 - p)
    noise = made((kept * a).astype(dtype), "dropout")
    shift = made(((kept - 1.0) * alpha * a + alpha * a * p).astype(dtype), "dropout")
    if inplace:
        return in_place["add_"](in_place["mul_"](x, noise), shift)
    return ops.add(ops.mul(x, noise), shift)


def embedding(x: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """The rows of `weight` at the integer indices x, of shape (*x, E). The row `padding_idx` gets no gradient.

    Raises IndexError for an index outside of the weight."""
    indices = x.array
    if indices.dtype.kind not in "iu":
        raise RuntimeError(
            "Expected tensor for argument #1 'indices' to have one of the following scalar types: Long, Int; "
            f"but got {x.dtype} instead (while checking arguments for embedding)"
        )
    rows = weight.array.shape[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise AssertionError("Padding_idx must be within num_embeddings")
    if indices.size and not (indices.min() >= 0 and indices.max() < rows):
        raise IndexError(f"index out of range in self. Indices have to lie in 0 ... {rows - 1}.")
    padding = -1 if padding_idx is None else padding_idx % rows
    return apply(TABLE["embedding"], (weight,), (indices.copy(), padding), (x,))


def embedding_bag(
    x: Tensor,
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Tensor:
    """The mean, sum or max of bags of rows of `weight`. The bags are the rows of x, or start at `offsets` in it.

    Raises RuntimeError for an index outside of the weight."""
    if mode not in ("sum", "mean", "max"):
        raise ValueError("mode has to be one of sum, mean or max")
    if max_norm is not None or scale_grad_by_freq or sparse:
        raise NotImplementedError("gradviz's embedding_bag has no max_norm, scale_grad_by_freq or sparse.")
    if per_sample_weights is not None and mode != "sum":
        raise NotImplementedError(
            "embedding_bag: per_sample_weights was not None. per_sample_weights is only supported for mode='sum' "
            f"(got mode='{mode}')."
        )
    bags, size = _bags(x.array, offsets, include_last_offset)
    indices, rows = x.array.reshape(-1), weight.array.shape[0]
    wrong = np.flatnonzero((indices < 0) | (indices >= rows))
    if wrong.size:
        raise RuntimeError(
            f"Index {wrong[0]} of input takes value {indices[wrong[0]]} which is not in the valid range [0, {rows})"
        )
    shares = per_sample_weights
    if shares is None:
        shares = new_tensor(np.ones(indices.size, weight.array.dtype))
    elif shares.array.ndim > 1:
        shares = ops.reshape(shares, -1)
    if padding_idx is not None:
        kept = indices != padding_idx % rows
        indices, bags, shares = indices[kept], bags[kept], ops.getitem(shares, np.flatnonzero(kept))
    return apply(TABLE["embedding_bag"], (weight, shares), (indices.copy(), bags, size, mode), given(x, offsets))


def _bags(indices: np.ndarray, offsets: Tensor | None, include_last_offset: bool) -> tuple[np.ndarray, int]:
    """The bag of each index, and the number of bags."""
    if indices.ndim == 2:
        if offsets is not None:
            raise ValueError(
                "if input is 2D, then offsets has to be None, as input is treated is a mini-batch of fixed length "
                f"sequences. However, found offsets of type {type(offsets)}"
            )
        return np.repeat(np.arange(len(indices)), indices.shape[1]), len(indices)
    if indices.ndim != 1:
        raise ValueError(f"input has to be 1D or 2D Tensor, but got Tensor of dimension {indices.ndim}")
    if offsets is None:
        raise ValueError("offsets has to be a 1D Tensor but got None")
    starts = offsets.array[:-1] if include_last_offset else offsets.array
    if starts.size and starts[0]:
        raise RuntimeError(
            "offsets[0] has to be 0, i.e., the first sequence in the mini-batch has to start from position 0. "
            f"However, got {starts[0]}"
        )
    return np.searchsorted(starts, np.arange(indices.size), "right") - 1, starts.size


def one_hot(x: Tensor, num_classes: int = -1) -> Tensor:
    """An int64 tensor (*x, classes) that is 1 at the class and 0 elsewhere."""
    n = int(x.array.max()) + 1 if num_classes == -1 else num_classes
    if x.array.size and (x.array.min() < 0 or x.array.max() >= n):
        raise RuntimeError("Class values must be non-negative and smaller than num_classes.")
    out = new_tensor(np.eye(n, dtype=np.int64)[x.array])
    return without_node("one_hot", (x,), out, str(num_classes))


def normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x divided by its p-norm along `dim`, which is at least `eps`."""
    norm = ops.clamp_min(ops.vector_norm(x, p, dim, True), eps)
    return ops.div(x, ops.expand(norm, *x.array.shape))
