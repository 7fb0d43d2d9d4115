"""How a row of the table is written: `elementwise`, `linear` or `general`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradviz.engine.core.derivative import AnyDerivative, Choice, Derivative
from gradviz.engine.core.op import Op
from gradviz.engine.core.registry import TABLE


def _row(
    key: str, forward: Callable, kind: str, derivatives: dict[str, AnyDerivative], **settings: Any
) -> None:
    name = settings.pop("name", key)
    inputs = tuple(settings.pop("inputs", " ".join(derivatives) or "x").split())
    args = tuple(settings.pop("args", "").split())
    forward = getattr(forward, "on_arrays", forward)  # a kernel that is a row: it is called with arrays only
    if key in TABLE:
        raise ValueError(f"there are two rows {key!r}")
    TABLE[key] = Op(name, forward, inputs, args, derivatives, kind=kind, **settings)


def elementwise(key: str, forward: Callable, /, **row: Any) -> None:
    """An op that works element by element and broadcasts."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative | Choice)}
    _row(key, forward, "elementwise", derivatives, **row)


def linear(key: str, forward: Callable, /, **row: Any) -> None:
    """An op that is linear in its tensors together: its tangent is the op of the tangents."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative | Choice)}
    _row(key, forward, "linear", derivatives, **row)


def general(key: str, forward: Callable, /, **row: Any) -> None:
    """Any other op."""
    derivatives = {name: row.pop(name) for name in list(row) if isinstance(row[name], Derivative | Choice)}
    _row(key, forward, "", derivatives, **row)


def without_derivative(name: str) -> Callable:
    """The rule of an op that may run on what requires grad, but not be differentiated: it raises RuntimeError."""

    def rule(g: Any) -> Any:
        raise RuntimeError(f"derivative for aten::{name} is not implemented")

    return rule
