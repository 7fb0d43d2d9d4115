"""NumPy's functions on Tensors: `np.sin(t)` runs `sin(t)`, which records itself.

So the rules of the table, which are written in NumPy, can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.basics.scipy_later import Function
from gradviz.engine.core.apply import as_tensor
from gradviz.engine.core.forward_mode import tangent_of
from gradviz.engine.core.state import state
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table import ops
from gradviz.engine.table.derivatives import TABLE

UFUNCS: dict[Any, Callable] = {
    op.forward: ops.functions[op.name]
    for op in TABLE.values()
    if isinstance(op.forward, (np.ufunc, Function)) and op.name in ops.functions
}
_OTHERS: dict[Any, Callable] = {
    np.power: ops.pow,
    np.sign: ops.functions["sign"],
    np.true_divide: ops.div,
    np.matmul: ops.matmul,
    np.square: ops.square,
    **{ufunc: ops.plain[name] for name, ufunc in ops.PLAIN.items()},
    **{ufunc: ops.plain[name] for name, ufunc in ops.PLAIN_UNARY.items() if isinstance(ufunc, np.ufunc)},
}
UFUNCS |= _OTHERS
_OF_SCIPY = {ufunc.__name__: ufunc for ufunc in UFUNCS if isinstance(ufunc, Function)}


def _by_axis(name: str) -> Callable:
    """A reduction of `ops` that takes NumPy's names for its arguments. A recording may put another function in its
    place."""

    def call(x: Tensor, axis: Any = None, keepdims: Any = False, **_: Any) -> Tensor:
        keepdim = bool(keepdims) if keepdims is not np._NoValue else False
        reduced: Tensor = getattr(ops, name)(x, axis, keepdim)
        return reduced

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


def _tensors(values: Any) -> list[Tensor]:
    """Tensors and arrays as Tensors."""
    return [as_tensor(value) for value in values]


FUNCTIONS: dict[Any, Callable] = {
    np.prod: _by_axis("prod"),
    np.min: _by_axis("amin"),
    np.any: _by_axis("any"),
    np.all: _by_axis("all"),
    np.cumsum: lambda x, axis: ops.cumsum(x, axis),
    np.cumprod: lambda x, axis: ops.cumprod(x, axis),
    np.flip: _flip,
    np.roll: lambda x, shift, axis=None: ops.roll(x, shift, axis),
    np.tril: ops.tril,
    np.triu: ops.triu,
    np.moveaxis: ops.movedim,
    np.ravel: ops.ravel,
    np.outer: lambda a, b: ops.outer(*_tensors((a, b))),
    np.trace: ops.trace,
    np.einsum: _einsum,
    np.round: lambda x, decimals=0: ops.round(x, decimals=decimals),
    np.linalg.inv: ops.inv,
    np.linalg.det: ops.det,
    np.linalg.solve: ops.solve,
    np.sinc: ops.functions["sinc"],
    np.sum: _by_axis("sum"),
    np.mean: _by_axis("mean"),
    np.max: _by_axis("amax"),
    np.reshape: lambda x, shape: ops.reshape(x, shape),
    np.transpose: _transpose,
    np.swapaxes: ops.transpose,
    np.expand_dims: _expand_dims,
    np.squeeze: lambda x, axis=None: ops.squeeze(x, axis),
    np.broadcast_to: lambda x, shape: ops.expand(x, *shape),
    np.where: _where,
    np.concatenate: lambda tensors, axis=0: ops.cat(_tensors(tensors), axis),
    np.stack: lambda tensors, axis=0: ops.stack(_tensors(tensors), axis),
    np.clip: ops.clamp,
    np.dot: ops.matmul,
    np.copy: ops.clone,
    np.vstack: lambda tensors: ops.vstack(_tensors(tensors)),
    np.hstack: lambda tensors: ops.hstack(_tensors(tensors)),
    np.dstack: lambda tensors: ops.dstack(_tensors(tensors)),
    np.tensordot: lambda a, b, axes=2: ops.tensordot(as_tensor(a), as_tensor(b), axes),
    np.kron: lambda a, b: ops.kron(*_tensors((a, b))),
    np.diagonal: lambda x, offset=0, axis1=0, axis2=1: ops.diagonal(x, offset, axis1, axis2),
    np.diag: ops.diag,
    np.take_along_axis: lambda x, indices, axis=-1: ops.take_along_dim(x, as_tensor(indices), axis),
    np.repeat: lambda x, repeats, axis=None: ops.repeat_interleave(x, repeats, axis),
    np.tile: lambda x, reps: ops.tile(x, *(reps if isinstance(reps, tuple) else (reps,))),
    np.std: lambda x, axis=None, ddof=0, keepdims=False: ops.std(x, axis, correction=ddof, keepdim=keepdims),
    np.var: lambda x, axis=None, ddof=0, keepdims=False: ops.var(x, axis, correction=ddof, keepdim=keepdims),
    np.linalg.cholesky: ops.cholesky,
    np.linalg.norm: lambda x, ord=None, axis=None, keepdims=False: ops.linalg_norm(x, ord, axis, keepdims),
    np.nan_to_num: lambda x, nan=0.0, posinf=None, neginf=None: ops.nan_to_num(x, nan, posinf, neginf),
    np.argmax: lambda x, axis=None, keepdims=False: ops.argmax(x, axis, keepdims),
    np.argmin: lambda x, axis=None, keepdims=False: ops.argmin(x, axis, keepdims),
    np.sort: lambda x, axis=-1: ops.sort(x, axis)[0],
    np.argsort: lambda x, axis=-1: ops.argsort(x, axis),
    np.cross: lambda a, b, axis=-1: ops.linalg_cross(*_tensors((a, b)), dim=axis),
    np.zeros_like: lambda x, **_: ops.new_tensor(np.zeros_like(x.array)),
    np.ones_like: lambda x, **_: ops.new_tensor(np.ones_like(x.array)),
}


def _on_arrays(function: Callable, args: Any, kwargs: Any) -> Any:
    """The result of NumPy's function on the values of the tensors, for a function that gradviz has no op for.

    Raises RuntimeError for a tensor that requires grad, as `numpy()` does, and for one with a tangent."""
    return function(*_arrays(args), **_arrays(kwargs))


def _arrays(value: Any) -> Any:
    if isinstance(value, Tensor):
        if state.dual_level and tangent_of(value) is not None:
            raise RuntimeError("NumPy would lose the tensor's tangent: use its value, tensor.detach()")
        return value.numpy()
    if type(value) in (tuple, list):
        return type(value)(_arrays(part) for part in value)
    return {name: _arrays(part) for name, part in value.items()} if type(value) is dict else value


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """Run the op for a NumPy ufunc. Where there is no op, run the ufunc on the values."""
    function = UFUNCS.get(ufunc)
    later = _OF_SCIPY.get(ufunc.__name__)
    if later is not None and later.loaded is ufunc:
        function = UFUNCS[later]
    kwargs = {name: value for name, value in kwargs.items() if not (name == "out" and value is ...)}
    if function is not None and method == "__call__" and not kwargs:
        return function(*inputs)
    if any(isinstance(out, Tensor) for out in kwargs.get("out", ())):
        raise TypeError(f"np.{ufunc.__name__} cannot write into a Tensor: assign its result, x[...] = ...")
    return _on_arrays(getattr(ufunc, method), inputs, kwargs)


def array_function(self: Tensor, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
    """Run the op for a NumPy function. Where there is no op, run the function on the values."""
    ours = FUNCTIONS.get(function)
    return _on_arrays(function, args, kwargs) if ours is None else ours(*args, **kwargs)


Tensor.__array_ufunc__ = array_ufunc  # type: ignore[attr-defined]
Tensor.__array_function__ = array_function  # type: ignore[attr-defined]
