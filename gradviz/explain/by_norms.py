"""The origin of a gradient: as a sum over paths where its elements were recorded (Reason), else by norms, in stages.
Each stage is a module or an operation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradviz.events.kinds import Kind, NodeMade, PassBegan, Produced
from gradviz.query.chain_step import chain_step
from gradviz.query.gradient_paths import MOST_PATHS, Arrival, Step, WayStep
from gradviz.query.passes import Deliveries
from gradviz.system.paths import file_name, is_cell
from gradviz.tracefile import Site
from gradviz.words.chain import formula_of, local, over
from gradviz.words.escape import clean, finite_number
from gradviz.words.html_table import html_table, text_table
from gradviz.words.numbers import SHOWN, brief, nested, number, plural
from gradviz.words.words import Words

# The steps of a path in words: the place, the expression, the local derivative, the gradient that goes on.

_LONGEST = 32  # characters of an expression


class Hop(NamedTuple):
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
        if made is not None:
            return self.query.places.site(made.site), self.words.expression_of(made, _LONGEST)
        if node:
            return None, ""
        began = self.query.trace.event(self.flow.backward_pass.first)
        assert isinstance(began, PassBegan)
        return self.query.places.site(began.site), f"{began.how}()"

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


class Contribution(NamedTuple):
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
        rows = [(_share(one), value_text(one.value), "\n".join(_path_told(one))) for one in self.contributions]
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


_MOST = 24  # stages; if there are more, the outer modules are the stages, unless these are fewer than _FEWEST
_FEWEST = 6
_ENDS = 10  # the stages that are shown at each end if there are still too many
_FAR = 1e3  # a gain above this, or below its inverse, is pointed out


class Stage(NamedTuple):
    """A module, or an operation outside of modules, on the path of a gradient. `norm` is the norm of the gradient that
    goes on, `gain` this norm over the norm of the gradient that came, NaN at the root. `meets` more gradients meet it
    here, and the path follows the largest. `odd` is `NaN` or `inf` if the gradient that goes on has such elements;
    `begins` is True if the gradient that came had none."""

    label: str
    site: Site | None
    norm: float
    gain: float
    meets: int
    odd: str
    begins: bool


@dataclass(frozen=True, slots=True)
class NormReason:
    """The gradient of a tensor in a pass, at an event, whose elements were not recorded: its norm, and the stages of
    the strongest path from the roots. It has no contributions, because norms do not add up."""

    tensor: int
    called: str
    number: int
    event: int
    roots: str
    shape: tuple[int, ...]
    norm: float
    odd: str
    stages: tuple[Stage, ...]
    contributions: tuple[()] = ()
    links: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __repr__(self) -> str:
        return text_table(*self._table())

    def _repr_html_(self) -> str:
        return html_table(*self._table(), self.links)

    def _table(self) -> tuple[Sequence[str], list[tuple[str, ...]], str, str]:
        """The heads and rows of the table, the line above and the line below."""
        size = "×".join(map(str, self.shape))
        head = f"gradient of {clean(self.called)} = ({size}) {_size(self)} in pass {self.number}"
        with_file = files_are_told(stage.site for stage in self.stages)
        rows = [_cells(stage, with_file) for stage in self.stages]
        heads = ("place", "module or operation", "gain", "goes on", "")
        remarks = " · ".join(f"{label}: {text}" for label, text in _remarks(self))
        head += f" (event {self.event + 1}), from {clean(self.roots)}"
        return heads, rows, head, remarks


def stages_of(hops: Hops, way: list[WayStep]) -> tuple[Stage, ...]:
    """The stages of a path. On a long path the outer modules are the stages."""
    scopes = [_scope(hops, step) for step in way]
    depth, runs = _stages_in_modules(scopes)
    stages: list[Stage] = []
    came, was_odd = math.nan, False
    for run in runs:
        steps = [way[at] for at in run]
        first, last = steps[0], steps[-1]
        scope = scopes[run[0]][:depth]
        site, expression = hops.place_of(first.source)
        label = ".".join(scope) or expression
        gain = last.norm / came if came else math.nan
        meets = sum(len(step.others) for step in steps)
        odd = any(step.odd for step in steps)
        begins = odd and not was_odd and bool(stages)  # in the first stage it came from outside
        stages.append(Stage(label, site, last.norm, gain, meets, last.odd, begins))
        came, was_odd = last.norm, was_odd or odd
    return tuple(stages)


def _stages_in_modules(scopes: list[tuple[str, ...]]) -> tuple[int, list[list[int]]]:
    """The depth of the modules that are stages, and the positions of the steps of each stage."""
    deepest = max(len(scope) for scope in scopes)
    chosen = deepest, _runs(scopes, deepest)
    for depth in range(deepest - 1, 0, -1):
        outer = _runs(scopes, depth)
        if len(chosen[1]) <= _MOST or len(outer) < _FEWEST:
            break
        chosen = depth, outer
    return chosen


def _scope(hops: Hops, step: WayStep) -> tuple[str, ...]:
    """The modules around the operation whose node gave a gradient."""
    event = hops.query.nodes.op(step.source) if step.source else None
    path = hops.query.scopes.path(event) if event is not None else ""
    return tuple(path.split("/")) if path else ()


def _runs(scopes: list[tuple[str, ...]], depth: int) -> list[list[int]]:
    """The positions of consecutive steps in one module; a step outside of modules is alone."""
    keys = [scope[:depth] or (str(at),) for at, scope in enumerate(scopes)]
    return [list(run) for _, run in groupby(range(len(scopes)), keys.__getitem__)]


def norm_text(reason: NormReason) -> Group:
    """The gradient, the stages that it came through, and the stages that changed it most."""
    size = "×".join(map(str, reason.shape))
    head = Text.assemble(
        "gradient of ",
        (clean(reason.called), "bold"),
        f" = ({size}) {_size(reason)}  in pass {reason.number} (event {reason.event + 1}), from {clean(reason.roots)}",
    )
    parts: list[RenderableType] = [head, Text(), Padding(_table(reason.stages), (0, 0, 0, 3), expand=False), Text()]
    remarks = (Text.assemble((f"{label:8}", "dim"), clean(text)) for label, text in _remarks(reason))
    return Group(*parts, *remarks)


def _table(stages: tuple[Stage, ...]) -> Table:
    with_file = files_are_told(stage.site for stage in stages)
    rows = [_cells(stage, with_file) for stage in stages]
    if len(rows) > _MOST:
        rows[_ENDS:-_ENDS] = [("…", f"{len(rows) - 2 * _ENDS:,} more")]
    numbers = {"style": "yellow", "no_wrap": True, "justify": "right"}
    return path_grid(rows, {"overflow": "fold"}, numbers, {"style": "green", "no_wrap": True})


def path_grid(rows: Iterable[tuple[str, ...]], *columns: dict[str, Any]) -> Table:
    """A row for each step of a path; `columns` are those between the place and the note."""
    grid, ends = Table.grid(padding=(0, 2)), {"style": "dim", "no_wrap": True}
    for column in (ends, *columns, ends):
        grid.add_column(**column)
    for row in rows:
        grid.add_row(*map(Text, row))
    return grid


def _cells(stage: Stage, with_file: bool) -> tuple[str, ...]:
    place = place_told(stage.site, with_file)
    gain = "" if math.isnan(stage.gain) else f"×{number(stage.gain, 3)}"
    note = f"+ {stage.meets} more" if stage.meets else ""
    went = f"→ {_size(stage)}"
    return tuple(clean(part) for part in (place, stage.label, gain, went, note))


def _size(one: Stage | NormReason) -> str:
    """The norm of a gradient, with `NaN` or `inf` if it has such elements."""
    if not one.odd:
        return f"norm {number(one.norm, 4)}"
    return one.odd if math.isnan(one.norm) else f"{one.odd}, the rest has norm {number(one.norm, 4)}"


def _remarks(reason: NormReason) -> Iterator[tuple[str, str]]:
    for stage in reason.stages:
        if stage.begins:
            yield ("begins", f"what came to {stage.label} is finite, and what it gave is not")
    for stage in reason.stages:
        if stage.gain == 0:
            yield ("stops", f"what {stage.label} gave is zero")
        elif math.isfinite(stage.gain) and not 1 / _FAR < stage.gain < _FAR:
            verb = "falls" if stage.gain < 1 else "grows"
            yield (verb, f"at {stage.label} to {number(stage.gain, 3)} of what came")
    if any(stage.meets for stage in reason.stages):
        yield ("+", "more gradients meet there; the way goes on with the largest")
    yield ("norms", "elements were not recorded: gradviz trace --values full tells of each path")


def norm_json(reason: NormReason) -> dict[str, Any]:
    """The reason as plain data."""
    return {
        "tensor": reason.called,
        "pass": reason.number,
        "event": reason.event + 1,
        "shape": list(reason.shape),
        "norm": finite_number(reason.norm),
        "odd": reason.odd or None,
        "stages": [
            {
                "label": stage.label,
                "file": stage.site.place.file if stage.site is not None else None,
                "line": stage.site.place.line if stage.site is not None else None,
                "norm": finite_number(stage.norm),
                "gain": finite_number(stage.gain),
                "meets": stage.meets,
                "odd": stage.odd or None,
                "begins": stage.begins,
            }
            for stage in reason.stages
        ],
    }
