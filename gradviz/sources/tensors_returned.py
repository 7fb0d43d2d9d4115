"""The tensors among the arguments and results of calls, for PyTorch and for an engine with its names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

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
