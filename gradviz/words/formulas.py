"""The local derivative of a node as text: its formula with the names of the program, and its number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from gradviz.events.field_types import Rule
from gradviz.query.chain_step import stated
from gradviz.words.escape import clean, shortened_left
from gradviz.words.numbers import SHOWN, nested

_LONGEST = 40  # a longer name is cut at its beginning in formulas
_ALONE = re.compile(r"[\w.]+(\([^()]*\))?")  # a name or a call needs no brackets


def formulas(rule: Rule, called: Iterable[str], result: str = "") -> Sequence[tuple[str, str]]:
    """For each input of an op, or edge of a node: its name in the formula, and the formula. The names of the
    inputs (`called`) and that of the result replace the names used in the rule. An input that the rule does not
    mention gets empty texts."""
    return _formulas(rule, tuple(called), result)


@lru_cache(maxsize=1024)
def _formulas(rule: Rule, called: tuple[str, ...], result: str) -> Sequence[tuple[str, str]]:
    known = stated(rule, len(called))
    called = tuple(shortened_left(name, _LONGEST) for name in called)
    names = {symbol: name for (symbol, _), name in zip(known, called, strict=True) if name}
    names["g"] = "upstream"
    if result:
        names["out"] = shortened_left(result, _LONGEST)
    return [
        (names.get(symbol, clean(symbol)) or name, _with_names(clean(text), names))
        for (symbol, text), name in zip(known, called, strict=True)
    ]


def _with_names(text: str, names: dict[str, str]) -> str:
    """Replace the names in a formula by the names of the program, all at the same time."""

    def put(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        if text[match.end() : match.end() + 1] in (*"ᵀ⁻²³^",) and not re.fullmatch(r"\w+", name):
            return f"({name})"
        enclosed = text[: match.start()].endswith("(") and text[match.end() :].startswith(")")
        return name if match[0] == text or enclosed or _ALONE.fullmatch(name) else f"({name})"

    return re.sub(r"[A-Za-z]+(?!\u0302)", put, text)  # x̂ is another name than x


def numbers_of(array: np.ndarray | None) -> str:
    """A local derivative in numbers; empty if it is not known or too large."""
    return nested(array) if array is not None and array.size <= SHOWN else ""
