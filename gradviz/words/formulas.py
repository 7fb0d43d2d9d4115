"""The local derivative of a node: its formula, and its number if the gradients determine it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np

from gradviz.events.fields import Rule
from gradviz.tracefile import Snapshot
from gradviz.words.escape import clean
from gradviz.words.numbers import SHOWN, nested

_LONGEST = 32  # names up to this long are put into formulas


def formulas(rule: Rule, called: Iterable[str]) -> Sequence[tuple[str, str]]:
    """For each input of an op, or edge of a node: its name in the formula, and the formula. The names of the
    inputs (`called`) replace the names used in the rule. An input that the rule does not mention gets empty
    texts. A rule with one formula applies to all inputs."""
    return _formulas(rule, tuple(called))


@lru_cache(maxsize=1024)
def _formulas(rule: Rule, called: tuple[str, ...]) -> Sequence[tuple[str, str]]:
    known = [(clean(name), clean(text)) for name, text in rule.inputs]
    if len(known) == 1 and len(called) > 1:
        return [(name, known[0][1]) for name in called]
    names = {symbol: name for (symbol, _), name in zip(known, called, strict=False) if len(name) <= _LONGEST}
    names["g"] = "upstream"
    told = [(names.get(symbol, symbol), _with_names(text, names)) for symbol, text in known]
    return [*told[: len(called)], *[("", "")] * (len(called) - len(told))]


def _with_names(text: str, names: dict[str, str]) -> str:
    """Replace the names in a formula by the names of the program, all at the same time."""

    def put(match: re.Match[str]) -> str:
        name = names.get(match[0], match[0])
        enclosed = text[: match.start()].endswith("(") and text[match.end() :].startswith(")")
        return name if match[0] == text or enclosed or re.fullmatch(r"[\w.]+", name) else f"({name})"

    return re.sub(r"[A-Za-z]+", put, text)


def is_whole_vjp(formula: str) -> bool:
    """Whether a formula contains the upstream gradient, so that it is the complete VJP."""
    return "upstream" in formula


def is_number(formula: str) -> bool:
    """Whether a formula is only a number."""
    return formula.lstrip("−-").replace(".", "", 1).isdigit()


def local_number(elementwise: bool, upstream: Snapshot | None, downstream: Snapshot | None) -> str:
    """The local derivative as numbers: downstream / upstream if both are scalars or the op is elementwise;
    else empty."""
    up, down = (None if s is None else s.array for s in (upstream, downstream))
    if up is None or down is None or up.shape != down.shape or up.size > SHOWN:
        return ""
    if up.dtype.kind != "f" or down.dtype.kind != "f":
        return ""
    if up.ndim and up.size > 1 and not elementwise:
        return ""
    with np.errstate(all="ignore"):
        ratio = down.astype(np.float64) / up.astype(np.float64)
    if not np.all(np.isfinite(ratio)):
        return ""
    return nested(np.array([float(f"{v:.5g}") for v in ratio.reshape(-1)]).reshape(ratio.shape))
