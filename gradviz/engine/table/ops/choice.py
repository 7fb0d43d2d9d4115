"""Selection by a condition, copies, conversion."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import to_numpy
from gradviz.engine.basics.memory_format import contiguous_format, lies_in
from gradviz.engine.basics.shape_errors import broadcast_shape
from gradviz.engine.core.apply import apply, as_tensor, operands
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.table.derivatives import TABLE


def where(condition: Any, x: Any = None, y: Any = None) -> Any:
    """x where the condition holds, else y, in the shape that all three broadcast to.

    With the condition alone: the indices where it holds, an int64 tensor for each dimension."""
    if x is None and y is None:
        return tuple(new_tensor(places.copy()) for places in np.nonzero(np.atleast_1d(as_tensor(condition).array)))
    left, right = operands(x, y)
    if left is None:
        raise TypeError("where() takes tensors or numbers")
    condition = as_tensor(condition)
    holds = condition.array
    broadcast_shape(holds.shape, left.array.shape, right.array.shape)
    return apply(TABLE["where"], (left, right), (holds,), (condition,))


def detach(x: Tensor) -> Tensor:
    """The same memory outside of the graph: a leaf that does not require grad."""
    return apply(TABLE["detach"], (x,))


def view_as_self(x: Tensor) -> Tensor:
    """A view of the whole tensor, in the graph. `make_dual` gives it a tangent."""
    return apply(TABLE["make_dual"], (x,))


def clone(x: Tensor, memory_format: Any = None) -> Tensor:
    """A copy, in the graph. `memory_format` may change the order of its elements in memory."""
    return apply(TABLE["clone"], (x,), (memory_format,))


def contiguous(x: Tensor, memory_format: Any = contiguous_format) -> Tensor:
    """x where it has that memory format, else a copy that has it."""
    return x if lies_in(x.array, memory_format) else clone(x, memory_format)


def copy(x: Tensor) -> Tensor:
    """A copy whose node is CopyBackwards. AccumulateGrad makes it under `create_graph`."""
    return apply(TABLE["copy"], (x,))


def to(x: Tensor, dtype: Any, memory_format: Any = None, copy: bool = False) -> Tensor:
    """x converted to a dtype and a memory format. Where it has them already, x itself unless `copy` is set."""
    wanted = to_numpy(dtype)
    if wanted == x.array.dtype and not copy and (memory_format is None or lies_in(x.array, memory_format)):
        return x
    return apply(TABLE["to"], (x,), (wanted, memory_format))
