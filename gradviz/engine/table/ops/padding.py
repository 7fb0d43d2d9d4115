"""A constant border around a tensor, and the differences of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.engine.core.apply import apply
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops.elementwise import sub
from gradviz.engine.table.ops.joining import cat
from gradviz.engine.table.ops.pieces import narrow


def constant_pad_nd(x: Tensor, pad: Sequence[int], value: float = 0) -> Tensor:
    """x with a border of `value`. `pad` has the widths before and after each dimension, the last dimension first.

    A negative width cuts x. Raises RuntimeError where `pad` is too long, or cuts more than there is."""
    free = x.array.ndim - len(pad) // 2
    if free < 0:
        raise RuntimeError("Length of pad should be no more than twice the number of dimensions of the input.")
    before, after = (tuple([0] * free + list(pad[start::2])[::-1]) for start in (0, 1))
    if any(n + b + a < 0 for n, b, a in zip(x.array.shape, before, after, strict=True)):
        raise RuntimeError("The input was cut to less than nothing: negative widths exceed a size")
    return apply(TABLE["constant_pad_nd"], (x,), (before, after, value))


def diff(x: Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    """The differences between neighbours along `dim`, taken n times. The size of `dim` decreases by n."""
    if n == 0:
        return apply(TABLE["copy_over"], (new_tensor(np.zeros_like(x.array)), x))
    parts = [part for part in (prepend, x, append) if part is not None]
    x = cat(parts, dim) if len(parts) > 1 else x
    for _ in range(n):
        length = x.array.shape[dim] - 1
        if length < 0:
            break
        x = sub(narrow(x, dim, 1, length), narrow(x, dim, 0, length))
    return x
