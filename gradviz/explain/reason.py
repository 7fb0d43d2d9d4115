"""Reason: the answer of `why` for a tensor whose elements were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gradviz.explain.hops import Hop, files_are_told, place_told
from gradviz.query.gradient_paths import MOST_PATHS
from gradviz.words.escape import clean
from gradviz.words.html_table import html_table
from gradviz.words.numbers import SHOWN, nested, number, plural

ABOUT = "≈"


@dataclass(frozen=True, slots=True)
class Contribution:
    """The contribution of one path: its value and its share in the gradient. `exact` is True if the value is the
    product of the local derivatives along the path; else sums of gradients on the path are divided by the sizes of
    their terms. `cut` is True if the path begins at a sum whose elements were not recorded. `left_out` hops in the
    middle are left out."""

    value: np.ndarray
    share: float
    exact: bool
    cut: bool
    hops: tuple[Hop, ...]
    left_out: int


@dataclass(frozen=True, slots=True)
class Reason:
    """The gradient of a tensor in a pass, at an event, as a sum: the largest contributions, the `rest` from all other
    paths, and `hooks`, the part that hooks on the tensor added. `paths` counts all paths. `index` is the index as the
    user wrote it, empty for the whole tensor. `roots` are the names of the roots. `unknown` is why the exact
    contributions are not known, empty if they are, or were not asked for."""

    tensor: int
    called: str
    index: str
    number: int
    event: int
    roots: str
    gradient: np.ndarray
    contributions: tuple[Contribution, ...]
    rest: np.ndarray
    rest_share: float
    hooks: np.ndarray
    paths: int
    error: float
    adds_up: bool
    unknown: str = ""
    links: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        """The contributions as blocks of text, each with its path below it."""
        lines = [reason_head(self)]
        for one in self.contributions:
            lines += ["  ".join(filter(None, (_share(one), value_text(one.value))))]
            lines += [f"   {line}" for line in _path_told(one)]
        return "\n".join(filter(None, [*lines, self._rest_told]))

    def _repr_html_(self) -> str:
        rows = [
            (_share(one), value_text(one.value), "\n".join(_path_told(one))) for one in self.contributions
        ]
        return html_table(
            ("share", "value", "path, from the root"), rows, reason_head(self), self._rest_told, self.links
        )

    @property
    def _rest_told(self) -> str:
        others = self.paths - len(self.contributions)
        return f"{paths_text(others)} more: {value_text(self.rest)}" if others else ""


def reason_head(reason: Reason) -> str:
    """The gradient, its pass and the number of its paths, in one sentence."""
    return (
        f"gradient of {reason_called(reason)} = {value_text(reason.gradient)} in pass {reason.number} "
        f"(event {reason.event + 1}): {paths_text(reason.paths)} from {clean(reason.roots)}"
    )


def _share(one: Contribution) -> str:
    share = "" if np.isnan(one.share) else percent(one.share)
    return share if one.exact else f"{ABOUT} {share}"


def _path_told(one: Contribution) -> list[str]:
    with_file = files_are_told(hop.site for hop in one.hops)
    lines = ["  ".join(filter(None, hop_cells(hop, with_file))) for hop in one.hops]
    if one.left_out:
        lines.insert(len(lines) // 2, f"… {one.left_out:,} more steps")
    if one.cut:
        lines.insert(0, "… gradients meet here whose elements were not recorded")
    return lines


def reason_called(reason: Reason) -> str:
    return clean(reason.called) + (f"[{clean(reason.index)}]" if reason.index else "")


def hop_cells(hop: Hop, with_file: bool) -> tuple[str, ...]:
    """The cells of a hop in a table; with the file of its line if `with_file`."""
    place = place_told(hop.site, with_file)
    notes = (f"+ {hop.others} more" * bool(hop.others), ABOUT * (not hop.exact), "hook" * hop.hooked)
    note = " ".join(filter(None, notes))
    parts = (place, hop.expression, hop.local or hop.grad_fn, f"→ {hop.gradient}", note)
    return tuple(clean(part) for part in parts)


def paths_text(count: int) -> str:
    return plural(count, "path") if count < MOST_PATHS // 2 else "more paths than can be counted"


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def value_text(array: np.ndarray) -> str:
    """A contribution: its elements if there are few, else its shape and norm."""
    if array.size <= SHOWN:
        return nested(array)
    with np.errstate(all="ignore"):
        norm = float(np.linalg.norm(array))
    return f"({'×'.join(map(str, array.shape))}) norm {number(norm, 4)}"
