"""`gradviz report`: findings, curves, the model and the picture of a run on one page; or the curves of several runs."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from gradviz.cli.common import all_opened, fail, how_ended, patience, traces_argument
from gradviz.cli.report_costs import costs_of
from gradviz.cli.report_curves import MOST_RUNS, charts_of_run, charts_of_runs, model_rows, spreads
from gradviz.diagnose import Finding, Report
from gradviz.diagnose.finding import place_of
from gradviz.diagnose.marked import mark
from gradviz.diagnose.rank_reports import compared, on_ranks
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.settings_file import settings_at
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.model import Graph, Node
from gradviz.pictures import report_page as page
from gradviz.pictures.render import svg, write
from gradviz.query.query import Query
from gradviz.query.ranks import label_of, ranked_traces
from gradviz.replaying import check
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace
from gradviz.tracefile.rank_files import are_of_one_run
from gradviz.words.numbers import plural

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
@click.option("-o", "output", type=click.Path(path_type=Path), help="The page [default: STEM.report.html].")
def report(traces: tuple[Path, ...], output: Path | None) -> None:
    """Write what `gradviz check` finds in TRACE, the curves of its training, its modules and its picture on one page.
    Of several traces, and of the ranks of one run, the page has their curves together, and the findings of each.

    The page is one file that needs no network. Default: the newest *.gradviz here.
    """
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
            _item(number, finding, trace, about.get(number, []))
            for number, finding in enumerate(found.findings, 1)
        ],
        charts=charts_of_run(query),
        rows=rows,
        total=total,
        spreads=bars,
        of_spreads=of_spreads,
        not_checked=_by_reason(found.not_checked),
        picture=svg(graph),
        caption=_caption(graph),
        checked=len(found.checked),
        costs=costs_of(query),
    )


def _by_reason(not_checked: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The reasons for which rules were not checked, each with its rules."""
    reasons: dict[str, list[str]] = {}
    for rule, reason in not_checked:
        reasons.setdefault(reason, []).append(rule)
    return [(reason, ", ".join(rules)) for reason, rules in reasons.items()]


def _of_runs(
    traces: Sequence[Trace],
    reports: Sequence[Report],
    items: list[page.Item],
    drawn: Collection[int],
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
        charts=charts_of_runs(
            {names[place]: Query(traces[place]) for place in drawn}, are_of_one_run(traces)
        ),
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
        items.append(replace(_item(number, finding, trace, []), where=runs))
    return items


def _of_ranks(traces: Sequence[Trace], reports: Sequence[Report], settings: Settings) -> page.Report:
    """The report of the ranks of one run. If there are very many ranks, only the curves of some are drawn: first of
    the ranks that a finding names."""
    ranks = ranked_traces(traces)
    by_rank = dict(zip(ranks, reports, strict=True))
    together = compared(ranks, by_rank, settings)
    findings = together.findings
    named = [rank for finding in findings if len(finding.ranks) < len(ranks) for rank in finding.ranks]
    drawn = sorted([*dict.fromkeys([*named, *ranks])][:MOST_RUNS])
    report = _of_runs(
        [*ranks.values()],
        [*by_rank.values()],
        items=_items_of_ranks(ranks, findings),
        drawn=[[*ranks].index(rank) for rank in drawn],
    )
    return replace(
        report,
        runs_called="rank",
        checked=len(together.checked),
        not_checked=_by_reason(together.not_checked),
    )


def _items_of_ranks(ranks: Mapping[int, Trace], findings: Sequence[Finding]) -> list[page.Item]:
    """The findings of the ranks of one run, findings between ranks first, each with the ranks that have it."""
    return [
        replace(
            _item(number, finding, ranks[finding.ranks[0]], []),
            where=on_ranks(finding.ranks, len(ranks)).removeprefix("on "),
        )
        for number, finding in enumerate(findings, 1)
    ]


def _names(traces: Sequence[Trace]) -> list[str]:
    """The names of the runs: their ranks in one run, else their file names, or their paths if these are equal."""
    stems = (
        [label_of(trace) for trace in traces]
        if are_of_one_run(traces)
        else [trace.path.stem for trace in traces]
    )
    names = stems if len(set(stems)) == len(stems) else [str(trace.path) for trace in traces]
    return [
        f"{name} ({place})" if names.index(name) < place - 1 else name for place, name in enumerate(names, 1)
    ]


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
    return shown, {
        number: [node for node in nodes if node.id in shown.nodes] for number, nodes in marked.items()
    }


def _caption(graph: Graph) -> str:
    return "The whole run" if graph.pass_number is None else f"Pass {graph.pass_number} of {graph.passes}"


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
