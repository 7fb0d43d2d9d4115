"""Borders around a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops import constant_pad_nd, narrow
from gradviz.engine.tensors.inplace import copy_


def pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    """x with a border. `pad` has the widths before and after each dimension, the last dimension first.

    The border is constant (`value`), or made of x: "reflect", "replicate" or "circular". A negative width cuts x.
    Raises RuntimeError where the widths do not fit, NotImplementedError for another mode."""
    if len(pad) % 2:
        raise RuntimeError("Padding length must be divisible by 2")
    if mode == "constant":
        return constant_pad_nd(x, pad, value or 0)
    if value is not None:
        raise ValueError(f'Padding mode "{mode}" doesn\'t take in value argument')
    widths = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    if mode == "circular":
        return _circular(x, widths)
    kinds = {"reflect": "reflection", "replicate": "replication"}
    if mode not in kinds or len(widths) > 3:
        raise NotImplementedError(f"gradviz does not support the padding mode {mode!r} of {len(widths)} dimensions")
    shape = x.array.shape[-len(widths) :]
    places = tuple(_border(n, *width, mode) for n, width in zip(shape, widths, strict=True))
    return apply(TABLE[f"{kinds[mode]}_pad{len(widths)}d"], (x,), (places,))


def _border(n: int, before: int, after: int, mode: str) -> np.ndarray:
    """The indices along a dimension of n elements that the border and the inside consist of."""
    wanted = np.arange(-before, n + after)
    if mode == "replicate":
        return np.clip(wanted, 0, n - 1)
    if before >= n or after >= n:
        raise RuntimeError(
            "Padding size should be less than the corresponding input dimension, "
            f"but got: padding ({before}, {after}) at a dimension of size {n}"
        )
    return np.abs(n - 1 - np.abs(n - 1 - wanted)) if n > 1 else wanted * 0


def _circular(x: Tensor, widths: list[tuple[int, int]]) -> Tensor:
    """PyTorch's steps: copy x into a larger tensor, then fill each border from the other side, the last dimension
    first. A negative width cuts x."""
    shape, first = list(x.array.shape), x.array.ndim - len(widths)
    for dim, (before, after) in enumerate(widths, first):
        if max(before, after) > shape[dim] + min(before, 0) + min(after, 0):  # of the part of x that is left
            raise RuntimeError("Padding value causes wrapping around more than once.")
        shape[dim] += before + after
    out = new_tensor(np.empty(shape, x.array.dtype))
    sides = [(dim, max(before, 0), max(after, 0)) for dim, (before, after) in enumerate(widths, first)][::-1]
    inner, middle = x, out
    for dim, before, after in sides:
        cut = max(-widths[dim - first][0], 0)
        middle = narrow(middle, dim, before, shape[dim] - before - after)
        inner = narrow(inner, dim, cut, middle.array.shape[dim])
    copy_(middle, inner)
    for dim, before, after in sides:
        end = shape[dim] - after
        if before:
            copy_(narrow(out, dim, 0, before), narrow(out, dim, end - before, before))
        if after:
            copy_(narrow(out, dim, end, after), narrow(out, dim, before, after))
    return out
