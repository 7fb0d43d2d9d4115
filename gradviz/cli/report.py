"""`gradviz report`: findings, curves and the picture of a run on one page."""

from __future__ import annotations

from pathlib import Path

import click

from gradviz.cli.common import fail, opened, patience
from gradviz.cli.findings import mark, numbered
from gradviz.diagnose import Finding, Report, check
from gradviz.diagnose.place import place_of
from gradviz.diagnose.settings_file import settings_at
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.model import Graph, Node
from gradviz.pictures import report_page as page
from gradviz.pictures.chart import COLOURS, Series
from gradviz.pictures.render import svg, write
from gradviz.query.curves import Curve, gradient_norms, update_ratios
from gradviz.tracefile import Trace
from gradviz.words import Words
from gradviz.words.numbers import plural

_AROUND = 2  # lines of source above and below a place


@click.command(
    epilog="""\b
Examples:
  gradviz report                                the newest trace here, as STEM.report.html
  gradviz report train.gradviz -o report.html
"""
)
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@click.option("-o", "output", type=click.Path(path_type=Path), help="The page [default: STEM.report.html].")
def report(trace: Path | None, output: Path | None) -> None:
    """Write what `gradviz check` finds in TRACE, the curves of its training and its picture on one page.

    The page is one file that needs no network. Default: the newest *.gradviz here.
    """
    with opened(trace) as recorded:
        path = output or recorded.path.with_suffix(".report.html")
        if path.suffix.lower() != ".html":
            fail(f"a report is an .html file, not {path.name}")
        with patience(f"checking {recorded.path.name}") as doing:
            found = check(recorded, settings=settings_at(Path.cwd()))
            doing(f"drawing into {path.name}")
            text = page.html(_report(recorded, found))
        write(path, text.encode())
    click.echo(f"wrote {path}: {plural(len(found.findings), 'finding')}")


def _report(trace: Trace, found: Report) -> page.Report:
    words = Words(trace)
    graph, about = _picture(trace, found)
    norms, ratios = gradient_norms(words.query), update_ratios(words.query)
    left_out = max(len(norms) - len(COLOURS), 0)
    reasons: dict[str, list[str]] = {}
    for rule, reason in found.not_checked:
        reasons.setdefault(reason, []).append(rule)
    return page.Report(
        title=Path(trace.meta.get("script", "") or trace.path.name).name,
        facts=_facts(trace, found),
        items=[
            _item(number, finding, trace, about.get(number, []))
            for number, finding in enumerate(found.findings, 1)
        ],
        not_checked=[(reason, ", ".join(rules)) for reason, rules in reasons.items()],
        norms=_series(words, norms),
        ratios=_series(words, ratios),
        more=f"{plural(left_out, 'leaf', 'leaves')} with smaller gradients left out" if left_out else "",
        picture=svg(graph),
        caption=_caption(graph),
        checked=len(found.checked),
    )


def _facts(trace: Trace, found: Report) -> list[tuple[str, str]]:
    counts = [
        plural(n, severity)
        for severity in ("error", "warning", "note")
        if (n := sum(finding.severity == severity for finding in found.findings))
    ]
    ended = trace.meta.get("ended", "") or ("not yet" if trace.is_being_recorded else "killed")
    return [
        ("findings", ", ".join(counts) or "none"),
        ("engine", trace.meta.get("engine", "")),
        ("events", f"{trace.count:,}"),
        ("backward passes", f"{len(trace.passes):,}"),
        ("ended", trace.meta.get("error", "") if ended == "error" else ended),
        ("trace", trace.path.name),
    ]


def _picture(trace: Trace, found: Report) -> tuple[Graph, dict[int, list[Node]]]:
    """The graph of the pass of the first finding, else of the last, and the nodes of each finding."""
    number = next((finding.number for finding in found.findings if finding.number), None)
    passes = {run.number for run in trace.passes if run.recorded}
    graph = build(trace, number if number in passes else None, "both", False)
    marked = mark(graph, trace, numbered(found))
    shown = folded(graph)
    return shown, {
        number: [node for node in nodes if node.id in shown.nodes] for number, nodes in marked.items()
    }


def _caption(graph: Graph) -> str:
    return "The whole run" if graph.pass_number is None else f"Pass {graph.pass_number} of {graph.passes}"


def _series(words: Words, curves: list[Curve]) -> list[Series]:
    """The curves that reach highest, by name."""
    largest = sorted(curves, key=lambda curve: -max(curve.values, default=0.0))[: len(COLOURS)]
    return [Series(words.called(curve.leaf), curve.at, curve.values) for curve in curves if curve in largest]


def _item(number: int, finding: Finding, trace: Trace, nodes: list[Node]) -> page.Item:
    event = finding.events[0] + 1 if finding.events else 0
    return page.Item(
        number,
        finding.severity,
        finding.rule,
        place_of(finding),
        finding.message,
        finding.fix,
        f"gradviz step {trace.path.name} --at {event}" if event else "",
        finding.number,
        _excerpt(finding, trace),
        tuple(f"{other.rule} ({place_of(other)}): {other.message}" for other in finding.consequences),
        tuple((node.id, node.name or node.id) for node in nodes),
    )


def _excerpt(finding: Finding, trace: Trace) -> page.Excerpt | None:
    lines = trace.source(finding.file) if finding.site is not None else []
    if finding.site is None or not 0 < finding.line <= len(lines):
        return None
    end = max(finding.site.place.end_line, finding.line)
    first = max(finding.line - _AROUND, 1)
    return page.Excerpt(first, tuple(lines[first - 1 : end + _AROUND]), finding.line, end)
