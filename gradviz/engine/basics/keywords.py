"""Keyword arguments under PyTorch's names, and under NumPy's names where PyTorch takes these too: `input=`, `axis=`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any

THEIRS = {
    "input": ("x", "A"), "self": ("x",), "tensor": ("x",), "input1": ("x1",), "input2": ("x2",),
    "other": ("y",), "mat2": ("y",), "vec": ("y",), "vec2": ("y",),
    "axis": ("dim",), "keepdims": ("keepdim",),
}  # fmt: skip
_TAKES_ANY = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS


def parameter_names(function: Callable) -> tuple[str, ...]:
    """The names of a function's parameters. Raises ValueError where the function has no signature."""
    code = function.__code__ if isinstance(function, FunctionType) else None
    if code is None or hasattr(function, "__wrapped__") or code.co_flags & _TAKES_ANY:
        return tuple(inspect.signature(function).parameters)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]  # a tenth of the time


def theirs_to_ours(function: Callable) -> dict[str, str]:
    """PyTorch's names for a function's arguments, mapped to the function's own names. Raises ValueError where the
    function has no signature."""
    own = parameter_names(function)
    pairs = ((theirs, ours) for theirs, options in THEIRS.items() for ours in options)
    return {theirs: ours for theirs, ours in pairs if ours in own and theirs not in own}


def with_pytorchs_names(function: Callable) -> Callable:
    """Wrap a function so that it takes its arguments under PyTorch's names too.

    The wrapped function raises TypeError where an argument is given under both names."""
    try:
        known = theirs_to_ours(function)
    except ValueError:  # a NumPy ufunc
        return function
    if not known:
        return function

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for theirs in known.keys() & kwargs.keys():
                if known[theirs] in kwargs:
                    raise TypeError(f"{function.__name__}() got {theirs!r} and {known[theirs]!r}, which are one")
                kwargs[known[theirs]] = kwargs.pop(theirs)
        return function(*args, **kwargs)

    call.of = function  # type: ignore[attr-defined]
    return call


def without_pytorchs_names(function: Any) -> Any:
    """The function that `with_pytorchs_names` wrapped; any other one itself."""
    return getattr(function, "of", function)
