"""The parts of a module that the code of its `forward` uses, and whether one call may use a part several times."""

from __future__ import annotations

import dis
from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property
from types import CodeType, FunctionType
from typing import Any

_LIBRARIES = ("torch.nn.", "gradviz.engine.nn.")


def is_of_library(module: Any) -> bool:
    """Whether a call of the module runs only a library's code: the module is a layer, or a sequence of layers."""
    forward = getattr(type(module), "forward", None)
    return getattr(forward, "__module__", "").startswith(_LIBRARIES)


class ForwardCode:
    """The code that a call of a module runs: its `forward`, and the methods with `_` that `forward` names. Other
    methods may also be called by the program directly."""

    def __init__(self, module: Any) -> None:
        self.type = type(module)

    @cached_property
    def codes(self) -> list[CodeType]:
        """The code of `forward`, of the methods with `_` that it names, and so on."""
        codes: dict[str, CodeType] = {}
        waiting = ["forward"]
        while waiting:
            name = waiting.pop()
            function = getattr(self.type, name, None)
            if name not in codes and isinstance(function, FunctionType) and not is_of_library_code(function):
                codes[name] = function.__code__
                for code in _with_inner(function.__code__):
                    waiting += [name for name in code.co_names if name.startswith("_")]
        return [code for outer in codes.values() for code in _with_inner(outer)]

    @cached_property
    def names(self) -> set[str]:
        """All names of attributes in the code."""
        return {name for code in self.codes for name in code.co_names}

    def repeats(self, parts: Collection[str]) -> bool:
        """Whether one call may use one of these attributes several times. A loop over an attribute that holds modules
        uses each module once."""
        counts: Counter[str] = Counter()
        for code in self.codes:
            if code.co_name[:1] == "<" or _loops(code, parts):
                return True
            counts.update(_attributes(code))
        methods = {code.co_name for code in self.codes}
        return any(counts[name] > 1 for name in {*parts, *methods})


def is_of_library_code(function: FunctionType) -> bool:
    """Whether a method is defined by a library."""
    return function.__module__.startswith(_LIBRARIES)


def _with_inner(code: CodeType) -> list[CodeType]:
    """A code object, and the code of the functions in it."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [code, *(one for part in inner for one in _with_inner(part))]


def _attributes(code: CodeType) -> list[str]:
    return [step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_ATTR", "LOAD_METHOD")]


def _loops(code: CodeType, parts: Collection[str]) -> bool:
    """Whether code may jump back, other than in a loop over one of these attributes."""
    steps = [
        step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "PRECALL", "NOT_TAKEN")
    ]
    loops = [at for at, step in enumerate(steps) if step.opname == "FOR_ITER"]
    over = {steps[at].offset for at in loops if _is_over(steps[max(at - 3, 0) : at], parts)}
    back = {step.argval for step in steps if "JUMP_BACKWARD" in step.opname}
    return not back <= over


def _is_over(before: Sequence[dis.Instruction], parts: Collection[str]) -> bool:
    """Whether the three instructions before a loop load one of these attributes, directly or through `enumerate`."""
    return before[-1].opname == "GET_ITER" and any(
        step.opname == "LOAD_ATTR" and step.argval in parts for step in before
    )
