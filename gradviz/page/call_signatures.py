"""The calls that a page can compute, and their arguments.

The rows of `op_rows.js` compute. Each row begins with the signature of an op: its inputs, with `#` after an input
that may be a number among the arguments, `?` after an input that may be missing, and then perhaps the number that
stands for it (`?=1`), `*` before any number of inputs; then, after a semicolon, its other arguments with their
defaults, and `nth` if each of the op's results can be computed."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from gradviz.events.kinds import OpRan

_LONGEST = 200  # characters of the arguments of a call
_TRUE_TRAINING = "training=True"
_GIVEN_SIZE = (
    "size="  # gradviz's engine gives it to a transposed convolution, whose result may have several sizes
)
_TAKES = ("getitem", "index")
_NUMBERS = {"inf": float("inf"), "nan": float("nan")}
# A number that stands for an input, which gradviz's engine writes behind arguments with names: `groups=1, 0.0`.
_NUMBER_BEHIND = re.compile(r"^(.*\w=.*), (-?[0-9.e+-]+)$")
# Tables that gradviz's engine makes of the other arguments of a pooling: `rows=float64 [2, 4]`.
_TABLES = re.compile(r", (?:rows|columns|indices)=\w+ \[[0-9, ]*\]")
_ROW = re.compile(r'^  (\w+): \["([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """The signature of an op: the names of its inputs, and its other arguments with their defaults."""

    inputs: tuple[str, ...]
    others: dict[str, Any]
    every: bool  # whether each of its results can be computed, not only the first


@cache
def rows() -> dict[str, Row]:
    """The signatures of the ops that a page can compute, by the name of the op."""
    text = files("gradviz.page").joinpath("op_rows.js").read_text(encoding="utf-8")
    return {name: _row(signature) for name, signature in _ROW.findall(text)}


def only_rows(script: str, ops: Collection[str]) -> str:
    """A script without the rows of ops that are not in `ops`."""
    lines = script.splitlines(keepends=True)
    return "".join(line for line in lines if not (found := _ROW.match(line)) or found[1] in ops)


def _row(signature: str) -> Row:
    inputs, _, others = signature.partition(";")
    pairs = (part.partition("=") for part in others.split() if part != "nth")
    return Row(
        tuple(inputs.split()),
        {name: ast.literal_eval(default) if default else ... for name, _, default in pairs},
        "nth" in others.split(),
    )


def row_of(call: OpRan) -> str:
    """The name of the row that may compute a call."""
    if call.op in _TAKES and len(call.inputs) > 1:
        return "taken_at"
    if call.op in _TAKES and not call.args:
        return "clone"  # x[None] has the elements of x
    if call.op == "batch_norm" and _TRUE_TRAINING not in call.args:
        return "batch_norm_fixed"
    if call.op == "convolution" and call.args.startswith(_GIVEN_SIZE):
        return "convolution_transposed"
    return call.op.strip("_")  # `__eq__`, `mul_`


def read_inputs(call: OpRan) -> tuple[int, ...]:
    """The inputs that a call computes with: a batch norm that trains does not read its running statistics."""
    is_training = call.op == "batch_norm" and _TRUE_TRAINING in call.args
    return (call.inputs[0], *call.inputs[3:]) if is_training and len(call.inputs) == 5 else call.inputs


def takes_first(shape: Sequence[int], indices: Sequence[Sequence[int]], result: Sequence[int]) -> bool:
    """Whether tensors of these shapes, which index one of `shape`, must be indices of its first dimensions, as the
    result has its shape. Of what stands beside them, `x[:, i]`, older traces say nothing."""
    if len(indices) == len(shape):
        return True
    wanted = [size for size in result if size > 1]
    results = [[*shape[:dim], *indices[0], *shape[dim + 1 :]] for dim in range(len(shape))]
    fitting = [dim for dim, one in enumerate(results) if [size for size in one if size > 1] == wanted]
    return len(indices) == 1 and fitting == [0]


def bound(
    call: OpRan, row: Row, shape: Sequence[int]
) -> tuple[list[int | list[float]], dict[str, Any]] | None:
    """The inputs of a call, tensors by number and numbers as `[number]`, and its other arguments; None if they do not
    fit the row. `shape` is that of the first input."""
    try:
        places, named = _arguments(call.args)
    except (ValueError, SyntaxError, RecursionError, MemoryError, OverflowError):
        return None
    inputs = _inputs(call, row, places, named)
    others = _others(row, places, named)
    if inputs is None or others is None:
        return None
    if row.others.keys() == {"index"}:
        others["index"] = _steps(others["index"], shape)
    for name in others.keys() & {"p", "ord"}:
        others[name] = "inf" if others[name] == float("inf") else others[name]
    if "approximate" in others and call.rule and any("tanh" in formula for _, formula in call.rule.inputs):
        others["approximate"] = "tanh"  # the engine names the formula, not the argument
    if others.get("index", ()) is None or not all(map(_is_plain, others.values())):
        return None
    return inputs, others


def _arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
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
        return [], {"index": _index(taken.slice)}
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


def _index(tree: ast.expr) -> list[Any]:
    """The parts of an index: integers, slices, an ellipsis."""
    parts = tree.elts if isinstance(tree, ast.Tuple) else [tree]
    return [_part(part) for part in parts]


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


def _inputs(
    call: OpRan, row: Row, places: list[Any], named: dict[str, Any]
) -> list[int | list[float]] | None:
    """The inputs of a call, together with the numbers among its arguments, which are removed from the arguments; None
    if they do not fit the row."""
    inputs: list[Any] = [tensor or [places.pop(0) if places else None] for tensor in read_inputs(call)]
    is_any = row.inputs[0].startswith("*")
    for name in () if is_any else row.inputs[len(inputs) :]:
        plain, is_number, _ = name.partition("#")
        _, has_default, default = name.partition("=")
        if is_number and (places or plain in named):
            inputs.append([places.pop(0) if places else named.pop(plain)])
        elif has_default:
            inputs.append([float(default)])
    least = 1 if is_any else sum("?" not in name for name in row.inputs)
    most = len(inputs) if is_any else len(row.inputs)
    numbers = [one[0] for one in inputs if isinstance(one, list)]
    are_numbers = all(type(one) in (int, float) for one in numbers)
    return inputs if least <= len(inputs) <= most and are_numbers else None


def _others(row: Row, places: list[Any], named: dict[str, Any]) -> dict[str, Any] | None:
    """The other arguments of a call, by name; None if they do not fit the row."""
    rest = [name for name in row.others if name not in named]
    if len(rest) == 1 and len(places) > 1:
        places = [tuple(places)]  # as in reshape(2, 3)
    if len(places) > len(rest) or named.keys() - row.others.keys():
        return None
    return {**row.others, **named, **dict(zip(rest, places, strict=False))}


def _is_plain(value: Any) -> bool:
    """Whether a value can be written in JSON unchanged."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, float):
        return bool(np.isfinite(value))
    return value is None or isinstance(value, (bool, str)) or (type(value) is int and abs(value) < 2**53)


def _steps(parts: Any, shape: Sequence[int]) -> list[list[int]] | None:
    """For each dimension of an index: its start, its step and its length, with length 0 for a single integer. None
    for an index with other parts than integers, slices and None."""
    if not isinstance(parts, list) or not all(
        part in (None, ...) or type(part) in (int, slice) for part in parts
    ):
        return None
    parts = [part for part in parts if part is not None]  # a dimension of 1 moves no element
    if ... in parts:
        place = parts.index(...)
        missing = len(shape) - len(parts) + 1
        parts = [*parts[:place], *[slice(None)] * missing, *parts[place + 1 :]]
    parts = [*parts, *[slice(None)] * (len(shape) - len(parts))]
    if len(parts) != len(shape) or ... in parts:
        return None
    return [_step(part, size) for part, size in zip(parts, shape, strict=True)]


def _step(part: int | slice, size: int) -> list[int]:
    if isinstance(part, int):
        return [part % max(size, 1), 1, 0]
    start, stop, step = part.indices(size)
    return [start, step, len(range(start, stop, step))]
