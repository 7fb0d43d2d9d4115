"""Joining tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import result_type
from gradviz.engine.basics.memory_format import contiguous_format
from gradviz.engine.basics.shape_errors import check_cat, check_stack
from gradviz.engine.core.apply import apply, as_tensor
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE
from gradviz.engine.table.ops.broadcasting import atleast_1d, atleast_2d, atleast_3d
from gradviz.engine.table.ops.choice import clone, to
from gradviz.engine.table.ops.indexing import index_select
from gradviz.engine.table.ops.reductions import checked_dim
from gradviz.engine.table.ops.shape import expand, flatten, reshape, unsqueeze


def cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors concatenated along `dim`. Their other sizes have to be equal."""
    given = tuple(as_tensor(tensor) for tensor in tensors)
    if not given:
        raise ValueError("torch.cat(): expected a non-empty list of Tensors")
    given = tuple(t for t in given if t.array.shape != (0,)) or given  # PyTorch skips empty vectors
    given = _of_one_dtype(given)
    dim = checked_dim(dim, given[0].array.ndim)
    check_cat([tensor.array.shape for tensor in given], dim)
    return apply(TABLE["cat"], given, (dim,))


def _of_one_dtype(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The tensors, converted to the dtype that PyTorch joins them in."""
    if len({tensor.array.dtype for tensor in tensors}) == 1:
        return tensors
    wanted = result_type(*(tensor.array for tensor in tensors))
    return tuple(to(tensor, wanted) for tensor in tensors)


def stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Tensors of one shape, stacked along a new dimension."""
    tensors = _of_one_dtype(tuple(as_tensor(tensor) for tensor in tensors))
    if not tensors:
        raise RuntimeError("stack expects a non-empty TensorList")
    check_stack([tensor.array.shape for tensor in tensors])
    return apply(TABLE["stack"], tensors, (checked_dim(dim, tensors[0].array.ndim + 1),))


concat = concatenate = cat


def hstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along their second dimension, vectors along their only one."""
    grown = atleast_1d(tensors)
    return cat(grown, 0 if grown[0].array.ndim == 1 else 1)


def vstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along their first dimension. Vectors are rows."""
    return cat(atleast_2d(tensors), 0)


row_stack = vstack


def dstack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along a third dimension."""
    return cat(atleast_3d(tensors), 2)


def column_stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors concatenated along their second dimension. Vectors are columns."""
    return hstack([t if t.array.ndim > 1 else reshape(t, t.array.size, 1) for t in tensors])


def block_diag(*tensors: Tensor) -> Tensor:
    """A matrix with matrices on its diagonal and zeros elsewhere."""
    return apply(TABLE["block_diag"], tensors)


def repeat_interleave(x: Tensor, repeats: Any = None, dim: Any = None, *, output_size: Any = None) -> Tensor:
    """x with each element, or each slice along `dim`, repeated. The copies are next to each other."""
    if repeats is None:
        return new_tensor(np.repeat(np.arange(x.array.size), x.array))
    x, dim = (flatten(x), 0) if dim is None else (x, checked_dim(dim, x.array.ndim))
    if isinstance(repeats, int):
        shape = list(x.array.shape)
        shape.insert(dim + 1, repeats)
        return flatten(clone(expand(unsqueeze(x, dim + 1), *shape), contiguous_format), dim, dim + 1)
    times = repeats.array if isinstance(repeats, Tensor) else repeats
    return index_select(x, dim, new_tensor(np.repeat(np.arange(x.array.shape[dim]), times)))
