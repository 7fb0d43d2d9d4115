"""Devices. gradviz computes on the CPU only. Other devices can be named, so that a program can ask whether they are
there."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

_KINDS = {"cpu", "cuda", "mps", "xpu", "meta", "mkldnn", "hip", "xla"}


class device:
    """A place for tensors, as PyTorch names it: `device("cpu")`, `device("cuda", 0)`."""

    type: str
    index: int | None

    def __init__(self, type: Any, index: int | None = None) -> None:
        if isinstance(type, device) and index is None:
            index = type.index
        kind, _, number = str(type).partition(":")
        if kind not in _KINDS or (number and not number.isdigit()):
            raise RuntimeError(
                f"Expected one of {', '.join(sorted(_KINDS))} device type at start of device string: {type}"
            )
        self.type = kind
        self.index = int(number) if number else index

    def __repr__(self) -> str:
        index = "" if self.index is None else f", index={self.index}"
        return f"device(type={self.type!r}{index})"

    def __str__(self) -> str:
        return self.type if self.index is None else f"{self.type}:{self.index}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash((self.type, self.index))


CPU = device("cpu")


def check(where: Any) -> None:
    """Raise RuntimeError for a device other than the CPU. None stands for the CPU."""
    if where is not None and device(where).type != "cpu":
        raise RuntimeError(f"gradviz computes on the CPU; there is no device {str(where)!r} here. Use 'cpu'.")


def on_the_cpu(function: Callable) -> Callable:
    """Wrap a function that makes tensors: it raises RuntimeError where its `device=` is not the CPU."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            check(kwargs["device"])
        return function(*args, **kwargs)

    return call
