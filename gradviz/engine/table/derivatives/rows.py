"""How a row of the table is written: as `elementwise`, `linear` or `general`."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from gradviz.engine.core.derivative import AnyDerivative, Choice, Derivative
from gradviz.engine.core.op import Op
from gradviz.engine.core.registry import TABLE

# What these compute, or its gradient, is not PyTorch's for complex numbers.
_OF_REAL_NUMBERS = set("eigh norm qr sgn softplus std std_mean svd var var_mean vdot vector_norm".split())


def _real_only(name: str, forward: Callable) -> Callable:
    @wraps(forward)
    def checked(*arguments: Any) -> Any:
        if any(isinstance(array, np.ndarray) and array.dtype.kind == "c" for array in arguments):
            raise NotImplementedError(f"gradviz does not compute {name} of complex numbers")
        return forward(*arguments)

    return checked


def _row(key: str, forward: Callable, kind: str, derivatives: dict[str, AnyDerivative], **settings: Any) -> None:
    name = settings.pop("name", key)
    inputs = tuple(settings.pop("inputs", " ".join(derivatives) or "x").split())
    args, internal = (tuple(settings.pop(words, "").split()) for words in ("args", "internal"))
    forward = getattr(forward, "on_arrays", forward)  # a kernel that is a row: it is called with arrays only
    if key in _OF_REAL_NUMBERS:
        forward = _real_only(key, forward)
    if key in TABLE:
        raise ValueError(f"there are two rows {key!r}")
    TABLE[key] = Op(name, forward, inputs, args, derivatives, kind=kind, internal=internal, **settings)


def elementwise(key: str, forward: Callable, /, **row: Any) -> None:
    """Add the row of an op that works element by element and broadcasts."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative | Choice)}
    _row(key, forward, "elementwise", derivatives, **row)


def linear(key: str, forward: Callable, /, **row: Any) -> None:
    """Add the row of an op that is linear in all its tensors together. Its tangent is the op of the tangents."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative | Choice)}
    _row(key, forward, "linear", derivatives, **row)


def general(key: str, forward: Callable, /, **row: Any) -> None:
    """Add the row of any other op."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative | Choice)}
    _row(key, forward, "", derivatives, **row)


def without_derivative(message: str, error: type[RuntimeError] = RuntimeError) -> Callable:
    """The rule of an op that has no derivative. The op can run on what requires grad; its backward raises `error`."""

    def rule(g: Any) -> Any:
        raise error(message)

    return rule
