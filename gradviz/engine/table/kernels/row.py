"""`@row`: kernels that are rows of the table themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gradviz.engine.core.apply import apply, as_tensor
from gradviz.engine.core.registry import TABLE
from gradviz.engine.core.tensor import Tensor


def raw(x: Any) -> Any:
    """The array of a Tensor, or the array itself. For parts of a rule that are not differentiated."""
    return getattr(x, "array", x)


def row(key: str, inputs: int = 1) -> Callable[[Callable], Callable]:
    """Mark a kernel as the forward of row `key`. Called with a Tensor it runs that row, which records itself.

    The first parameters of the kernel are the row's `inputs`, the others its arguments. The attribute `on_arrays` is
    the kernel without this check."""

    def decorate(kernel: Callable) -> Callable:
        @wraps(kernel)
        def of_one(x: Any, *args: Any) -> Any:
            return apply(TABLE[key], (x,), args) if isinstance(x, Tensor) else kernel(x, *args)

        @wraps(kernel)
        def of_several(*arguments: Any) -> Any:
            if not any(isinstance(x, Tensor) for x in arguments[:inputs]):
                return kernel(*arguments)
            return apply(TABLE[key], [as_tensor(x) for x in arguments[:inputs]], arguments[inputs:])

        call = of_one if inputs == 1 else of_several
        call.row, call.inputs, call.on_arrays = key, inputs, kernel  # type: ignore[attr-defined]
        return call

    return decorate
