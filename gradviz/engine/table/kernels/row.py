"""How a kernel that is a row of the table records itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from gradviz.engine.core.apply import apply, as_tensor
from gradviz.engine.core.registry import TABLE
from gradviz.engine.core.tensor import Tensor


def raw(x: Any) -> Any:
    """The array of a Tensor; an array as it is. For what a rule computes with and does not differentiate."""
    return getattr(x, "array", x)


def row(key: str) -> Callable[[Callable], Callable]:
    """A kernel that is the row `key` of the table: where a rule calls it with a Tensor, that row runs."""

    def decorate(kernel: Callable) -> Callable:
        @wraps(kernel)
        def call(*arguments: Any) -> Any:
            if any(isinstance(argument, Tensor) for argument in arguments):
                return _run(key, arguments)
            return kernel(*arguments)

        return call

    return decorate


def _run(key: str, arguments: tuple) -> Any:
    n = len(TABLE[key].inputs)
    return apply(TABLE[key], [as_tensor(argument) for argument in arguments[:n]], arguments[n:])
