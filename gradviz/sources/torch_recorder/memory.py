"""The memory of PyTorch's tensors on the CPU, read in place.

A tensor's shape is no proof that it has the memory: its storage may have been resized, freed, or never made. Call
`start_of` to get an address to read, and `check_room` before PyTorch reads a tensor."""

import ctypes
from functools import cache, lru_cache
from typing import Any

import numpy as np
import torch

from gradviz.sources.torch_recorder.pytorchs_own import (
    TENSORS,
    as_strided,
    data_ptr,
    detach,
    element_size,
    is_conj,
    is_contiguous,
    is_neg,
    numel,
    storage_offset,
    stride,
    to_numpy,
    untyped_storage,
)

_DTYPES: dict[Any, str] = {}
_TOO_LITTLE = "the tensor shows more than its storage holds"
_NO_MEMORY = "the tensor has no memory"
_EIGHT_BITS = {
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, `float32` for torch.float32. NumPy uses the same names."""
    known = _DTYPES.get(dtype)
    if known is None:
        known = _DTYPES[dtype] = str(dtype).removeprefix("torch.")
    return known


@cache
def in_numpy(dtype: Any) -> np.dtype:
    """NumPy's dtype of the same name. Raises TypeError if there is none."""
    return np.dtype(dtype_name(dtype))


class _Wary:
    """While `passes` is not 0, the recorder asks no tensor for its storage: a gradient whose storage has a Python
    object, which lives as long as the storage, is not among `ctx.input_grad_buffers`."""

    def __init__(self) -> None:
        self.passes = 0


WARY = _Wary()


def is_stored(value: torch.Tensor, end: Any) -> bool:
    """Whether the storage of a tensor, which shows elements up to the byte `end`, has so many bytes."""
    try:
        if not WARY.passes:
            return end <= untyped_storage(value).nbytes()
        as_strided(detach(value), value.shape, stride(value))  # PyTorch compares, too
    except RuntimeError:  # or it is a tensor of a transform, which has no storage
        return False
    return True


def check_room(value: torch.Tensor) -> None:
    """Raise RuntimeError if a strided tensor on any device shows more than its storage holds."""
    if is_contiguous(value):
        elements = numel(value)
    else:
        shape = value.shape
        elements = 0 if 0 in shape else 1
        if elements:
            elements += sum([(size - 1) * step for size, step in zip(shape, stride(value), strict=True)])
    end = (storage_offset(value) + elements) * element_size(value)
    if elements and not is_stored(value, end):
        raise RuntimeError(_TOO_LITTLE)


def start_of(value: torch.Tensor) -> int:
    """The address of a tensor's first element, from which all its elements may be read. Raises RuntimeError if there
    is no memory, or too little."""
    offset, size = storage_offset(value), element_size(value)
    if not is_contiguous(value):
        check_room(value)
    elif (elements := numel(value)) and not is_stored(value, (offset + elements) * size):
        raise RuntimeError(_TOO_LITTLE)  # as `check_room` does, without a call
    start: int = data_ptr(value)
    if start == offset * size and numel(value):
        raise RuntimeError(_NO_MEMORY)  # the memory was never allocated
    return start


def bytes_of(value: torch.Tensor) -> bytes:
    """The elements of a contiguous tensor. Raises RuntimeError if there is no memory."""
    size = value.nbytes
    if not size:
        return b""
    offset = storage_offset(value) * element_size(value)
    if not is_stored(value, offset + size):  # as in `start_of`, with fewer checks
        raise RuntimeError(_TOO_LITTLE)
    start = data_ptr(value)
    if start == offset:
        raise RuntimeError(_NO_MEMORY)
    return ctypes.string_at(start, size)


def flat_in_place(value: torch.Tensor, start: int) -> np.ndarray:
    """The memory of a dense tensor that begins at `start`, as a flat array, which is valid while the tensor is
    alive."""
    memory: Any = bytes_type(value.nbytes).from_address(start)
    return np.frombuffer(memory, in_numpy(value.dtype))


@lru_cache(maxsize=1000)
def bytes_type(size: int) -> type[ctypes.Array[Any]]:
    """The ctypes array type for so many bytes; cached, since `ctypes` makes it anew each time."""
    return ctypes.c_char * size


class _Memory:
    """The memory of a tensor in NumPy's protocol for arrays. It keeps the tensor alive."""

    __slots__ = ("__array_interface__", "tensor")
    tensor: torch.Tensor
    __array_interface__: dict[str, Any]


def in_place(value: torch.Tensor) -> np.ndarray:
    """The memory of a tensor as an array. `Tensor.numpy` is not used: afterwards the tensor could never be resized.
    Raises TypeError for a dtype that NumPy does not have, RuntimeError if there is no memory."""
    dtype = in_numpy(value.dtype)
    memory = _Memory()
    memory.tensor = value
    memory.__array_interface__ = {
        "shape": tuple(value.shape),
        "strides": tuple([dtype.itemsize * step for step in stride(value)]),
        "typestr": dtype.str,
        "data": (start_of(value), True),
        "version": 3,
    }
    return np.asarray(memory)


def array_of(value: torch.Tensor, whole: bool = False) -> np.ndarray:
    """The memory of a tensor on the CPU as an array. A dtype that NumPy does not have becomes its bits if elements
    are kept `whole`, otherwise float32. Raises TypeError and RuntimeError if there are no elements."""
    if value.dtype is torch.bfloat16:
        return _as_bits_or_float32(value, whole, torch.int16)
    if value.dtype in _EIGHT_BITS:
        return _as_bits_or_float32(value, whole, torch.uint8)
    if is_conj(value) or is_neg(value):
        start_of(value)
        return to_numpy(TENSORS.resolve_neg(TENSORS.resolve_conj(detach(value))))
    return in_place(detach(value))


def _as_bits_or_float32(value: torch.Tensor, whole: bool, bits: torch.dtype) -> np.ndarray:
    plain = detach(value)
    if whole:
        return in_place(TENSORS.view(plain, bits))
    start_of(plain)
    return to_numpy(TENSORS.float(plain))


def is_dense(value: torch.Tensor) -> bool:
    """Whether a tensor shows each element of its memory once."""
    last = 0
    for length, step in zip(value.shape, stride(value), strict=True):
        if length > 1:
            if not step:
                return False
            last += (length - 1) * step
    return last + 1 == numel(value)
