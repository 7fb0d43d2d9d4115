"""The origin of a gradient by norms, in stages. Each stage is a module or an operation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradviz.explain.reason import Hops, files_are_told, place_told
from gradviz.query.gradient_paths import WayStep
from gradviz.tracefile import Site
from gradviz.words.escape import clean
from gradviz.words.html_table import html_table, text_table
from gradviz.words.numbers import number

_MOST = 24  # stages; if there are more, the outer modules are the stages, unless these are fewer than _FEWEST
_FEWEST = 6
_ENDS = 10  # the stages that are shown at each end if there are still too many
_FAR = 1e3  # a gain above this, or below its inverse, is pointed out


@dataclass(frozen=True, slots=True)
class Stage:
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
        f" = ({size}) {_size(reason)}  in pass {reason.number} "
        f"(event {reason.event + 1}), from {clean(reason.roots)}",
    )
    parts: list[RenderableType] = [head, Text(), Padding(_table(reason.stages), (0, 0, 0, 3)), Text()]
    remarks = (Text.assemble((f"{label:8}", "dim"), clean(text)) for label, text in _remarks(reason))
    return Group(*parts, *remarks)


def _table(stages: tuple[Stage, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(style="yellow", no_wrap=True, justify="right")
    table.add_column(style="green", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    with_file = files_are_told(stage.site for stage in stages)
    left_out = len(stages) - 2 * _ENDS if len(stages) > _MOST else 0
    for stage in stages[:_ENDS] if left_out else stages:
        table.add_row(*map(Text, _cells(stage, with_file)))
    if left_out:
        table.add_row("…", f"{left_out:,} more")
        for stage in stages[-_ENDS:]:
            table.add_row(*map(Text, _cells(stage, with_file)))
    return table


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
        "norm": _finite(reason.norm),
        "odd": reason.odd or None,
        "stages": [
            {
                "label": stage.label,
                "file": stage.site.place.file if stage.site is not None else None,
                "line": stage.site.place.line if stage.site is not None else None,
                "norm": _finite(stage.norm),
                "gain": _finite(stage.gain),
                "meets": stage.meets,
                "odd": stage.odd or None,
                "begins": stage.begins,
            }
            for stage in reason.stages
        ],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
