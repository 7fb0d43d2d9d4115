"""`gradviz report`: findings, curves, the model and the picture of a run on one page; or the curves of several runs."""

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click
import numpy as np

from gradviz.cli.common import PATH, all_opened, fail, how_ended, patience, traces_argument
from gradviz.diagnose import Finding, Report
from gradviz.diagnose.finding import place_of
from gradviz.diagnose.marked import mark
from gradviz.diagnose.rank_reports import compared, on_ranks
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.settings_file import settings_at
from gradviz.events.kinds import Kind
from gradviz.events.values import SMALL
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.model import Graph, Node
from gradviz.pictures import report_page as page
from gradviz.pictures.render import svg, write
from gradviz.pictures.report_page import COLOURS, MOST, Costs, Drawn, Line, Row
from gradviz.query import curves as trace_curves
from gradviz.query.curves import Binned, Grouping, Histogram, NamedCurve
from gradviz.query.overview import BACKWARD, FORWARD, OPTIMIZER, Cost, Profile, is_profiled, model_summary, profile
from gradviz.query.query import Query
from gradviz.query.ranks import label_of, ranked_traces
from gradviz.replaying import check
from gradviz.sets import distinct, grouped
from gradviz.system.paths import as_argument, file_name
from gradviz.tracefile import Trace
from gradviz.tracefile.opening import are_of_one_run
from gradviz.words.numbers import duration, few_of, flops, plural, size, total_of
from gradviz.words.saved_storages import saved_told

_AROUND = 2  # lines of source above and below a place


@click.command(
    epilog="""\b
Examples:
  gradviz report                                the newest trace here, as STEM.report.html
  gradviz report train.gradviz -o report.html
  gradviz report lr1.gradviz lr2.gradviz        the curves of two runs together
  gradviz report "train.rank*.gradviz"          those of the ranks of one run
"""
)
@traces_argument
@click.option("-o", "output", type=PATH, help="The page [default: STEM.report.html].")
def report(traces: tuple[Path, ...], output: Path | None) -> None:
    """Write what `gradviz check` finds in TRACE, the curves of its training, its modules and its picture on one page.
    Of several traces, and of the ranks of one run, the page has their curves together, and the findings of each.

    The page is one file that needs no network. Default: the newest *.gradviz here."""
    with all_opened(traces) as recorded:
        are_ranks = are_of_one_run(recorded)
        if len(recorded) > MOST_RUNS and not are_ranks:
            fail(f"a report has up to {MOST_RUNS} runs, not {len(recorded)}")
        path = output or recorded[0].path.with_suffix(".report.html")
        if path.suffix.lower() != ".html":
            fail(f"a report is an .html file, not {as_argument(path)}")
        reports: list[Report] = []
        settings = settings_at(Path.cwd())
        with patience(f"checking {recorded[0].path.name}") as doing:
            for trace in recorded:
                doing(f"checking {trace.path.name}")
                reports.append(check(trace, settings=settings))
                gc.collect()  # the tables of a check refer to one another: 100 MB for a million events
            doing(f"drawing into {path.name}")
            if are_ranks:
                one = _of_ranks(recorded, reports, settings)
            elif len(recorded) > 1:
                one = _of_runs(recorded, reports, _items_of_runs(recorded, reports), range(len(recorded)))
            else:
                one = _of_run(recorded[0], reports[0])
            count = len(one.items) if are_ranks else sum(len(report.findings) for report in reports)
            text = page.html(one)
        write(path, text.encode())
    click.echo(f"wrote {path}: {plural(count, 'finding')}")


def _of_run(trace: Trace, found: Report) -> page.Report:
    query = Query(trace)
    graph, about = _picture(query, found)
    rows, total = model_rows(query)
    bars, of_spreads = spreads(query)
    return page.Report(
        title=Path(trace.meta.get("script", "") or trace.path.name).name,
        facts=_facts(trace, found),
        items=[
            _item(number, finding, trace, about.get(number, [])) for number, finding in enumerate(found.findings, 1)
        ],
        charts=charts_of_run(query),
        rows=rows,
        total=total,
        spreads=bars,
        of_spreads=of_spreads,
        not_checked=_by_reason(found.not_checked),
        picture=svg(graph),
        caption="The whole run" if graph.pass_number is None else f"Pass {graph.pass_number} of {graph.passes}",
        checked=len(found.checked),
        costs=costs_of(query),
        saved=saved_told(query),
    )


