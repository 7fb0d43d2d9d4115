"""The methods and operators of Tensor: functions of ops.py and inplace.py under PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine import ops
from gradviz.engine.dtypes import BY_NAME
from gradviz.engine.inplace import in_place, scaled, setitem
from gradviz.engine.tensor import Tensor


def flipped(function: Callable) -> Callable:
    """The reflected operator: `2 * x`."""
    return lambda x, y: function(y, x)


def _view(x: Tensor, *shape: Any) -> Tensor:
    return ops.reshape(x, *shape)


def _size_like(function: Callable) -> Callable:
    return lambda x, other: function(x, *other.shape)


def _any(x: Tensor) -> Tensor:
    return ops.new_tensor(np.asarray(np.any(x.array)))


def _all(x: Tensor) -> Tensor:
    return ops.new_tensor(np.asarray(np.all(x.array)))


def _argmax(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return ops.new_tensor(np.asarray(np.argmax(x.array, axis=dim, keepdims=keepdim)))


def _to(x: Tensor, *args: Any, dtype: Any = None, **_: Any) -> Tensor:
    for arg in args:
        if isinstance(arg, Tensor):
            dtype = arg.dtype
        elif not isinstance(arg, str):
            dtype = arg
    return x if dtype is None else ops.to(x, dtype)


OPERATORS: dict[str, Callable] = {
    "__add__": ops.add,
    "__radd__": ops.add,
    "__sub__": ops.sub,
    "__rsub__": ops.rsub,
    "__mul__": ops.mul,
    "__rmul__": ops.mul,
    "__truediv__": ops.div,
    "__rtruediv__": ops.rdiv,
    "__pow__": ops.pow,
    "__rpow__": ops.rpow,
    "__matmul__": ops.matmul,
    "__rmatmul__": flipped(ops.matmul),
    "__neg__": ops.neg,
    "__pos__": lambda x: x,
    "__abs__": ops.abs_,
    "__getitem__": ops.getitem,
    "__setitem__": setitem,
    "__iadd__": in_place["add_"],
    "__isub__": in_place["sub_"],
    "__imul__": in_place["mul_"],
    "__itruediv__": in_place["div_"],
    "__ipow__": in_place["pow_"],
    "__eq__": ops.plain["eq"],
    "__ne__": ops.plain["ne"],
    "__lt__": ops.plain["lt"],
    "__le__": ops.plain["le"],
    "__gt__": ops.plain["gt"],
    "__ge__": ops.plain["ge"],
    "__and__": ops.plain["bitwise_and"],
    "__or__": ops.plain["bitwise_or"],
    "__xor__": ops.plain["bitwise_xor"],
    "__invert__": ops.plain["bitwise_not"],
    "__floordiv__": ops.plain["floor_divide"],
    "__mod__": ops.plain["remainder"],
}

METHODS: dict[str, Callable] = {
    **ops.functions,
    **ops.plain,
    **in_place,
    **{
        name: getattr(ops, name)
        for name in [
            "pow",
            "square",
            "clamp",
            "sum",
            "mean",
            "max",
            "min",
            "amax",
            "logsumexp",
            "softmax",
            "log_softmax",
            "dot",
            "mv",
            "mm",
            "bmm",
            "matmul",
            "reshape",
            "flatten",
            "t",
            "transpose",
            "permute",
            "expand",
            "squeeze",
            "unsqueeze",
            "clone",
        ]
    },
    "add": scaled(ops.add),
    "sub": scaled(ops.sub),
    "view": _view,
    "contiguous": lambda x: x,
    "view_as": _size_like(ops.reshape),
    "reshape_as": _size_like(ops.reshape),
    "expand_as": _size_like(ops.expand),
    "astype": ops.to,  # as the rules say it, in NumPy's words
    "to": _to,
    "cpu": lambda x: x,
    "type_as": lambda x, other: ops.to(x, other.dtype),
    "where": lambda x, condition, other: ops.where(condition, x, other),
    "any": _any,
    "all": _all,
    "argmax": _argmax,
    "is_floating_point": lambda x: x.array.dtype.kind == "f",
    "is_contiguous": lambda x: x.array.flags.c_contiguous,
    "data_ptr": lambda x: x.array.ctypes.data,
    **{
        name: (lambda kind: lambda x: ops.to(x, kind))(BY_NAME[name])
        for name in ("float", "double", "half", "long", "int", "bool")
    },
}

PROPERTIES: dict[str, Callable] = {
    "T": lambda x: ops.permute(x, *reversed(range(x.array.ndim))) if x.array.ndim != 2 else ops.t(x),
    "mT": lambda x: ops.transpose(x, -2, -1),
    "real": lambda x: x,
}


def attach() -> None:
    """Give Tensor its methods."""
    for name, function in {**METHODS, **OPERATORS}.items():
        setattr(Tensor, name, function)
    for name, getter in PROPERTIES.items():
        setattr(Tensor, name, property(getter))


attach()
