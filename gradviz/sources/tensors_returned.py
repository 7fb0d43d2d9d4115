"""The tensors that calls are given and return, of PyTorch's or of an engine with its names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

Tensor = TypeVar("Tensor")


def tensors_returned(result: Any, of_class: type[Tensor]) -> list[Tensor]:
    """The tensors that a call returned: one, or those of a tuple or a list."""
    if isinstance(result, of_class):
        return [result]
    found: list[Tensor] = []
    if isinstance(result, (tuple, list)):
        collect(result, of_class, found)
    return found


def collect(values: Iterable[Any], of_class: type[Tensor], found: list[Tensor]) -> None:
    """Add the tensors among values to those that were found, and those of lists and tuples among them."""
    for value in values:
        if isinstance(value, of_class):
            found.append(value)
        elif type(value) in (list, tuple):
            collect(value, of_class, found)
