"""The call that an op was, rebuilt from the text of its arguments: for traces that recorded no calls."""

import ast
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradviz.events.kinds import OpRan
from gradviz.query.replayable_functions import NAMES, is_random

_LONGEST = 200  # characters of the arguments of a call
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}
# A number that stands for an input, which gradviz's engine writes behind arguments with names: `groups=1, 0.0`.
_NUMBER_BEHIND = re.compile(r"^(.*\w=.*), (-?[0-9.e+-]+)$")
# Tables that gradviz's engine makes of the other arguments of a pooling: `rows=float64 [2, 4]`.
_TABLES = re.compile(r", (?:rows|columns|indices)=\w+ \[[0-9, ]*\]")
TAKES = ("getitem", "index")
_OF_LISTS = frozenset("cat concat concatenate stack hstack vstack dstack column_stack row_stack".split())
_METHODS = {"rdiv": "rtruediv"}  # by the name of an op
_WITH_WEIGHTS = ("layer_norm", "group_norm", "rms_norm")  # their weight and bias stand behind other arguments


def called(op: OpRan, inputs: Sequence[int]) -> tuple[str, Any] | None:
    """The function that an op called, with its arguments as a tree as CallMade has them, given its tensors; None if
    that is not known."""
    try:
        # as the engine says
        written, named = written_arguments(op.args.removeprefix("shape=").removeprefix("axes="))
        places, keywords = [_tree(one) for one in written], {name: _tree(one) for name, one in named.items()}
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None
    positional: list[Any] = [
        {"tensor": inputs.index(one)} if one else places.pop(0) for one in op.inputs if one or places
    ]
    if op.op in TAKES:
        index = keywords.pop("index", None)
        if len(op.inputs) > 1 or index is None:
            return None
        return "Tensor.__getitem__", [[*positional, {"tuple": index}], {}]
    if op.op in _OF_LISTS:
        positional = [positional]
    elif op.op in _WITH_WEIGHTS:
        keywords.update(zip(("weight", "bias"), positional[1:], strict=False))
        positional = positional[:1]
    is_method = op.inputs[0] and op.op != "where"  # the method begins with the second operand
    owners = ("Tensor", "torch", "F") if is_method else ("torch", "F")
    names = (f"{owner}.{name}" for name in (op.op, f"__{_METHODS.get(op.op, op.op.strip('_'))}__") for owner in owners)
    function = next((name for name in names if name in NAMES), None)
    if function is None or is_random(function):
        return None
    return function, [[*positional, *places], keywords]


def _tree(value: Any) -> Any:
    """An argument as CallMade has it. Raises ValueError for one of another kind."""
    if isinstance(value, float) and not np.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if value is ...:
        return {"ellipsis": None}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, list):
        return [_tree(one) for one in value]
    if isinstance(value, tuple):
        return {"tuple": [_tree(one) for one in value]}
    raise ValueError("no argument of a call that can be made again")


def written_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """The arguments in a text, by position and by name. Raises ValueError or SyntaxError for a text that is not a
    list of literals."""
    if len(text) > _LONGEST:
        raise ValueError("too long")
    if text.startswith("index="):
        inside = text.removeprefix("index=")
        if inside.startswith("("):
            inside = inside[1:-1]
        taken = ast.parse(f"x[{inside}]", mode="eval").body
        if not isinstance(taken, ast.Subscript):
            raise ValueError("no index")
        parts = taken.slice.elts if isinstance(taken.slice, ast.Tuple) else [taken.slice]
        return [], {"index": [_part(part) for part in parts]}
    written = _NUMBER_BEHIND.sub(r"\2, \1", _TABLES.sub("", text))
    call = ast.parse(f"f({written})", mode="eval").body
    if not isinstance(call, ast.Call):
        raise ValueError("no arguments")
    named = {one.arg: _literal(one.value) for one in call.keywords if one.arg}
    if len(named) < len(call.keywords):
        raise ValueError("no names")
    return [_literal(one) for one in call.args], named


def _literal(tree: ast.expr) -> Any:
    """The value of a literal, or of inf and nan with or without a sign."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub) and isinstance(tree.operand, ast.Name):
        return -_literal(tree.operand)
    if isinstance(tree, ast.Name) and tree.id in _NUMBERS:
        return _NUMBERS[tree.id]
    return ast.literal_eval(tree)


def _part(tree: ast.expr) -> Any:
    if isinstance(tree, ast.Slice):
        ends = (tree.lower, tree.upper, tree.step)
        return _slice([None if end is None else ast.literal_eval(end) for end in ends])
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "slice":
        return _slice([ast.literal_eval(one) for one in tree.args])
    return ast.literal_eval(tree)


def _slice(ends: list[Any]) -> slice:
    if not 1 <= len(ends) <= 3 or not all(end is None or type(end) is int for end in ends) or ends[2:] == [0]:
        raise ValueError("no slice")
    return slice(*ends)
