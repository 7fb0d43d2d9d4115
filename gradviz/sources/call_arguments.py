"""The arguments of a call as JSON data, never as code or pickles. A tensor is written as its place in a list."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

_DEEPEST = 8  # nested lists and objects: the most that a reader accepts
_LARGEST = 1 << 63
_MOST = 4096  # characters
_as_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode  # `json.dumps` makes it anew


class NotExpressed(Exception):
    """An argument cannot be written as data."""


@dataclass(frozen=True)
class Library:
    """The classes of a library with PyTorch's names: its tensors, sizes and devices. `named` are the classes whose
    values are written as text (dtypes, layouts). `is_plain` decides whether a replay can make a tensor."""

    tensor: type
    size: type
    device: type
    named: dict[type, str]
    is_plain: Callable[[Any], bool]


def typed_call(library: Library, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], str]:
    """The tensors among the arguments, each once, and all arguments as JSON: `[[ARGS], {NAME: ARG}]`. Raises
    NotExpressed."""
    writing = _Writing(library)
    tree = [
        [writing.typed(arg, 2) for arg in args],
        {name: writing.typed(arg, 2) for name, arg in kwargs.items()},
    ]
    text = _as_json(tree)
    if len(text) > _MOST:
        raise NotExpressed
    return writing.tensors, text


class _Writing:
    """The arguments of one call, and the tensors that were met among them so far."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.tensors: list[Any] = []

    def typed(self, value: Any, depth: int) -> Any:
        """An argument as data."""
        library = self.library
        if depth >= _DEEPEST:
            raise NotExpressed
        if value is None or value is True or value is False or type(value) is str:
            return value
        if isinstance(value, library.tensor):
            return {"tensor": self._place(value)}
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {"float": str(float(value))}
        if type(value) in (list, tuple, library.size):
            parts = [self.typed(part, depth + (1 if type(value) is list else 2)) for part in value]
            return parts if type(value) is list else {"tuple": parts}
        if type(value) is slice:
            return {"slice": [self.typed(part, depth + 2) for part in (value.start, value.stop, value.step)]}
        if value is Ellipsis:
            return {"ellipsis": None}
        if type(value) is complex:
            return {"complex": [self.typed(value.real, depth + 2), self.typed(value.imag, depth + 2)]}
        if type(value) is library.device:
            return {"device": str(value)}
        if type(value) in library.named:
            return {library.named[type(value)]: str(value).removeprefix("torch.")}
        return _whole(value)

    def _place(self, tensor: Any) -> int:
        """The place of a tensor in the list; a tensor that is not in the list is added."""
        if not self.library.is_plain(tensor):
            raise NotExpressed
        for place, known in enumerate(self.tensors):
            if known is tensor:
                return place
        self.tensors.append(tensor)
        return len(self.tensors) - 1


def _whole(value: Any) -> int:
    """An integer, also an integer of NumPy."""
    try:
        number = index(value)
    except TypeError:
        raise NotExpressed from None
    if not -_LARGEST <= number < _LARGEST:
        raise NotExpressed
    return number
