"""The value of a tensor: its array, and what Python reads from it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradviz.engine.basics.devices import CPU, device
from gradviz.engine.basics.dtypes import dtype, dtype_of


class Size(tuple):
    """The shape of a tensor."""

    __slots__ = ()

    def numel(self) -> int:
        """The number of elements of a tensor of this shape."""
        return int(np.prod(self, dtype=np.int64))

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"


class Values:
    """A NumPy array under PyTorch's names. Tensor adds the place in the graph."""

    __slots__ = ("array",)
    array: np.ndarray

    @property
    def shape(self) -> Size:
        """The sizes, one for each dimension."""
        return Size(self.array.shape)

    def size(self, dim: int | None = None) -> Size | int:
        """The shape, or the size of dimension `dim`. Raises IndexError where there is no such dimension."""
        return self.shape if dim is None else self.array.shape[dim]

    @property
    def dtype(self) -> dtype:
        """The dtype of the elements."""
        return dtype_of(self.array.dtype)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.array.ndim

    def dim(self) -> int:
        """The number of dimensions."""
        return self.array.ndim

    def numel(self) -> int:
        """The number of elements."""
        return self.array.size

    nelement = numel

    @property
    def device(self) -> device:
        """The device, which is always the CPU."""
        return CPU

    def item(self) -> Any:
        """The only element as a Python number. Raises RuntimeError where there is more than one element."""
        if self.array.size != 1:
            raise RuntimeError(
                f"a Tensor with {self.array.size} elements cannot be converted to Scalar. Use .tolist()."
            )
        self._tell_read("item")
        return self.array.item()

    def _tell_read(self, how: str) -> None:
        """Tell the listener that the program reads numbers. Tensor does."""

    def tolist(self) -> Any:
        """The elements as nested lists."""
        self._tell_read("tolist")
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
        self._tell_read("bool")
        return bool(self.array)

    def __float__(self) -> float:
        self._tell_read("float")
        return float(self.item())

    def __int__(self) -> int:
        self._tell_read("int")
        return int(self.item())

    def __index__(self) -> int:
        if self.array.dtype.kind not in "iub" or self.array.size != 1:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        self._tell_read("int")
        return int(self.array.item())

    def __complex__(self) -> complex:
        return complex(self.item())
