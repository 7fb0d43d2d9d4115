"""The arguments of a call as data: JSON, in which a tensor is a place in a list. Never code, and nothing pickled."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any

import torch

from gradviz.sources.torch_recorder.tensor_values import PLAIN

_DEEPEST = 8  # nested lists and objects, as many as a reader takes
_LARGEST = 1 << 63
_MOST = 4096  # characters
_NAMED = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory_format"}


class NotExpressed(Exception):
    """An argument cannot be told as data."""


def typed_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[torch.Tensor], str]:
    """The tensors among the arguments, each once, and all arguments as JSON: `[[ARGS], {NAME: ARG}]`. Raises
    NotExpressed."""
    tensors: list[torch.Tensor] = []
    told = [
        [_typed(arg, tensors, 2) for arg in args],
        {name: _typed(arg, tensors, 2) for name, arg in kwargs.items()},
    ]
    text = json.dumps(told, separators=(",", ":"), allow_nan=False)
    if len(text) > _MOST:
        raise NotExpressed
    return tensors, text


def _typed(value: Any, tensors: list[torch.Tensor], depth: int) -> Any:
    if depth >= _DEEPEST:
        raise NotExpressed
    if value is None or value is True or value is False or type(value) is str:
        return value
    if isinstance(value, torch.Tensor):
        return {"tensor": _place(value, tensors)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": str(float(value))}
    if type(value) in (list, tuple, torch.Size):
        parts = [_typed(part, tensors, depth + (1 if type(value) is list else 2)) for part in value]
        return parts if type(value) is list else {"tuple": parts}
    if type(value) is slice:
        return {"slice": [_typed(part, tensors, depth + 2) for part in (value.start, value.stop, value.step)]}
    if value is Ellipsis:
        return {"ellipsis": None}
    if type(value) is complex:
        return {"complex": [_typed(value.real, tensors, depth + 2), _typed(value.imag, tensors, depth + 2)]}
    if type(value) is torch.device:
        return {"device": str(value)}
    if type(value) in _NAMED:
        return {_NAMED[type(value)]: str(value).removeprefix("torch.")}
    return _whole(value)


def _whole(value: Any) -> int:
    """A whole number, NumPy's too."""
    try:
        number = index(value)
    except TypeError:
        raise NotExpressed from None
    if not -_LARGEST <= number < _LARGEST:
        raise NotExpressed
    return number


def _place(tensor: torch.Tensor, tensors: list[torch.Tensor]) -> int:
    """The place of a tensor among those met so far, to which it is added."""
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided:
        raise NotExpressed
    for place, known in enumerate(tensors):
        if known is tensor:
            return place
    tensors.append(tensor)
    return len(tensors) - 1
