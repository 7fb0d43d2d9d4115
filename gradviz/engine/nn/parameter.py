"""Parameter and Buffer: tensors that belong to a Module."""

from __future__ import annotations

from typing import Any

from gradviz.engine.core.tensor import LEAF_EDGE, Tensor, announce, new_tensor


class Parameter(Tensor):
    """A leaf that is a parameter of the Module it is assigned to. It requires grad by default."""

    is_of_module = True

    def __new__(cls, data: Tensor | None = None, requires_grad: bool = True) -> Any:
        array = new_tensor(data.array) if data is not None else Tensor()
        parameter = new_tensor(array.array, LEAF_EDGE if requires_grad else None, cls)
        announce(parameter, "Parameter", data)
        return parameter

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


class Buffer(Tensor):
    """A tensor that a Module keeps and saves, but does not train."""

    persistent: bool

    def __new__(cls, data: Tensor | None = None, *, persistent: bool = True) -> Any:
        array = new_tensor(data.array) if data is not None else Tensor()
        buffer = new_tensor(array.array, None, cls)
        buffer.persistent = persistent
        announce(buffer, "Buffer", data)
        return buffer
