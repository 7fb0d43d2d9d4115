"""Queries about tensors and dtypes: `is_complex`, `can_cast`, `type`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradviz.engine.basics.dtypes import TYPE_NAMES, can_write, dtype_of, result_type, to_numpy
from gradviz.engine.basics.dtypes import dtype as Dtype
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.core.values import Size
from gradviz.engine.table import ops
from gradviz.engine.table.kernels import geometry_of


def is_complex(input: Tensor) -> bool:
    """Whether the elements are complex numbers."""
    return input.array.dtype.kind == "c"


def is_signed(input: Tensor) -> bool:
    """Whether the dtype has negative numbers."""
    return input.array.dtype.kind in "ifc"


def is_same_size(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape."""
    return input.array.shape == other.array.shape


def is_nonzero(input: Tensor) -> bool:
    """Whether the only element is not 0. Raises RuntimeError where there is not exactly one element."""
    if input.array.size == 0:
        raise RuntimeError("Boolean value of Tensor with no values is ambiguous")
    if input.array.size > 1:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")
    return bool(input.array.item())


def get_device(input: Tensor) -> int:
    """−1, which stands for the CPU."""
    return -1


def result_dtype(tensor1: Any, tensor2: Any) -> Dtype:
    """`torch.result_type`: the dtype of the result of an operation on two tensors or numbers."""
    plain = [value.array if isinstance(value, Tensor) else value for value in (tensor1, tensor2)]
    return dtype_of(result_type(*plain))


def can_cast(from_: Any, to: Any) -> bool:
    """Whether an in-place operation may convert one dtype to another (PyTorch documentation, `torch.can_cast`)."""
    return can_write(to_numpy(from_), to_numpy(to))


def type_of(x: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
    """`x.type()`: the name of the tensor's type. With a dtype or such a name: x converted.

    Raises ValueError for an unknown name."""
    if dtype is None:
        return f"torch.{TYPE_NAMES[x.array.dtype.name]}"
    if isinstance(dtype, str):
        name = dtype.removeprefix("torch.")
        known = {called: of for of, called in TYPE_NAMES.items()}
        if name not in known:
            raise ValueError(f"invalid type: {dtype!r}")
        dtype = np.dtype(known[name])
    return ops.to(x, dtype)


def storage_offset(x: Tensor) -> int:
    """The number of elements in the memory before the first element of x."""
    return 0 if x._base is None else geometry_of(x.array, x._base.array).offset


def numel(input: Tensor) -> int:
    """The number of elements."""
    return input.numel()


def is_tensor(value: Any) -> bool:
    """Whether `value` is a Tensor."""
    return isinstance(value, Tensor)


def broadcast_shapes(*shapes: Any) -> Size:
    """The shape that tensors of these shapes broadcast to. Raises RuntimeError where they do not."""
    try:
        return Size(np.broadcast_shapes(*shapes))
    except ValueError:
        raise RuntimeError("Shape mismatch: objects cannot be broadcast to a single shape") from None


def never(input: Tensor) -> bool:
    """False: gradviz has no such tensors."""
    return False


METHODS: dict[str, Callable] = {
    **dict.fromkeys(("is_conj", "is_neg", "is_distributed"), never),
    "is_complex": is_complex,
    "is_signed": is_signed,
    "is_same_size": is_same_size,
    "is_nonzero": is_nonzero,
    "get_device": get_device,
    "type": type_of,
    "storage_offset": storage_offset,
    "is_shared": never,
    "is_pinned": never,
}
_METHODS_ONLY = {"type", "storage_offset", "is_shared", "is_pinned"}
FUNCTIONS = {name: function for name, function in METHODS.items() if name not in _METHODS_ONLY} | {
    "is_inference": lambda input: input.is_inference(),
    "result_type": result_dtype,
    "can_cast": can_cast,
    "numel": numel,
    "is_tensor": is_tensor,
    "broadcast_shapes": broadcast_shapes,
    "detach": ops.detach,
}
