"""Choice, comparison, identity."""

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
    """x where the condition holds, else y; without them, the places where it holds, a tensor a dimension."""
    if x is None and y is None:
        return tuple(
            new_tensor(places.copy()) for places in np.nonzero(np.atleast_1d(as_tensor(condition).array))
        )
    left, right = operands(x, y)
    if left is None:
        raise TypeError("where() takes tensors or numbers")
    holds = as_tensor(condition).array
    broadcast_shape(holds.shape, left.array.shape, right.array.shape)
    return apply(TABLE["where"], (left, right), (holds,))


def detach(x: Tensor) -> Tensor:
    """The same memory without a place in the graph."""
    return apply(TABLE["detach"], (x,))


def view_as_self(x: Tensor) -> Tensor:
    """The same memory, in the graph: what `make_dual` gives its tangent to."""
    return apply(TABLE["make_dual"], (x,))


def clone(x: Tensor, memory_format: Any = None) -> Tensor:
    """A copy that gradients flow through."""
    return apply(TABLE["clone"], (x,), (memory_format,))


def contiguous(x: Tensor, memory_format: Any = contiguous_format) -> Tensor:
    """x where its elements lie in that order in memory, else a copy in which they do."""
    return x if lies_in(x.array, memory_format) else clone(x, memory_format)


def copy(x: Tensor) -> Tensor:
    """A copy as AccumulateGrad makes it under `create_graph`: its node is CopyBackwards."""
    return apply(TABLE["copy"], (x,))


def to(x: Tensor, dtype: Any, memory_format: Any = None, copy: bool = False) -> Tensor:
    """x in another dtype and order in memory; x itself where it has them already, unless `copy`."""
    wanted = to_numpy(dtype)
    if wanted == x.array.dtype and not copy and (memory_format is None or lies_in(x.array, memory_format)):
        return x
    return apply(TABLE["to"], (x,), (wanted, memory_format))
