"""Memory formats: in which order a tensor's elements lie in memory."""

from __future__ import annotations

import numpy as np


class memory_format:
    """A memory format, as PyTorch names it: `torch.channels_last`."""

    def __init__(self, name: str, ndim: int = 0) -> None:
        self.name = name
        self.ndim = ndim  # of the tensors it is for; 0: any

    def __repr__(self) -> str:
        return f"torch.{self.name}"


preserve_format = memory_format("preserve_format")
contiguous_format = memory_format("contiguous_format")
channels_last = memory_format("channels_last", 4)
channels_last_3d = memory_format("channels_last_3d", 5)

PUBLIC = {
    "memory_format": memory_format,
    "preserve_format": preserve_format,
    "contiguous_format": contiguous_format,
    "channels_last": channels_last,
    "channels_last_3d": channels_last_3d,
}


def lies_in(array: np.ndarray, wanted: memory_format) -> bool:
    """Whether an array has a memory format. Raises RuntimeError where the array has the wrong number of dimensions."""
    if wanted is preserve_format:
        return True
    if wanted is contiguous_format:
        return array.flags.c_contiguous
    if array.ndim != wanted.ndim:
        raise RuntimeError(f"required rank {wanted.ndim} tensor to use {wanted.name} format")
    return np.moveaxis(array, 1, -1).flags.c_contiguous


def laid_out(array: np.ndarray, wanted: memory_format) -> np.ndarray:
    """The array if it has that memory format, else a copy that has it."""
    if lies_in(array, wanted):
        return array
    if wanted is contiguous_format:
        return np.ascontiguousarray(array)
    return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
