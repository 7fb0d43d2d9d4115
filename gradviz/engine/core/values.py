"""The value of a tensor: its array, and what Python can read from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.basics.devices import CPU, device
from gradviz.engine.basics.dtypes import dtype, dtype_of


class Size(tuple):
    """A tensor's shape."""

    __slots__ = ()

    def numel(self) -> int:
        """How many elements a tensor of this shape has."""
        return int(np.prod(self, dtype=np.int64))

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"


class Values:
    """A NumPy array under PyTorch's names. Tensor adds a place in the graph."""

    __slots__ = ("array",)
    array: np.ndarray

    @property
    def shape(self) -> Size:
        """Its sizes, one a dimension."""
        return Size(self.array.shape)

    def size(self, dim: int | None = None) -> Size | int:
        """Its shape, or the size of one dimension."""
        return self.shape if dim is None else self.array.shape[dim]

    @property
    def dtype(self) -> dtype:
        """The type of its elements."""
        return dtype_of(self.array.dtype)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return self.array.ndim

    def dim(self) -> int:
        """How many dimensions it has."""
        return self.array.ndim

    def numel(self) -> int:
        """How many elements it has."""
        return self.array.size

    nelement = numel

    @property
    def device(self) -> device:
        """Where it lives: always the CPU."""
        return CPU

    def item(self) -> Any:
        """Its one element as a Python number; raises RuntimeError if it has more."""
        if self.array.size != 1:
            raise RuntimeError(
                f"a Tensor with {self.array.size} elements cannot be converted to Scalar. Use .tolist()."
            )
        return self.array.item()

    def tolist(self) -> Any:
        """Its elements as nested lists."""
        return self.array.tolist()

    def __len__(self) -> int:
        if self.array.ndim == 0:
            raise TypeError("len() of a 0-d tensor")
        return len(self.array)

    def __bool__(self) -> bool:
        if self.array.size != 1:
            raise RuntimeError(
                f"Boolean value of Tensor with {'more than one value' if self.array.size else 'no values'} "
                "is ambiguous. Use .any() or .all()."
            )
        return bool(self.array)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        if self.array.dtype.kind not in "iub" or self.array.size != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self.array.item())

    def __complex__(self) -> complex:
        return complex(self.item())
