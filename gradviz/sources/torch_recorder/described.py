"""The description of a call: its arguments as text, and the rule of its derivative. Cached for equal calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import torch

from gradviz.events.field_types import Rule
from gradviz.sources.torch_recorder.arguments import CONSTANTS, text_of
from gradviz.sources.torch_recorder.node_formulas import rule_of

_MOST = 2000  # calls that are cached
_SIGNED = {float, complex}  # 0.0 and -0.0 are equal, but have different texts
_LISTS = {tuple, list, torch.Size}
_TENSOR = repeat(torch.Tensor)
_known: dict[tuple[Any, ...], tuple[str, Rule]] = {}


def described(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], floating: bool, inputs: int
) -> tuple[str, Rule]:
    """The arguments of a call that are not tensors, as text, and its rule. `floating` is whether the call computes
    with floating-point numbers, `inputs` the number of its inputs."""
    if name == "cross_entropy":  # its rule depends on the dtype of the target
        return text_of(name, args, kwargs, floating), rule_of(name, args, kwargs, inputs)
    key: list[Any] = [name, floating, inputs, len(args)]
    if kwargs or not all(map(isinstance, args, _TENSOR)):
        if not (_told(args, key) and _told(kwargs.values(), key)):
            return text_of(name, args, kwargs, floating), rule_of(name, args, kwargs, inputs)
        key += kwargs
    text_and_rule = _known.get(tuple(key))
    if text_and_rule is None:
        if len(_known) > _MOST:
            _known.clear()
        text_and_rule = text_of(name, args, kwargs, floating), rule_of(name, args, kwargs, inputs)
        _known[tuple(key)] = text_and_rule
    return text_and_rule


def _told(values: Iterable[Any], key: list[Any]) -> bool:
    """Add the arguments to a cache key; a tensor only by its class. False if an argument is not simple enough."""
    for value in values:
        kind = type(value)
        if kind in CONSTANTS:
            key += (kind, repr(value) if kind in _SIGNED else value)
        elif isinstance(value, torch.Tensor):
            key.append(torch.Tensor)
        elif kind in _LISTS and all(type(part) is int for part in value):
            key += (kind, tuple(value))
        else:
            return False
    return True
