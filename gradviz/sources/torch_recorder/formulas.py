"""The formulas of the derivatives of PyTorch's ops, for people: those that gradviz's own engine shows for its ops."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gradviz.events.fields import Rule
from gradviz.events.formulas import with_values
from gradviz.events.listener import NO_RULE

_FILE = Path(__file__).parent.parent / "formulas.json"
_PLAIN = (int, float, str, bool, type(None))
_UNKNOWN: Any = object()


@cache
def _table() -> dict[str, list[dict[str, Any]]]:
    return json.loads(_FILE.read_text(encoding="utf-8"))


def rule_of(name: str, args: Sequence[Any], kwargs: Mapping[str, Any], inputs: int) -> Rule:
    """The rule of an op that was called so, with so many inputs."""
    rows = _table().get(name) or _table().get(name.rstrip("_"))
    if rows is None:
        return NO_RULE
    given = tuple(arg for arg in args if isinstance(arg, _PLAIN))
    named = {key: value for key, value in kwargs.items() if isinstance(value, _PLAIN)}
    of_number = bool(args) and isinstance(args[0], (int, float))
    row = _row(rows, inputs, of_number, named)
    return NO_RULE if row is None else _filled(row, given, named)


def _row(
    rows: Sequence[dict[str, Any]], inputs: int, of_number: bool, named: Mapping[str, Any]
) -> dict[str, Any] | None:
    """The row for so many inputs that knows the most of the arguments; `of_number` says that a number stands before
    the tensor, as in 2 ** x."""
    fitting = [row for row in rows if len(row["inputs"]) == inputs and ("base" in row["args"]) == of_number]
    return max(fitting, key=lambda row: len(named.keys() & {*row["args"]}), default=None)


def _filled(row: dict[str, Any], given: Sequence[Any], named: dict[str, Any]) -> Rule:
    """The formulas of a row for these arguments."""
    known = {name: value for name, value in named.items() if name in row["args"]}
    values = dict(zip(row["args"], given, strict=False)) | known
    pairs = zip(row["inputs"], row["texts"], strict=True)
    formulas = tuple((name, with_values(_chosen(text, values), values)) for name, text in pairs)
    return Rule(formulas, row["elementwise"])


def _chosen(text: Any, values: Mapping[str, Any]) -> str:
    """The formula for these arguments; empty where it depends on one that was not given."""
    while not isinstance(text, str):
        argument, cases, otherwise = text
        value = values.get(argument, _UNKNOWN)
        if value is _UNKNOWN:
            return ""
        text = next((branch for case, branch in cases if case == value), otherwise)
    return text


@cache
def rules_of_linear() -> tuple[Rule, Rule]:
    """The rules of the transpose and of `addmm`, which `linear` consists of."""
    return rule_of("t", (), {}, 1), rule_of("addmm", (), {}, 3)
