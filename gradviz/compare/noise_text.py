"""The differences of two runs beyond rounding, as text for a terminal and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.compare.difference import Spot
from gradviz.compare.noise import Beyond, Noise, NoisyGradient, OtherNumbers
from gradviz.compare.parting_text import spot_json, spot_text
from gradviz.compare.rounding import REPLAYS, UNITS
from gradviz.system.paths import file_name
from gradviz.words.escape import json_number, plain
from gradviz.words.numbers import number, plural

_THINGS = {"entering": "parameter", "forward": "result", "backward": "gradient"}
_SHOWN = 20  # the most parameters that are shown
_LONGEST = 200  # characters of a name


def noise_text(found: Noise) -> Group:
    """The differences that rounding does not explain, the gradients of parameters, and the verdict."""
    passes = [f" pass {pass_number}" for pass_number in found.passes]
    parts: list[RenderableType] = [
        Text.assemble((f"{sign} ", style), plain(name, _LONGEST) + of)
        for sign, style, name, of in zip("−+", ("red", "green"), found.names, passes, strict=True)
    ]
    parts += [Text(), Text(_measured(found))]
    if found.numbers is not None:
        parts += _other_numbers(found.numbers)
    for phase, beyond in _phases(found):
        parts += _beyond(phase, beyond, found.compared[phase])
    if found.gradients:
        parts += [Text(), _gradients(found.gradients)]
    verdict = "apart by rounding alone" if found.same else "apart by more than rounding"
    compared = sum(found.compared.values())
    counts = f" · {plural(compared, 'value')} compared, {found.unknown:,} not known"
    return Group(
        *parts,
        Text(),
        Text.assemble((f"the runs are {verdict}" if compared else "nothing is known", "bold"), counts),
    )


def _measured(found: Noise) -> str:
    return (
        f"rounding, by {REPLAYS} replays of {plain(found.replayed, _LONGEST)} with inputs disturbed by one unit in the "
        f"last place of {found.dtype} ({number(UNITS[found.dtype], 2)}):"
    )


def _phases(found: Noise) -> list[tuple[str, Beyond | None]]:
    return [("entering", found.entering), ("forward", found.forward), ("backward", found.backward)]


def _other_numbers(found: OtherNumbers) -> Iterator[Text]:
    """The line `numbers  line 7: mul with 3.03 instead of 3.0`, then both items."""
    where = "" if found.other.site is None else f"line {found.other.site.place.line}: "
    one, other = (plain(text, _LONGEST) or "none" for text in found.arguments)
    yield Text.assemble(
        ("numbers  ", "bold"), f"{where}{plain(found.op, _LONGEST)} with {other} instead of {one}"
    )
    yield from _both(found.one, found.other)


def _both(one: Spot, other: Spot) -> Iterator[Text]:
    """One line for the item of each run."""
    for sign, style, spot in (("−", "red", one), ("+", "green", other)):
        yield Text.assemble((f"         {sign} ", style), spot_text(spot))


def _beyond(phase: str, beyond: Beyond | None, compared: int) -> Iterator[Text]:
    if beyond is None:
        result = (
            f"nothing is beyond it, of {plural(compared, _THINGS[phase])}" if compared else "not compared"
        )
        yield Text.assemble((f"{phase:9}", "bold"), result)
        return
    yield Text.assemble((f"{phase:9}", "bold"), f"first beyond it: {_sizes(beyond.apart, beyond.allowed)}")
    yield from _both(beyond.one, beyond.other)


def _sizes(apart: float, allowed: float) -> str:
    by = "not to be subtracted" if np.isnan(apart) else f"{number(apart, 2)} apart"
    return f"{by}, where rounding puts at most {number(allowed, 2)}"


def _gradients(gradients: tuple[NoisyGradient, ...]) -> Table:
    """The gradients of parameters, sorted by how far they are beyond rounding."""
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("gradient", "bold"), "apart", "by rounding at most", "")
    for gradient in sorted(gradients, key=_excess, reverse=True)[:_SHOWN]:
        sizes = [_size(gradient.apart), _size(gradient.allowed)]
        table.add_row(Text(plain(gradient.name, _LONGEST)), *sizes, Text(_said(gradient)))
    if len(gradients) > _SHOWN:
        table.add_row(Text(f"… and {len(gradients) - _SHOWN:,} more, closer", "dim"))
    return table


def _said(gradient: NoisyGradient) -> str:
    if not gradient.is_beyond:
        return ""
    site = gradient.site
    where = "" if site is None else f", read at {file_name(site.place.file)}:{site.place.line}"
    return f"beyond{plain(where, _LONGEST)}"


def _excess(gradient: NoisyGradient) -> float:
    if gradient.apart is None or gradient.allowed is None:
        return -1.0
    return np.inf if np.isnan(gradient.apart) else gradient.apart / gradient.allowed


def _size(size: float | None) -> str:
    return "?" if size is None else "–" if np.isnan(size) else number(size, 2)


def noise_json(found: Noise) -> dict[str, Any]:
    """The comparison as plain data. Sizes are relative to the largest element."""
    return {
        "runs": list(found.names),
        "passes": list(found.passes),
        "replayed": found.replayed,
        "dtype": found.dtype,
        "same": found.same,
        "numbers": _numbers_json(found.numbers),
        **{phase: _beyond_json(beyond) for phase, beyond in _phases(found)},
        "gradients": [
            {
                "name": gradient.name,
                "apart": json_number(gradient.apart),
                "allowed": json_number(gradient.allowed),
                "beyond": gradient.is_beyond,
                "line": None if gradient.site is None else gradient.site.place.line,
            }
            for gradient in found.gradients
        ],
        "compared": found.compared,
        "unknown": found.unknown,
    }


def _numbers_json(found: OtherNumbers | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "op": found.op,
        "one": spot_json(found.one),
        "other": spot_json(found.other),
        "arguments": list(found.arguments),
    }


def _beyond_json(beyond: Beyond | None) -> dict[str, Any] | None:
    if beyond is None:
        return None
    return {
        "one": spot_json(beyond.one),
        "other": spot_json(beyond.other),
        "apart": json_number(beyond.apart),
        "allowed": json_number(beyond.allowed),
    }
