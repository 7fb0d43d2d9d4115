"""Reason: the answer of `why` for a tensor whose elements were recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from gradviz.events.kinds import Kind, NodeMade, PassBegan, Produced
from gradviz.query.chain_step import chain_step
from gradviz.query.gradient_paths import MOST_PATHS, Arrival, Step
from gradviz.query.passes import Deliveries
from gradviz.system.paths import file_name, is_cell
from gradviz.tracefile import Site
from gradviz.words.chain import formula_of, local, over
from gradviz.words.escape import clean
from gradviz.words.html_table import html_table
from gradviz.words.numbers import SHOWN, brief, nested, number, plural
from gradviz.words.words import Words

# The steps of a path in words: the place, the expression, the local derivative, the gradient that goes on.

_LONGEST = 32  # characters of an expression


@dataclass(frozen=True, slots=True)
class Hop:
    """A step of a path. `expression` at `site` made `node` (0: the gradient of the root, from outside). `local` is the
    local derivative for this edge, as text; `gradient` is the gradient that goes on. It meets `others` more gradients.
    `exact` is True if the share of each is known, `hooked` if a hook changed their sum."""

    node: int
    grad_fn: str
    site: Site | None
    expression: str
    local: str
    gradient: str
    others: int
    exact: bool
    hooked: bool


def place_told(site: Site | None, with_file: bool) -> str:
    """The line of a place, and its file if there are several."""
    if site is None:
        return "?"
    return f"{file_name(site.place.file)}:{site.place.line}" if with_file else f"line {site.place.line}"


def files_are_told(sites: Iterable[Site | None]) -> bool:
    """Whether places are told with their files: there are several, or cells of a notebook."""
    files = {site.place.file for site in sites if site is not None}
    return len(files) > 1 or any(map(is_cell, files))


class Hops:
    """The steps of one pass in words."""

    def __init__(self, words: Words, flow: Deliveries) -> None:
        self.words, self.query, self.flow = words, words.query, flow
        self.of = lru_cache(maxsize=None)(self._of)
        self._ran = dict(zip(*(column.tolist() for column in flow.received), strict=True))

    def _of(self, step: Step) -> Hop:
        arrival = step.arrival
        value = self.query.memory.value(arrival.gradient, arrival.event)
        made = self.query.nodes.event(arrival.source)
        site, expression = self.place_of(arrival.source)
        return Hop(
            arrival.source,
            self.words.node_name(arrival.source) if arrival.source else "",
            site,
            expression,
            "" if made is None else self._local(made, arrival),
            brief(value),
            step.others,
            step.exact,
            step.hooked,
        )

    def place_of(self, node: int) -> tuple[Site | None, str]:
        """The site and the expression of the operation of a node; for node 0, those of the call that began the pass."""
        made = self.query.nodes.event(node)
        return self._root() if made is None and not node else self._made(made)

    def _root(self) -> tuple[Site | None, str]:
        """The site and the text of the call that began the pass, from which the gradient of a root comes."""
        began = self.query.trace.event(self.flow.backward_pass.first)
        assert isinstance(began, PassBegan)
        return self.query.places.site(began.site), f"{began.how}()"

    def _made(self, made: NodeMade | None) -> tuple[Site | None, str]:
        site = None if made is None else self.query.places.site(made.site)
        return site, "" if made is None else self.words.expression_of(made, _LONGEST)

    def _local(self, made: NodeMade, arrival: Arrival) -> str:
        """The text of a local derivative: its formula, its number if the gradients determine it, and the sum over
        broadcast dimensions."""
        if arrival.position >= len(made.edges):
            return ""
        trace, ran = self.query.trace, self._ran.get(made.node)
        received = None if ran is None else trace.table(Kind.RECEIVED).object(ran)
        produced = trace.event(arrival.event)
        if not isinstance(produced, Produced):
            return ""
        step = chain_step(self.query, made, arrival.position, received, produced)
        derivative = formula_of(self.words, step) if step.is_whole else local(self.words, step)
        return ", ".join(part for part in (derivative, over(self.words, step)) if part)


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
