"""A difference as text for a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from gradviz.compare.difference import ADDED, CHANGED, GONE, Change, Difference, Norm, Parting, Spot
from gradviz.system.paths import file_name
from gradviz.words.escape import plain
from gradviz.words.numbers import number, plural

_STYLES = {ADDED: ("+", "green"), GONE: ("−", "red"), CHANGED: ("~", "yellow")}
_SHOWN = 20  # the most changes that are shown, and the most parameters
_LONGEST = 200  # characters of a text of the trace


def difference_text(found: Difference) -> Group:
    """The changed lines, the first differences, the changed operations, and the norms."""
    parts: list[RenderableType] = [Text.assemble(("− ", "red"), _line(found.names[0])),
                                   Text.assemble(("+ ", "green"), _line(found.names[1]))]  # fmt: skip
    parts += _lines(found)
    parts += [
        Text(),
        *_parting("forward", found.forward, found),
        *_parting("backward", found.backward, found),
    ]
    if found.changes:
        parts += [Text(), *_changes(found.changes)]
    if found.norms:
        parts += [Text(), _norms(found)]
    return Group(*parts, Text(), *_counts(found))


def _lines(found: Difference) -> Iterator[Text]:
    for lines in found.lines[:_SHOWN]:
        yield Text()
        for sign, style, file, start, texts in (
            ("−", "red", lines.file, lines.one, lines.before),
            ("+", "green", lines.other_file, lines.other, lines.after),
        ):
            for line, text in enumerate(texts[:_SHOWN], start):
                yield Text(f"{sign} {_line(file_name(file))}:{line}  {_line(text)}", style)


def _parting(phase: str, parting: Parting | None, found: Difference) -> Iterator[Text]:
    if parting is None:
        yield Text.assemble((f"{phase:9}", "bold"), "no difference")
        return
    where = f" in pass {parting.number}" if parting.number else ""
    apart = "" if np.isnan(parting.apart) else f", {number(parting.apart, 2)} apart"
    only = "only in one of them" if None in (parting.one, parting.other) else f"the values part{apart}"
    yield Text.assemble((f"{phase:9}", "bold"), f"first difference{where}: {only}")
    for sign, style, spot in (("−", "red", parting.one), ("+", "green", parting.other)):
        if spot is not None:
            yield Text.assemble((f"         {sign} ", style), spot_text(spot))
    if parting.line is not None:
        lines = found.lines[parting.line]
        change = (lines.after or lines.before)[0].strip()
        yield Text(f"           changed line {lines.other if lines.after else lines.one}: {_line(change)}")


def _line(text: str) -> str:
    return plain(text, _LONGEST)


def spot_text(spot: Spot) -> str:
    """One line for an item of a run: its place, its description, its value, its event."""
    value = f" = {_line(spot.value)}" if spot.value else ""
    return f"{_place(spot)}  {_line(spot.what)}{value}  (event {spot.event + 1})"


def _place(spot: Spot) -> str:
    return "?" if spot.site is None else f"{_line(file_name(spot.site.place.file))}:{spot.site.place.line}"


def _changes(changes: tuple[Change, ...]) -> Iterator[Text]:
    counts = [
        plural(n, f"{kind} operation") for kind in _STYLES if (n := sum(c.kind == kind for c in changes))
    ]
    yield Text(", ".join(counts), "bold")
    for change in changes[:_SHOWN]:
        spot = change.other or change.one
        assert spot is not None
        sign, style = _STYLES[change.kind]
        times = f" ×{change.count}" if change.count > 1 else ""
        detail = f"  {_line(change.detail)}" if change.detail else ""
        yield Text.assemble(
            (f"{sign} ", style), f"{_place(spot)}  {_line(spot.what)}{times}", (detail, "yellow")
        )
    if len(changes) > _SHOWN:
        yield Text(f"… and {len(changes) - _SHOWN:,} more", "dim")


def _norms(found: Difference) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(Text("norm of the gradient", "bold"), *(f"pass {n}" for n in found.norms_in), "ratio")
    by_distance = sorted(found.norms, key=_distance, reverse=True)
    for norm in by_distance[:_SHOWN]:
        norms = [_number(norm.one), _number(norm.other)]
        table.add_row(Text(_line(norm.name)), *norms, _ratio(norm))
    if len(by_distance) > _SHOWN:
        table.add_row(Text(f"… and {len(by_distance) - _SHOWN:,} more, closer", "dim"))
    return table


def _distance(norm: Norm) -> float:
    """The distance of two norms: the absolute logarithm of their ratio."""
    if norm.one is None or norm.other is None or not norm.one > 0 or not norm.other > 0:
        same = norm.one == norm.other
        return 0.0 if same else np.inf
    return abs(float(np.log(norm.other / norm.one)))


def _number(value: float | None) -> str:
    return "–" if value is None else number(value, 4)


def _ratio(norm: Norm) -> str:
    known = norm.one and norm.other is not None and np.isfinite([norm.one, norm.other]).all()
    return f"{norm.other / norm.one:.4g}" if known and norm.one and norm.other is not None else ""


def _counts(found: Difference) -> Iterator[Text]:
    yield Text.assemble(
        ("the runs are the same" if found.same else "the runs differ", "bold"),
        f" · {plural(found.compared, 'value')} compared, {found.unknown:,} not recorded",
    )
    one, other = found.passes
    if one != other and " pass " not in found.names[0]:
        yield Text(f"one has {plural(one, 'pass', 'passes')}, the other {other:,}")


def difference_json(found: Difference) -> dict[str, Any]:
    """The difference as plain data."""
    return {
        "runs": list(found.names),
        "same": found.same,
        "forward": _parting_json(found.forward, found),
        "backward": _parting_json(found.backward, found),
        "changes": [
            {
                "kind": change.kind,
                "one": spot_json(change.one),
                "other": spot_json(change.other),
                "detail": change.detail,
                "count": change.count,
            }
            for change in found.changes
        ],
        "source": [
            {
                "file": lines.file,
                "other_file": lines.other_file,
                "line": lines.one,
                "other_line": lines.other,
                "before": list(lines.before),
                "after": list(lines.after),
            }
            for lines in found.lines
        ],
        "norms": [
            {"name": norm.name, "one": _finite(norm.one), "other": _finite(norm.other)}
            for norm in found.norms
        ],
        "passes": list(found.passes),
        "compared": found.compared,
        "not_recorded": found.unknown,
    }


def _parting_json(parting: Parting | None, found: Difference) -> dict[str, Any] | None:
    if parting is None:
        return None
    lines = found.lines[parting.line] if parting.line is not None else None
    return {
        "one": spot_json(parting.one),
        "other": spot_json(parting.other),
        "apart": _finite(parting.apart),
        "pass": parting.number or None,
        "changed_line": None if lines is None else lines.one,
        "changed_line_other": None if lines is None else lines.other,
    }


def spot_json(spot: Spot | None) -> dict[str, Any] | None:
    """An item of a run as plain data; events count from 1."""
    if spot is None:
        return None
    return {
        "event": spot.event + 1,
        "file": spot.site.place.file if spot.site is not None else None,
        "line": spot.site.place.line if spot.site is not None else None,
        "what": spot.what,
        "value": spot.value,
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not np.isfinite(value) else float(value)
