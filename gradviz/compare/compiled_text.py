"""A pass as it is and compiled, as text for a terminal and as plain data."""

from __future__ import annotations

from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.compare.compiled import Compiled, Pair
from gradviz.compare.rounding import REPLAYS, UNITS
from gradviz.replay.changed_pass_text import check_text, table
from gradviz.words.escape import clean, json_number
from gradviz.words.numbers import number, plural
from gradviz.words.words import Words

_SHOWN = 20  # the most values that are shown


def compiled_text(words: Words, found: Compiled) -> Group:
    """The roots and gradients of the two passes, how far they are apart, and the verdict."""
    calls, inputs = plural(len(found.plan.calls), "call"), plural(len(found.plan.inputs), "input")
    head = f"pass {found.plan.number} runs again with {clean(found.runner)}: {calls}, {inputs}"
    rounding = (
        f"rounding, by {REPLAYS} replays with inputs disturbed by one unit in the last place of {found.dtype} "
        f"({number(UNITS[found.dtype], 2)})"
    )
    parts: list[RenderableType] = [
        Text(head, "bold"),
        Text(check_text(words, found.check)),
        Text(f"compiled by {clean(found.backend)}, and compared beyond {rounding}:"),
        Text(),
        _table(found.pairs),
        Text(),
        Text(_told(words, found), "bold"),
    ]
    return Group(*parts)


def _table(pairs: tuple[Pair, ...]) -> Table:
    """The table of the values, those that differ by more than rounding first."""
    values = table("", "apart", "rounding", "largest difference", "")
    ordered = sorted(pairs, key=lambda pair: not pair.is_beyond)
    for pair in ordered[:_SHOWN]:
        values.add_row(
            Text(clean(pair.called)), _size(pair.apart), _size(pair.allowed), _size(pair.largest), _how(pair)
        )
    if len(ordered) > _SHOWN:
        values.add_row(Text(f"and {len(ordered) - _SHOWN} more"))
    return values


def _size(size: float | None) -> str:
    if size is None:
        return ""
    return "not to be subtracted" if np.isnan(size) else number(size, 2)


def _how(pair: Pair) -> str:
    if pair.eager is None and pair.compiled is None:
        return "none in either"
    if pair.is_equal:
        return "equal"
    if pair.eager is None or pair.compiled is None:
        return "there is one compiled" if pair.eager is None else "none compiled"
    return "beyond rounding" if pair.is_beyond else "rounding"


def _told(words: Words, found: Compiled) -> str:
    first = found.first
    if first is None:
        equal = sum(pair.is_equal for pair in found.pairs)
        rest = len(found.pairs) - equal
        apart = f", {rest} apart by rounding alone" if rest else ""
        of_all = f"{equal} of {plural(len(found.pairs), 'value')} to the last bit"
        return f"compiled, the pass gives the same: {of_all}{apart}"
    where = "" if first.site is None else f", of what the pass reads{words.at_line(first.site.number)}"
    what = "the first gradient" if first.is_gradient else "no gradient, but a root"
    return f"{what} that differs when compiled: {clean(first.called)}{where}"


def compiled_json(words: Words, found: Compiled) -> dict[str, Any]:
    """The comparison as plain data."""
    return {
        "pass": found.plan.number,
        "runner": found.runner,
        "backend": found.backend,
        "replay": {"equal": found.check.is_equal},
        "dtype": found.dtype,
        "same": found.first is None,
        "first": None if found.first is None else _pair(found.first),
        "values": [_pair(pair) for pair in found.pairs],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    sizes = {"apart": pair.apart, "allowed": pair.allowed, "largest": pair.largest}
    return {
        "of": pair.called,
        **{name: None if size is None else json_number(size) for name, size in sizes.items()},
        "how": _how(pair),
        "line": None if pair.site is None else pair.site.place.line,
    }
