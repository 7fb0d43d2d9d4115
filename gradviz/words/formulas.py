"""The local derivative of a node: its formula, and its number where one can be told from the gradients."""

from __future__ import annotations

import re

import numpy as np

from gradviz.events.fields import Rule
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean
from gradviz.words.numbers import SHOWN, nested

_LONGEST = 32  # a name of up to so many characters is put into the formula


def formulas(rule: Rule, called: list[str]) -> list[tuple[str, str]]:
    """For each input of an op, or edge of a node, the name it has in the formula and the formula. The inputs' own
    names (`called`) take the places of those in the rule. An input of which the rule says nothing is left empty; a
    rule of one formula is for each of several."""
    known = [(clean(name), clean(text)) for name, text in rule.inputs]
    if len(known) == 1 and len(called) > 1:
        return [(name, known[0][1]) for name in called]
    names = {symbol: name for (symbol, _), name in zip(known, called, strict=False) if len(name) <= _LONGEST}
    names["g"] = "upstream"
    told = [(names.get(symbol, symbol), _with_names(text, names)) for symbol, text in known]
    return [*told[: len(called)], *[("", "")] * (len(called) - len(told))]


def _with_names(text: str, names: dict[str, str]) -> str:
    """A formula with the names of a program for its own, all at once."""

    def put(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        enclosed = text[: match.start()].endswith("(") and text[match.end() :].startswith(")")
        return name if match[0] == text or enclosed or re.fullmatch(r"[\w.]+", name) else f"({name})"

    return re.sub(r"[A-Za-z]+", put, text)


def is_whole_vjp(formula: str) -> bool:
    """Whether a formula has the upstream gradient in it, so that it is all of the VJP."""
    return "upstream" in formula


def is_number(formula: str) -> bool:
    """Whether a formula is nothing but a number."""
    return formula.lstrip("−-").replace(".", "", 1).isdigit()


def local_number(elementwise: bool, upstream: Snapshot | None, downstream: Snapshot | None) -> str:
    """The local derivative as numbers: downstream / upstream where both are scalars, or elementwise; else empty."""
    up, down = (None if s is None else s.array for s in (upstream, downstream))
    if up is None or down is None or up.shape != down.shape or up.size > SHOWN or up.dtype.kind not in "f":
        return ""
    if up.ndim and up.size > 1 and not elementwise:
        return ""
    with np.errstate(all="ignore"):
        ratio = down.astype(np.float64) / up.astype(np.float64)
    if not np.all(np.isfinite(ratio)):
        return ""
    return nested(np.array([float(f"{v:.5g}") for v in ratio.reshape(-1)]).reshape(ratio.shape))
