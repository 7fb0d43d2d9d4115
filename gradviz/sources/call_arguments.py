"""The arguments of a call as JSON data, never as code or pickles. A tensor is written as its place in a list."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, TypeVar

_DEEPEST = 8  # nested lists and objects: the most that a reader accepts
_LARGEST = 1 << 63
_MOST = 4096  # characters


class NotExpressed(Exception):
    """An argument cannot be written as data."""


class Library(NamedTuple):
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
    positional = ",".join([writing.typed(arg, 2) for arg in args])
    named = ",".join([f"{json.dumps(name)}:{writing.typed(arg, 2)}" for name, arg in kwargs.items()])
    text = f"[[{positional}],{{{named}}}]"
    if len(text) > _MOST:
        raise NotExpressed
    return writing.tensors, text


class _Writing:
    """The arguments of one call, and the tensors that were met among them so far."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.tensors: list[Any] = []

    def typed(self, value: Any, depth: int) -> str:
        """An argument as JSON: written at once, which takes less than to make a tree that `json` writes."""
        library = self.library
        if depth >= _DEEPEST:
            raise NotExpressed
        if value is None:
            return "null"
        if value is True or value is False:
            return "true" if value else "false"
        if type(value) is str:
            return json.dumps(value)
        if isinstance(value, library.tensor):
            return f'{{"tensor":{self._place(value)}}}'
        if isinstance(value, float):
            return repr(float(value)) if math.isfinite(value) else f'{{"float":"{float(value)}"}}'
        if type(value) is list:
            return self._list(value, depth + 1)
        if type(value) in (tuple, library.size):
            return f'{{"tuple":{self._list(value, depth + 2)}}}'
        if type(value) is slice:
            return f'{{"slice":{self._list((value.start, value.stop, value.step), depth + 2)}}}'
        if value is Ellipsis:
            return '{"ellipsis":null}'
        if type(value) is complex:
            return f'{{"complex":{self._list((value.real, value.imag), depth + 2)}}}'
        if type(value) is library.device:
            return f'{{"device":{json.dumps(str(value))}}}'
        if type(value) in library.named:
            return f'{{"{library.named[type(value)]}":{json.dumps(str(value).removeprefix("torch."))}}}'
        return str(_whole(value))

    def _list(self, parts: Iterable[Any], depth: int) -> str:
        return f"[{','.join([self.typed(part, depth) for part in parts])}]"

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


Tensor = TypeVar("Tensor")


def tensors_returned(result: Any, of_class: type[Tensor]) -> list[Tensor]:
    """The tensors that a call returned: a single tensor, or those in a tuple or list."""
    if isinstance(result, of_class):
        return [result]
    tensors: list[Tensor] = []
    if isinstance(result, (tuple, list)):
        collect(result, of_class, tensors)
    return tensors


def collect(values: Iterable[Any], of_class: type[Tensor], found: list[Tensor]) -> None:
    """Add the tensors among values to `found`, including those in nested lists and tuples."""
    for value in values:
        if isinstance(value, of_class):
            found.append(value)
        elif type(value) in (list, tuple):
            collect(value, of_class, found)
