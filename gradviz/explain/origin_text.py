"""A reason as text for a terminal, and as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradviz.explain.hops import Hop, files_are_told
from gradviz.explain.reason import (
    ABOUT,
    Contribution,
    Reason,
    hop_cells,
    paths_text,
    percent,
    reason_called,
    value_text,
)
from gradviz.words.escape import clean
from gradviz.words.numbers import number

_HEAD, _TAIL = 6, 8  # the most hops that are shown at the ends of a path


def reason_text(reason: Reason) -> Group:
    """The gradient, its largest contributions, and the check that they add up."""
    head = Text.assemble(
        "gradient of ",
        (reason_called(reason), "bold"),
        f" = {value_text(reason.gradient)}  in pass {reason.number} (event {reason.event + 1}): "
        f"{paths_text(reason.paths)} from {clean(reason.roots)}",
    )
    parts: list[RenderableType] = [head, Text()]
    for position, contribution in enumerate(reason.contributions, 1):
        parts += [*_contribution(contribution, position, reason), Text()]
    return Group(*parts, *_sum(reason))


def _contribution(contribution: Contribution, position: int, reason: Reason) -> Iterator[RenderableType]:
    share = "" if np.isnan(contribution.share) else f"{percent(contribution.share)}  "
    about = "" if contribution.exact else f"{ABOUT} "
    yield Text.assemble(f"{position}. ", (f"{about}{share}", "bold"), value_text(contribution.value))
    yield Padding(_chain(contribution), (0, 0, 0, 3))


def _chain(contribution: Contribution) -> Table:
    """The hops of a path from the root on, one in each line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=2)
    table.add_column(style="yellow", overflow="fold", ratio=3)
    table.add_column(style="green", overflow="fold", ratio=2)
    table.add_column(style="dim", no_wrap=True)
    hops = contribution.hops
    with_file = files_are_told(hop.site for hop in hops)
    if contribution.cut:
        table.add_row("…", "gradients meet here whose elements were not recorded (--values full)")
    left_out = contribution.left_out + max(len(hops) - _HEAD - _TAIL, 0)
    for hop in hops[:_HEAD] if left_out else hops:
        table.add_row(*map(Text, hop_cells(hop, with_file)))
    if left_out:
        table.add_row("…", f"{left_out:,} more steps")
        for hop in hops[-_TAIL:]:
            table.add_row(*map(Text, hop_cells(hop, with_file)))
    return table


def _sum(reason: Reason) -> Iterator[Text]:
    others = reason.paths - len(reason.contributions)
    if not np.isfinite(reason.gradient).all():
        yield Text(
            "The gradient is not finite, so there is no sum. The paths are those that bring NaN or inf."
        )
        return
    if others:
        yield _line("others", f"{paths_text(others)} together: {value_text(reason.rest)}")
    if np.any(reason.hooks):
        yield _line("hooks", f"hooks on {clean(reason.called)} add {value_text(reason.hooks)}")
    same = "it is the recorded gradient" if reason.adds_up else "NOT the recorded gradient"
    size = float(np.max(np.abs(reason.gradient), initial=0.0)) or 1.0
    off = (
        f" (off by {number(reason.error / size, 2)} of it{', rounding' * reason.adds_up})"
        if reason.error
        else ""
    )
    yield _line("sum", f"{_addition(reason)}: {same}{off}")
    hops = [hop for contribution in reason.contributions for hop in contribution.hops]
    if any(hop.others for hop in hops):
        yield _line("+", "more gradients meet here, and their sum goes on")
    if not all(contribution.exact for contribution in reason.contributions):
        alone = (
            f"is not known: {clean(reason.unknown)}"
            if reason.unknown
            else "is known of PyTorch's passes with gradviz trace --values full"
        )
        yield _line(
            ABOUT,
            "ops below mix their elements: each of them has the share of its size in the sum; what each brings alone "
            + alone,
        )


def _line(label: str, text: str) -> Text:
    return Text.assemble((f"{label:8}", "dim"), text)


def _addition(reason: Reason) -> str:
    """The contributions as a sum of numbers, or of shares if the gradient has several elements. Of zeros there are no
    shares: the sum is that of the values."""
    terms = [contribution.value for contribution in reason.contributions]
    terms += [reason.rest] * (reason.paths > len(terms)) + [reason.hooks] * bool(np.any(reason.hooks))
    if reason.gradient.size == 1:
        texts = [number(term.reshape(-1)[0]) for term in terms]
        total = number(reason.gradient.reshape(-1)[0])
    else:
        shares = [contribution.share for contribution in reason.contributions]
        shares += [reason.rest_share] * (reason.paths > len(shares))
        total = value_text(reason.gradient)
        if np.isnan(shares).any():
            texts = list(map(value_text, terms))
        else:
            texts = [*map(percent, shares), *(["hooks"] * bool(np.any(reason.hooks)))]
    return " + ".join(f"({one})" if one.startswith("-") else one for one in texts) + f" = {total}"


def reason_json(reason: Reason) -> dict[str, Any]:
    """The reason as plain data."""
    return {
        "tensor": reason.called,
        "index": reason.index or None,
        "pass": reason.number,
        "event": reason.event + 1,
        "gradient": _plain(reason.gradient),
        "paths": reason.paths,
        "contributions": [
            {
                "value": _plain(contribution.value),
                "share": _finite(contribution.share),
                "exact": contribution.exact,
                "cut": contribution.cut,
                "left_out": contribution.left_out,
                "steps": [_step(hop) for hop in contribution.hops],
            }
            for contribution in reason.contributions
        ],
        "rest": _plain(reason.rest),
        "hooks": _plain(reason.hooks),
        "error": _finite(reason.error),
        "adds_up": reason.adds_up,
    }


def _step(hop: Hop) -> dict[str, Any]:
    return {
        "node": hop.node or None,
        "grad_fn": hop.grad_fn or None,
        "file": hop.site.place.file if hop.site is not None else None,
        "line": hop.site.place.line if hop.site is not None else None,
        "expression": hop.expression,
        "local": hop.local,
        "gradient": hop.gradient,
        "meets": hop.others,
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _plain(array: np.ndarray) -> Any:
    """The array as nested lists of numbers. Numbers that JSON lacks (NaN, infinities, complex numbers) are text."""
    if np.ndim(array):
        return [_plain(part) for part in array]
    one = array[()]
    return float(one.real) if np.isreal(one) and np.isfinite(one) else str(one)
