"""NumPy's functions on Tensors: `np.sin(t)` is `sin(t)`, and records itself.

This is also what lets a rule of the table, written in plain NumPy, differentiate itself once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine import ops
from gradviz.engine.derivatives import TABLE
from gradviz.engine.tensor import Tensor

UFUNCS: dict[Any, Callable] = {
    op.forward: ops.functions[op.name]
    for op in TABLE.values()
    if isinstance(op.forward, np.ufunc) and op.name in ops.functions
}
_OTHERS: dict[Any, Callable] = {
    np.power: ops.pow,
    np.true_divide: ops.div,
    np.matmul: ops.matmul,
    np.square: ops.square,
    **{ufunc: ops.plain[name] for name, ufunc in ops.PLAIN.items()},
    **{ufunc: ops.plain[name] for name, ufunc in ops.PLAIN_UNARY.items() if isinstance(ufunc, np.ufunc)},
}
UFUNCS |= _OTHERS


def _by_axis(function: Callable) -> Callable:
    """A reduction, with NumPy's words for its arguments."""

    def call(x: Tensor, axis: Any = None, keepdims: Any = False, **_: Any) -> Tensor:
        return function(x, axis, bool(keepdims) if keepdims is not np._NoValue else False)

    return call


def _transpose(x: Tensor, axes: Any = None) -> Tensor:
    return ops.permute(x, *(axes if axes is not None else reversed(range(x.array.ndim))))


def _expand_dims(x: Tensor, axis: Any) -> Tensor:
    axes = axis if isinstance(axis, tuple) else (axis,)
    n = x.array.ndim + len(axes)
    for dim in sorted(i % n for i in axes):
        x = ops.unsqueeze(x, dim)
    return x


def _where(condition: Any, x: Any, y: Any) -> Any:
    return ops.where(condition, x, y)


def _flip(x: Tensor, axis: Any = None) -> Tensor:
    axes = range(x.array.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    return ops.flip(x, *axes)


def _einsum(equation: str, *operands: Tensor) -> Tensor:
    return ops.einsum(equation, *operands)


FUNCTIONS: dict[Any, Callable] = {
    np.prod: _by_axis(ops.prod),
    np.min: _by_axis(ops.amin),
    np.any: _by_axis(ops.any),
    np.all: _by_axis(ops.all),
    np.cumsum: lambda x, axis: ops.cumsum(x, axis),
    np.cumprod: lambda x, axis: ops.cumprod(x, axis),
    np.flip: _flip,
    np.roll: lambda x, shift, axis=None: ops.roll(x, shift, axis),
    np.tril: ops.tril,
    np.triu: ops.triu,
    np.moveaxis: ops.movedim,
    np.ravel: ops.ravel,
    np.outer: ops.outer,
    np.trace: ops.trace,
    np.einsum: _einsum,
    np.round: lambda x, decimals=0: ops.round(x, decimals=decimals),
    np.linalg.inv: ops.inv,
    np.linalg.det: ops.det,
    np.linalg.solve: ops.solve,
    np.sinc: ops.functions["sinc"],
    np.sum: _by_axis(ops.sum),
    np.mean: _by_axis(ops.mean),
    np.max: _by_axis(ops.amax),
    np.reshape: lambda x, shape: ops.reshape(x, shape),
    np.transpose: _transpose,
    np.swapaxes: ops.transpose,
    np.expand_dims: _expand_dims,
    np.squeeze: lambda x, axis=None: ops.squeeze(x, axis),
    np.broadcast_to: lambda x, shape: ops.expand(x, *shape),
    np.where: _where,
    np.concatenate: lambda tensors, axis=0: ops.cat(tensors, axis),
    np.stack: lambda tensors, axis=0: ops.stack(tensors, axis),
    np.clip: ops.clamp,
    np.dot: ops.matmul,
    np.copy: ops.clone,
    np.zeros_like: lambda x, **_: ops.new_tensor(np.zeros_like(x.array)),
    np.ones_like: lambda x, **_: ops.new_tensor(np.ones_like(x.array)),
}


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Answer a NumPy ufunc with the op of the table; NotImplemented where there is none."""
    function = UFUNCS.get(ufunc)
    kwargs = {name: value for name, value in kwargs.items() if not (name == "out" and value is ...)}
    if function is None or method != "__call__" or kwargs:
        return NotImplemented
    return function(*inputs)


def array_function(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Answer a NumPy function with the op of the table; NotImplemented where there is none."""
    ours = FUNCTIONS.get(function)
    return NotImplemented if ours is None else ours(*args, **kwargs)


Tensor.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]
Tensor.__array_function__ = array_function  # type: ignore[attr-defined]
