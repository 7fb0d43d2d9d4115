"""The charts and tables in the report of one run, and of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gradviz.cli.report_costs import costs_of_modules
from gradviz.events.kinds import Kind
from gradviz.events.values import SMALL
from gradviz.pictures.chart import COLOURS, MOST, Series
from gradviz.pictures.report_page import Bars, Drawn, Row, Spread
from gradviz.query.curves import (
    Binned,
    Grouping,
    Histogram,
    NamedCurve,
    binned,
    change_norms,
    changes_of_modules,
    changes_of_steps,
    distributions,
    gradients_of_modules,
    gradients_of_parameters,
    gradients_relative,
    innermost_module,
    learning_rates,
    losses,
    modules_of,
    norms_of_steps,
)
from gradviz.query.overview import ModuleRow, is_profiled, model_summary
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.words.numbers import few_of, plural

MOST_RUNS = len(COLOURS)
_UNKNOWN = "The trace has no values for it."
_OPS = "Ops are those of the first call of a module, with those of modules inside."
_COUNTED = (
    "Ops, and what they computed, are those of the first call of a module, with those of modules inside; times and "
    "memory are those of all calls."
)
_OF_COUNTED = (
    "Each histogram reaches from the least element that was counted to the largest, with a line at 0; above it stands "
    "the pass. Of a large tensor some thousand elements that lie evenly in it were counted: it may have others outside."
)
_LAST = " The last histogram, after a pass, is of the end of the run, or of the moment at which the module was freed."
_COUNT_MORE = ": trace --histograms counts them, and activations"
_MOST_SPREADS = 16  # the most tensors of a sort
_MOST_PASSES = 5  # the most passes of a tensor
_ALL = "Norm of the gradients of all parameters, by pass"
_NO_STEP = "No step of an optimizer was recorded."
_CHANGES = "A module without a curve has a parameter whose changes were not recorded."
_CHANGES_OF_RUNS = "A {run} without a curve has a parameter whose changes were not recorded."
_OWN = "What each rank accumulated itself: before ranks average their gradients."


def charts_of_run(query: Query) -> list[Drawn]:
    """The charts of one run."""
    module_of = modules_of(query, MOST)
    gradients, relative = gradients_of_modules(query, module_of), gradients_relative(query, module_of)
    changes, at_steps = changes_of_modules(query, module_of), norms_of_steps(query)
    adds_up = len(gradients) > 1 and not at_steps
    of_passes = [
        ("Norm of all gradients at the step, by pass", at_steps),
        (_ALL, _named("all gradients", gradients_of_parameters(query)) if adds_up else []),
        ("Change of all parameters relative to their size, by pass", changes_of_steps(query)),
    ]
    return [
        Drawn("Loss, by pass", *_series(losses(query)), marks=True),
        *(Drawn(title, *_series(curves), marks=True) for title, curves in of_passes if curves),
        Drawn("Learning rate, by step", *_rates(learning_rates(query))),
        Drawn("Norm of the gradient of each module, by pass", *_series(gradients), marks=True),
        Drawn("Norm of the gradient over that of the parameters, by pass", *_series(relative), marks=True),
        Drawn(
            "Change of each module relative to its size, by step",
            *_series(changes, _of_changes(query, module_of, changes)),
        ),
    ]


def _of_changes(query: Query, module_of: Grouping, changes: Sequence[NamedCurve]) -> str:
    """Why modules have no curve of their changes; nothing if all that an optimizer changes have one."""
    if not len(query.trace.table(Kind.STEPPED)):
        return _NO_STEP
    changed = {module_of(leaf) for leaf in distinct(query.of(change_norms).leaves).tolist()}
    return _CHANGES if changes and changed - {curve.name for curve in changes} else ""


def charts_of_runs(queries: Mapping[str, Query], are_ranks: bool = False) -> list[Drawn]:
    """The charts of several runs, or of the ranks of one: the curves that a run has only one of, and the gradients of
    the modules that the runs have in common."""
    whole: Grouping = lambda leaf: ""
    gradients, note = _of_all(queries, gradients_of_parameters)
    unchanged = _CHANGES_OF_RUNS.format(run="rank" if are_ranks else "run")
    charts = [
        Drawn("Loss, by pass", *_of_all(queries, losses)),
        Drawn("Learning rate, by step", *_rates_of_all(queries)),
        Drawn(_ALL, gradients, note or (_OWN if are_ranks else "")),
        Drawn(
            "Change of all parameters relative to their size, by step",
            *_of_all(queries, lambda query: changes_of_modules(query, whole), unchanged),
        ),
    ]
    by_run = {name: gradients_of_modules(query, modules_of(query, MOST)) for name, query in queries.items()}
    counts = Counter(curve.name for curves in by_run.values() for curve in curves)
    for module in [name for name, count in counts.items() if count > 1][:MOST]:
        series = [
            Series(run, curve.at, curve.values)
            for run, curves in by_run.items()
            for curve in curves
            if curve.name == module
        ]
        charts.append(Drawn(f"Norm of the gradient of {module}, by pass", series))
    return charts


def _series(curves: Iterable[NamedCurve], note: str = "") -> tuple[list[Series], str]:
    """The drawn curves, which are those with the largest values, and the sentence below them."""
    known = list(curves)
    largest = sorted(known, key=lambda curve: -max(curve.values, default=0.0))[:MOST]
    drawn = [Series(curve.name, curve.at, curve.values) for curve in known if curve in largest]
    left_out = (
        f"{plural(len(known) - MOST, 'curve')} with smaller values left out." if len(known) > MOST else ""
    )
    return drawn, " ".join(filter(None, (left_out, note))) if known else note or _UNKNOWN


def _rates(curves: Sequence[NamedCurve]) -> tuple[list[Series], str]:
    """The learning rates of optimizers; if none ever changes, only a sentence."""
    if not curves:
        return [], _NO_STEP
    if all(map(_is_constant, curves)):
        return [], f"{_as_text(curves)}, the same at all steps."
    return _series(curves)


def _rates_of_all(queries: Mapping[str, Query]) -> tuple[list[Series], str]:
    """The learning rates of several runs; if none ever changes, only a sentence."""
    rates = {run: learning_rates(query) for run, query in queries.items()}
    curves = [curve for of_run in rates.values() for curve in of_run]
    if not curves or not all(map(_is_constant, curves)):
        return _of_all(queries, learning_rates)
    texts: dict[str, list[str]] = {}
    for run, of_run in rates.items():
        texts.setdefault(_as_text(of_run), []).append(run)
    known = [(few_of(runs), text) for text, runs in texts.items() if text]
    told = known[0][1] if len(texts) == 1 else "; ".join(f"{runs}: {text}" for runs, text in known)
    return [], f"{told}, the same at all steps."


def _is_constant(curve: NamedCurve) -> bool:
    return bool((curve.values == curve.values[0]).all())


def _as_text(curves: Iterable[NamedCurve]) -> str:
    return ", ".join(f"{curve.name}: {curve.values[0]:.6g}" for curve in curves)


def _named(name: str, curves: Iterable[NamedCurve]) -> list[NamedCurve]:
    return [replace(curve, name=name) for curve in curves]


def _of_all(
    queries: Mapping[str, Query], of_one: Callable[[Query], Sequence[NamedCurve]], note: str = ""
) -> tuple[list[Series], str]:
    """The curves of all runs, named by the run; if a run has several curves, also by their own names."""
    series = []
    for run, query in queries.items():
        curves = of_one(query)
        series += [
            Series(run if len(curves) == 1 else f"{run}: {curve.name}", curve.at, curve.values)
            for curve in curves
        ]
    return series, note if note and len(series) < len(queries) else "" if series else _UNKNOWN


def model_rows(query: Query) -> tuple[list[Row], str]:
    """The rows of the table of modules, and a sentence about their total."""
    summary = model_summary(query)
    row_of = {path: row.path for row in summary for path in row.paths}
    innermost = innermost_module(query)
    grouping: Grouping = lambda leaf: row_of.get(innermost(leaf), "")
    gradients, changes = (
        {curve.name: Series(curve.name, curve.at, curve.values) for curve in curves(query, grouping)}
        for curves in (gradients_of_modules, changes_of_modules)
    )
    paths = {row.path for row in summary}
    rows = [
        Row(
            row.depth,
            _within(row.path, paths),
            row.type,
            row.count,
            ", ".join(f"{name} {_shape(shape)}" for name, shape in row.shapes),
            f"{row.own * row.count:,}" if row.own else "",
            f"{row.ops:,}" if row.ops is not None else "",
            gradients.get(row.path) if row.own else None,
            changes.get(row.path) if row.own else None,
            costs_of_modules(query, row.paths, row.flops),
        )
        for row in summary
    ]
    return rows, _total(query, summary)


def spreads(query: Query) -> tuple[list[Spread], str]:
    """The distributions of elements, as they were counted or from recorded elements, and a sentence about them."""
    counted = query.of(binned)
    if counted:
        return _counted(counted, is_torch=query.trace.meta.get("engine") == "torch")
    return [
        Spread(
            one.name,
            of,
            {number: _bars(number, part) for number in part.counts},
        )
        for one in distributions(query, modules_of(query, MOST))[:MOST]
        for of, part in (("parameters", one.parameters), ("gradients", one.gradients))
    ], "Of modules whose elements were recorded."


def _counted(counted: Sequence[Binned], is_torch: bool) -> tuple[list[Spread], str]:
    """The first tensors of each sort that was counted, at some passes."""
    sorts: dict[str, list[Binned]] = {}
    for one in counted:
        sorts.setdefault(one.what, []).append(one)
    shown = [one for own in sorts.values() for one in _largest(own)]
    left_out = len(counted) - len(shown)
    more = f" {plural(left_out, 'more tensor')} left out." if left_out else ""
    if "activation" not in sorts:
        more += f" Tensors of at most {SMALL} elements are left out{_COUNT_MORE if is_torch else ''}."
    spreads = [
        Spread(
            one.name,
            one.what,
            {number: _bars(number, histogram) for number, histogram in _some_of(one.histograms)},
            (one.last[0], _bars(*one.last)) if one.last is not None else None,
        )
        for one in shown
    ]
    last = _LAST if any(one.last is not None for one in shown) else ""
    return spreads, _OF_COUNTED + last + more


def _bars(number: int, histogram: Histogram) -> Bars:
    return histogram.low, histogram.high, histogram.counts[number]


def _largest(own: Sequence[Binned]) -> list[Binned]:
    """The tensors with the most counted elements, in their order; of many with as many some that lie evenly among
    them, so that they are of all depths of a network."""
    sizes = [one.elements for one in own]
    least = sorted(sizes, reverse=True)[:_MOST_SPREADS][-1]
    largest = [one for one, size in zip(own, sizes, strict=True) if size >= least]
    return [largest[place] for place in _evenly(len(largest), _MOST_SPREADS)]


def _some_of(histograms: Mapping[int, Histogram]) -> list[tuple[int, Histogram]]:
    """The first, the last and evenly spaced histograms between them."""
    known = sorted(histograms.items())
    return [known[place] for place in _evenly(len(known), _MOST_PASSES)]


def _evenly(count: int, most: int) -> list[int]:
    """At most `most` of `count` places: the first, the last and some that lie evenly between."""
    places: list[int] = distinct(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()
    return places


def _within(path: str, paths: Collection[str]) -> str:
    """The path of a module within the innermost outer module that has a row."""
    outer = path.rpartition(".")[0]
    while outer and outer not in paths:
        outer = outer.rpartition(".")[0]
    return path.removeprefix(f"{outer}.") if outer else path


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _total(query: Query, summary: Sequence[ModuleRow]) -> str:
    elements = sum(row.own * row.count for row in summary)
    frozen = sum((row.own - row.trainable) * row.count for row in summary)
    modules = sum(row.count * row.modules for row in summary)
    text = f"{plural(modules, 'module')} with {plural(elements, 'element')} of parameters"
    text += f", {frozen:,} of them frozen at the end" if frozen else ""
    return f"{text}. {_COUNTED if is_profiled(query) else _OPS}"
