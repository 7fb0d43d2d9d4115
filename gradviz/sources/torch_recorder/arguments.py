"""The arguments of a call: its tensors, and the others as text that a person would write."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from gradviz.sources.call_arguments import collect, tensors_returned

_PLAIN = (int, float, complex, bool, str, type(None))
# The types of immutable arguments. Equal arguments of the same type have the same text, except for the sign of a
# zero.
CONSTANTS = {*_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format}
# Ops with two operands: a number among them is an input that is not a tensor.
OPERANDS = set(
    """
    add add_ atan2 div div_ eq floor_divide fmod ge gt le lt mul mul_ ne remainder sub sub_ true_divide
    """.split()
)
_DEFAULTS: dict[str, tuple[str, ...]] = {
    "pow": ("exponent",), "pow_": ("exponent",), "sum": ("dim", "keepdim"), "mean": ("dim", "keepdim"),
    "max": ("dim", "keepdim"), "min": ("dim", "keepdim"), "argmax": ("dim", "keepdim"), "argmin": ("dim", "keepdim"),
    "all": ("dim", "keepdim"), "any": ("dim", "keepdim"), "count_nonzero": ("dim",), "softmax": ("dim",),
    "log_softmax": ("dim",), "transpose": ("dim0", "dim1"), "unsqueeze": ("dim",), "squeeze": ("dim",), "cat": ("dim",),
    "stack": ("dim",), "getitem": ("index",), "clamp": ("min", "max"), "norm": ("p", "dim"),
    "dropout": ("p", "training"), "topk": ("k", "dim", "largest", "sorted"),
}  # fmt: skip
_OF_SPREAD = ("std", "std_mean", "var", "var_mean")  # called as (dim, unbiased, keepdim), or as (unbiased)
# Arguments that are True unless they are given. Of all others None and False are usually what they are anyway.
_TRUE_BY_DEFAULT = set(
    """
    center compute_uv count_include_pad full_matrices include_self largest left log_input pivot some sorted training
    unbiased use_input_stats
    """.split()
)
_INDEXED = ("getitem", "setitem")
_LONGEST = 200  # characters of a text
_MOST = 8  # elements of a list


def tensors_in(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among arguments, also those in lists."""
    tensors: list[torch.Tensor] = []
    for arg in args:
        if isinstance(arg, torch.Tensor):
            tensors.append(arg)
        elif type(arg) in (list, tuple):
            collect(arg, torch.Tensor, tensors)
    if kwargs:
        collect(kwargs.values(), torch.Tensor, tensors)
    return tensors


def outputs_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a call returned."""
    if type(result) is torch.Size:  # common, with few different values, and never holds tensors
        return []
    return tensors_returned(result, torch.Tensor)


def text_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], floating: bool) -> str:
    """The arguments that are not tensors, as text: `exponent=3`, `dim=1, keepdim=True`, `2.0`."""
    if not kwargs and not any(not isinstance(arg, torch.Tensor) for arg in args):
        return ""
    parts = _positional(name, args, floating)
    for label, arg in kwargs.items():
        if label.startswith("_"):
            continue  # an argument of PyTorch's own, as the `_stacklevel` of a softmax
        holds_tensor = isinstance(arg, torch.Tensor) or (type(arg) in (list, tuple) and tensors_in(arg, {}))
        if not holds_tensor and not _is_usual(label, arg):
            parts.append(f"{label}={_written(arg)}")
    return ", ".join(parts)[:_LONGEST]


def _positional(name: str, args: Sequence[Any], floating: bool) -> list[str]:
    """The arguments without a name that are not tensors. None and False are left out, but for those before an argument
    that is told without a name: it would stand at their place."""
    names = _names(name, args)
    parts: list[tuple[str, bool]] = []  # the text, and whether it is left out
    needed = 0  # so many of the first are told
    for position, arg in enumerate(args):
        if position == 1 and name in _INDEXED and _stands_beside(arg):
            parts.append((f"index={_written(arg)}" if name == "getitem" else _written(arg), False))
            continue
        if isinstance(arg, torch.Tensor) or (type(arg) in (list, tuple) and tensors_in(arg, {})):
            continue
        if name in OPERANDS:
            parts.append((str(float(arg)) if floating and isinstance(arg, int) else _written(arg), False))
            continue
        label = names[position - 1] if 0 < position <= len(names) else ""
        is_left_out = _is_usual(label, arg)
        parts.append((f"{label}={_written(arg)}" if label else _written(arg), is_left_out))
        if not label and not is_left_out:
            needed = len(parts)
    return [text for at, (text, is_left_out) in enumerate(parts) if at < needed or not is_left_out]


def _names(name: str, args: Sequence[Any]) -> tuple[str, ...]:
    """The names of the positional arguments of an op after its first, as far as they are known."""
    if name in _OF_SPREAD:
        return ("unbiased",) if len(args) > 1 and isinstance(args[1], bool) else ("dim", "unbiased", "keepdim")
    return _DEFAULTS.get(name, ())


def _is_usual(label: str, arg: Any) -> bool:
    return arg is None or (arg is False and label not in _TRUE_BY_DEFAULT)


def _stands_beside(index: Any) -> bool:
    """Whether an index has something beside tensors that its other arguments do not tell: `x[:, i]`, `x[None]`."""
    if type(index) is not tuple:
        return index is None
    are_tensors = [isinstance(part, torch.Tensor) for part in index]
    return any(are_tensors) and not all(are_tensors)


def call_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The arguments of a call as text, tensors by dtype and shape: `float32[64, 10], [1], True`. None and False at
    the end are left out, since they are usually defaults."""
    shown = list(args)
    while shown and (shown[-1] is None or shown[-1] is False):
        shown.pop()
    parts = [_formed(arg) for arg in shown]
    parts += [f"{label}={_formed(arg)}" for label, arg in kwargs.items() if arg is not None and arg is not False]
    return ", ".join(parts)[:_LONGEST]


def _formed(value: Any) -> str:
    """An argument as text, a tensor as its dtype and shape."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        try:
            return f"{dtype}{list(value.shape)}"
        except RuntimeError:  # a nested tensor has no shape
            return dtype
    if type(value) in (list, tuple) and any(isinstance(part, torch.Tensor) for part in value):
        return f"[{', '.join(map(_formed, value[:_MOST]))}{', …' if len(value) > _MOST else ''}]"
    return _written(value)


def _written(value: Any) -> str:
    """An argument as text. Runs no code of the program."""
    if type(value) in _PLAIN:
        return repr(value)
    if type(value) in (list, tuple) or isinstance(value, torch.Size):
        shown = ", ".join(_written(part) for part in value[:_MOST]) + (", …" if len(value) > _MOST else "")
        return f"[{shown}]" if isinstance(value, list) else f"({shown}{',' if len(value) == 1 else ''})"
    if isinstance(value, slice):
        parts = ["" if part is None else _written(part) for part in (value.start, value.stop)]
        return ":".join(parts) if value.step is None else ":".join([*parts, _written(value.step)])
    if value is Ellipsis:
        return "..."
    if isinstance(value, (torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return str(value).removeprefix("torch.")
    if isinstance(value, torch.Tensor):
        return "a tensor"
    return f"a {type(value).__name__}"