def _by_reason(not_checked: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The reasons for which rules were not checked, each with its rules."""
    reasons = grouped((reason, rule) for rule, reason in not_checked)
    return [(reason, ", ".join(rules)) for reason, rules in reasons.items()]


def _of_runs(
    traces: Sequence[Trace], reports: Sequence[Report], items: list[page.Item], drawn: Collection[int]
) -> page.Report:
    """The report of several runs; `drawn` are the positions of those with curves."""
    names = _names(traces)
    runs = [
        page.Run(name, tuple(text for _, text in _facts(trace, found)), place in drawn)
        for place, (name, trace, found) in enumerate(zip(names, traces, reports, strict=True))
    ]
    scripts = dict.fromkeys(Path(trace.meta.get("script", "")).name or trace.path.name for trace in traces)
    return page.Report(
        title=", ".join(scripts),
        facts=[],
        items=items,
        charts=charts_of_runs({names[place]: Query(traces[place]) for place in drawn}, are_of_one_run(traces)),
        columns=tuple(label for label, _ in _facts(traces[0], reports[0])),
        runs=runs,
        checked=min(len(found.checked) for found in reports),
    )


def _items_of_runs(traces: Sequence[Trace], reports: Sequence[Report]) -> list[page.Item]:
    """The findings of several runs: equal findings become one, shown as in the first run."""
    names = _names(traces)
    first: dict[tuple[str, ...], tuple[Finding, Trace]] = {}
    where: dict[tuple[str, ...], list[str]] = {}
    for name, trace, report in zip(names, traces, reports, strict=True):
        for finding in report.findings:
            key = (finding.rule, place_of(finding), finding.message, finding.fix)
            first.setdefault(key, (finding, trace))
            where.setdefault(key, []).append(name)
    items = []
    for number, (text, (finding, trace)) in enumerate(first.items(), 1):
        runs = "all runs" if len(where[text]) == len(names) else ", ".join(where[text])
        items.append(_item(number, finding, trace, [])._replace(where=runs))
    return items


def _of_ranks(traces: Sequence[Trace], reports: Sequence[Report], settings: Settings) -> page.Report:
    """The report of the ranks of one run. If there are very many ranks, only the curves of some are drawn: first of
    the ranks that a finding names."""
    ranks = ranked_traces(traces)
    by_rank = dict(zip(ranks, reports, strict=True))
    together = compared(ranks, by_rank.values(), settings)
    findings = together.findings
    named = [rank for finding in findings if len(finding.ranks) < len(ranks) for rank in finding.ranks]
    drawn = sorted([*dict.fromkeys([*named, *ranks])][:MOST_RUNS])
    report = _of_runs(
        [*ranks.values()],
        [*by_rank.values()],
        items=[
            _item(number, finding, ranks[finding.ranks[0]], [])._replace(
                where=on_ranks(finding.ranks, len(ranks)).removeprefix("on ")
            )
            for number, finding in enumerate(findings, 1)
        ],
        drawn=[[*ranks].index(rank) for rank in drawn],
    )
    return replace(
        report, runs_called="rank", checked=len(together.checked), not_checked=_by_reason(together.not_checked)
    )


def _names(traces: Sequence[Trace]) -> list[str]:
    """The names of the runs: their ranks in one run, else their file names, or their paths if these are equal."""
    stems = [label_of(trace) for trace in traces] if are_of_one_run(traces) else [trace.path.stem for trace in traces]
    names = stems if len(set(stems)) == len(stems) else [str(trace.path) for trace in traces]
    return [f"{name} ({place})" if names.index(name) < place - 1 else name for place, name in enumerate(names, 1)]


def _facts(trace: Trace, found: Report) -> list[tuple[str, str]]:
    counts = [
        plural(n, severity)
        for severity in ("error", "warning", "note")
        if (n := sum(finding.severity == severity for finding in found.findings))
    ]
    ended = how_ended(trace)
    return [
        ("findings", ", ".join(counts) or "none"),
        ("engine", trace.meta.get("engine", "")),
        ("events", f"{trace.count:,}"),
        ("backward passes", f"{len(trace.passes):,}"),
        ("ended", trace.meta.get("error", "") if ended == "error" else ended),
        ("trace", trace.path.name),
    ]


def _picture(query: Query, found: Report) -> tuple[Graph, dict[int, list[Node]]]:
    """The graph of the pass of the first finding, otherwise of the pass that `gradviz graph` shows, and the nodes of
    each finding."""
    number = next((finding.number for finding in found.findings if finding.number), None)
    passes = {backward_pass.number for backward_pass in query.trace.passes if backward_pass.recorded}
    graph = build(query, number if number in passes else None, "both", False)
    marked = mark(graph, query.trace, list(enumerate(found, 1)))
    shown = folded(graph)
    return shown, {number: [node for node in nodes if node.id in shown.nodes] for number, nodes in marked.items()}


def _item(number: int, finding: Finding, trace: Trace, nodes: Iterable[Node]) -> page.Item:
    event = finding.events[0] + 1 if finding.events else 0
    return page.Item(
        number,
        finding.severity,
        finding.rule,
        place_of(finding),
        finding.message,
        finding.fix,
        f"gradviz step {as_argument(trace.path.name)} --at {event}" if event else "",
        finding.number,
        _excerpt(finding, trace),
        tuple(f"{other.rule} ({place_of(other)}): {other.message}" for other in finding.consequences),
        tuple((node.id, node.name or node.id) for node in nodes),
        replayed=finding.replayed,
    )


def _excerpt(finding: Finding, trace: Trace) -> page.Excerpt | None:
    lines = trace.source(finding.file) if finding.site is not None else []
    if finding.site is None or not 0 < finding.line <= len(lines):
        return None
    end = max(finding.site.place.end_line, finding.line)
    first = max(finding.line - _AROUND, 1)
    return page.Excerpt(first, tuple(lines[first - 1 : end + _AROUND]), finding.line, end)


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
    module_of = trace_curves.modules_of(query, MOST)
    gradients, relative = (
        trace_curves.gradients_of_modules(query, module_of),
        trace_curves.gradients_relative(query, module_of),
    )
    changes, at_steps = trace_curves.changes_of_modules(query, module_of), trace_curves.norms_of_steps(query)
    adds_up = len(gradients) > 1 and not at_steps
    of_all = trace_curves.gradients_of_parameters(query) if adds_up else []
    of_passes = [
        ("Norm of all gradients at the step, by pass", at_steps),
        (_ALL, [curve._replace(name="all gradients") for curve in of_all]),
        ("Change of all parameters relative to their size, by pass", trace_curves.changes_of_steps(query)),
    ]
    return [
        Drawn("Loss, by pass", *_series(trace_curves.losses(query)), marks=True),
        *(Drawn(title, *_series(curves), marks=True) for title, curves in of_passes if curves),
        Drawn("Learning rate, by step", *_rates(trace_curves.learning_rates(query))),
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
    changed = {module_of(leaf) for leaf in distinct(query.of(trace_curves.change_norms).leaves).tolist()}
    return _CHANGES if changes and changed - {curve.name for curve in changes} else ""


def charts_of_runs(queries: Mapping[str, Query], are_ranks: bool = False) -> list[Drawn]:
    """The charts of several runs, or of the ranks of one: the curves that a run has only one of, and the gradients of
    the modules that the runs have in common."""
    whole: Grouping = lambda leaf: ""
    gradients, note = _of_all(queries, trace_curves.gradients_of_parameters)
    unchanged = _CHANGES_OF_RUNS.format(run="rank" if are_ranks else "run")
    charts = [
        Drawn("Loss, by pass", *_of_all(queries, trace_curves.losses)),
        Drawn("Learning rate, by step", *_rates_of_all(queries)),
        Drawn(_ALL, gradients, note or (_OWN if are_ranks else "")),
        Drawn(
            "Change of all parameters relative to their size, by step",
            *_of_all(queries, lambda query: trace_curves.changes_of_modules(query, whole), unchanged),
        ),
    ]
    by_run = {
        name: trace_curves.gradients_of_modules(query, trace_curves.modules_of(query, MOST))
        for name, query in queries.items()
    }
    counts = Counter(curve.name for curves in by_run.values() for curve in curves)
    for module in [name for name, count in counts.items() if count > 1][:MOST]:
        series = [
            curve._replace(name=run) for run, curves in by_run.items() for curve in curves if curve.name == module
        ]
        charts.append(Drawn(f"Norm of the gradient of {module}, by pass", series))
    return charts


def _series(curves: Iterable[NamedCurve], note: str = "") -> tuple[list[NamedCurve], str]:
    """The drawn curves, which are those with the largest values, and the sentence below them."""
    known = list(curves)
    largest = sorted(known, key=lambda curve: -max(curve.values, default=0.0))[:MOST]
    drawn = [curve for curve in known if curve in largest]
    left_out = f"{plural(len(known) - MOST, 'curve')} with smaller values left out." if len(known) > MOST else ""
    return drawn, " ".join(filter(None, (left_out, note))) if known else note or _UNKNOWN


def _rates(curves: Sequence[NamedCurve]) -> tuple[list[NamedCurve], str]:
    """The learning rates of optimizers; if none ever changes, only a sentence."""
    if not curves:
        return [], _NO_STEP
    if all(map(_is_constant, curves)):
        return [], f"{_as_text(curves)}, the same at all steps."
    return _series(curves)


def _rates_of_all(queries: Mapping[str, Query]) -> tuple[list[NamedCurve], str]:
    """The learning rates of several runs; if none ever changes, only a sentence."""
    rates = {run: trace_curves.learning_rates(query) for run, query in queries.items()}
    curves = [curve for of_run in rates.values() for curve in of_run]
    if not curves or not all(map(_is_constant, curves)):
        return _of_all(queries, trace_curves.learning_rates)
    texts = grouped((_as_text(of_run), run) for run, of_run in rates.items())
    known = [(few_of(runs), text) for text, runs in texts.items() if text]
    told = known[0][1] if len(texts) == 1 else "; ".join(f"{runs}: {text}" for runs, text in known)
    return [], f"{told}, the same at all steps."


def _is_constant(curve: NamedCurve) -> bool:
    return bool((curve.values == curve.values[0]).all())


def _as_text(curves: Iterable[NamedCurve]) -> str:
    return ", ".join(f"{curve.name}: {curve.values[0]:.6g}" for curve in curves)


def _of_all(
    queries: Mapping[str, Query], of_one: Callable[[Query], Sequence[NamedCurve]], note: str = ""
) -> tuple[list[NamedCurve], str]:
    """The curves of all runs, named by the run; if a run has several curves, also by their own names."""
    series: list[NamedCurve] = []
    for run, query in queries.items():
        curves = of_one(query)
        series += [curve._replace(name=run if len(curves) == 1 else f"{run}: {curve.name}") for curve in curves]
    return series, note if note and len(series) < len(queries) else "" if series else _UNKNOWN


def model_rows(query: Query) -> tuple[list[Row], str]:
    """The rows of the table of modules, and a sentence about their total."""
    summary = model_summary(query)
    row_of = {path: row.path for row in summary for path in row.paths}
    innermost = trace_curves.innermost_module(query)
    grouping: Grouping = lambda leaf: row_of.get(innermost(leaf), "")
    gradients, changes = (
        {curve.name: curve for curve in curves(query, grouping)}
        for curves in (trace_curves.gradients_of_modules, trace_curves.changes_of_modules)
    )
    paths = {row.path for row in summary}
    rows = [
        Row(
            row.depth,
            _within(row.path, paths),
            row.type,
            row.count,
            ", ".join(f"{name} {'×'.join(map(str, shape)) or 'scalar'}" for name, shape in row.shapes),
            f"{row.own * row.count:,}" if row.own else "",
            f"{row.ops:,}" if row.ops is not None else "",
            gradients.get(row.path) if row.own else None,
            changes.get(row.path) if row.own else None,
            costs_of_modules(query, row.paths, row.flops),
        )
        for row in summary
    ]
    elements = sum(row.own * row.count for row in summary)
    frozen = sum((row.own - row.trainable) * row.count for row in summary)
    modules = sum(row.count * row.modules for row in summary)
    text = f"{plural(modules, 'module')} with {plural(elements, 'element')} of parameters"
    text += f", {frozen:,} of them frozen at the end" if frozen else ""
    return rows, f"{text}. {_COUNTED if is_profiled(query) else _OPS}"


def spreads(query: Query) -> tuple[list[Binned], str]:
    """The distributions of elements, as they were counted or from recorded elements, and a sentence about them."""
    counted = query.of(trace_curves.binned)
    if counted:
        return _counted(counted, is_torch=query.trace.meta.get("engine") == "torch")
    known = trace_curves.distributions(query, trace_curves.modules_of(query, MOST))[: 2 * MOST]
    return known, "Of modules whose elements were recorded."


def _counted(counted: Sequence[Binned], is_torch: bool) -> tuple[list[Binned], str]:
    """The first tensors of each sort that was counted, at some passes."""
    sorts = grouped((one.what, one) for one in counted)
    shown = [one for own in sorts.values() for one in _largest(own)]
    left_out = len(counted) - len(shown)
    more = f" {plural(left_out, 'more tensor')} left out." if left_out else ""
    if "activation" not in sorts:
        more += f" Tensors of at most {SMALL} elements are left out{_COUNT_MORE if is_torch else ''}."
    last = _LAST if any(one.last is not None for one in shown) else ""
    return [one._replace(histograms=_some_of(one.histograms)) for one in shown], _OF_COUNTED + last + more


def _largest(own: Sequence[Binned]) -> list[Binned]:
    """The tensors with the most counted elements, in their order; of many with as many some that lie evenly among
    them, so that they are of all depths of a network."""
    sizes = [one.elements for one in own]
    least = sorted(sizes, reverse=True)[:_MOST_SPREADS][-1]
    largest = [one for one, size in zip(own, sizes, strict=True) if size >= least]
    return [largest[place] for place in _evenly(len(largest), _MOST_SPREADS)]


def _some_of(histograms: Mapping[int, Histogram]) -> dict[int, Histogram]:
    """The first, the last and evenly spaced histograms between them."""
    known = sorted(histograms.items())
    return dict(known[place] for place in _evenly(len(known), _MOST_PASSES))


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


_MOST_LINES = 20
_COLUMNS = ("ops", "forward", "backward", "optimizer", "memory made", "computed")
_OF_MODULES = ("computed", "forward", "backward", "memory made")
_NOTE = (
    "The backward of an op counts at the line and in the module of the op. Memory made is what comes with the results "
    "of ops, kept or not. Computed are the floating-point operations of products, convolutions and attention, counted "
    "by torch.utils.flop_counter."
)


def costs_of(query: Query) -> Costs | None:
    """The costs of a run for its report; None if nothing was measured."""
    if not is_profiled(query):
        return None
    measured = query.of(profile)
    ordered = sorted(measured.lines.items(), key=lambda pair: -pair[1].all_seconds)
    shown, rest = ordered[:_MOST_LINES], ordered[_MOST_LINES:]
    left_out = sum(cost.all_seconds for _, cost in rest)
    more = f"{plural(len(rest), 'more line')} took {duration(left_out)} together. " if rest else ""
    lines = tuple(_line(query, measured, *one) for one in shown)
    return Costs(f"{total_of(measured.total)}.", _COLUMNS, _OF_MODULES, lines, more + _NOTE)


def _line(query: Query, found: Profile, place: tuple[str, int], cost: Cost) -> Line:
    file, number = place
    source = query.trace.source(file)
    texts = (
        f"{cost.ops:,}",
        *(_if_any(duration, cost.seconds[phase]) for phase in (FORWARD, BACKWARD, OPTIMIZER)),
        _if_any(size, sum(cost.made.values())),
        _if_any(flops, sum(cost.flops.values())),
    )
    return Line(
        f"{file_name(file)}:{number}" if number else "not known",
        source[number - 1].strip() if 0 < number <= len(source) else "",
        cost.all_seconds / found.total.all_seconds if found.total.all_seconds else 0.0,
        found.most.get(place, ""),
        texts,
    )


def costs_of_modules(query: Query, paths: Iterable[str], first_call: float | None) -> tuple[str, ...]:
    """The cost columns of a row of modules, summed over them; the floating-point operations are those of the first
    call. Empty if nothing was measured."""
    if not is_profiled(query):
        return ()
    together = Cost()
    known = query.of(profile).modules
    for path in paths:
        together.add(known.get(path, Cost()))
    return (
        _if_any(flops, first_call or 0.0),
        *(_if_any(duration, together.seconds[phase]) for phase in (FORWARD, BACKWARD)),
        _if_any(size, sum(together.made.values())),
    )


def _if_any(text: Callable[[float], str], value: float) -> str:
    return text(value) if value else ""
