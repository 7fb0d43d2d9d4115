"""A report as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import indent

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gradviz.diagnose.finding import ERROR, NOTE, WARNING, Finding, Report
from gradviz.diagnose.place import place_of
from gradviz.diagnose.rank_reports import on_ranks
from gradviz.diagnose.rule_page import RulePage
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import plural
from gradviz.words.source import excerpt

_STYLES = {ERROR: "bold red", WARNING: "bold yellow", NOTE: "bold cyan"}
_LINES = 4  # the most lines of source, with the line of carets
_LONGEST_ERROR = 200  # characters
_EVENTS = 4  # the most events that are named


def report_text(report: Report, trace: Trace | Mapping[int, Trace], console: Console) -> Group:
    """All findings with their lines and cures, then the rules that were checked and those that were not. For a run of
    several ranks, `trace` maps each rank to its trace."""
    parts: list[RenderableType] = []
    for position, finding in enumerate(report.findings, 1):
        if isinstance(trace, Trace):
            parts += [*_finding(finding, position, trace, console.width), Text()]
        else:
            on = on_ranks(finding.ranks, len(trace))
            parts += [*_finding(finding, position, trace[finding.ranks[0]], console.width, on), Text()]
    if isinstance(trace, Trace):
        parts += _ended(report, trace)
    return Group(*parts, *_coverage(report))


def _ended(report: Report, trace: Trace) -> Iterator[RenderableType]:
    """The exception that ended the program, if no finding is an error: the reader may look for it."""
    error, file = trace.meta.get("error", ""), trace.meta.get("error_file", "")
    if not error or report.at_least(ERROR):
        return
    place = f"{clean(Path(file).name)}:{trace.meta.get('error_line', '')}  " if file else ""
    yield Text.assemble(("ended by an error  ", "dim"), place, shortened(clean(error), _LONGEST_ERROR))


def _finding(
    finding: Finding, position: int, trace: Trace, width: int, on: str = ""
) -> Iterator[RenderableType]:
    style = _STYLES[finding.severity]
    yield Text.assemble(
        f"{position}. ", (finding.severity, style), " ", (finding.rule, "bold"), f"  {place_of(finding)}",
        f"  {on}" if on else "",
    )  # fmt: skip
    yield _indented(Text(clean(finding.message)))
    if trace.has_sources:
        yield from excerpt(trace, finding.site, width, _LINES)
    yield _indented(Text.assemble(("cure  ", "dim"), (clean(finding.fix), "green")))
    if finding.replayed:
        yield _indented(Text.assemble(("gives ", "dim"), clean(finding.replayed)))
    if finding.events:
        yield _indented(Text.assemble(("see   ", "dim"), _events(finding, trace)))
    for line in _consequences(finding):
        yield _indented(line)


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 3))


def _events(finding: Finding, trace: Trace) -> str:
    """The command that shows the first event, and the other events."""
    first, *others = (event + 1 for event in finding.events[:_EVENTS])
    name = clean(as_argument(trace.path))
    also = f"  (also {', '.join(map(str, others))})" if others else ""
    return f"gradviz step {name} --at {first}{also}"


def _consequences(finding: Finding) -> Iterator[Text]:
    for follows in finding.consequences:
        place = f" (line {follows.line})" if follows.line and follows.line != finding.line else ""
        yield Text.assemble(
            ("because of this  ", "dim"), (follows.rule, "dim bold"), f"{place}: {clean(follows.message)}"
        )


def _coverage(report: Report) -> Iterator[Text]:
    counts = [
        plural(count, severity)
        for severity in _STYLES
        if (count := sum(finding.severity == severity for finding in report.findings))
    ]
    counted = ", ".join(counts) or "no findings"
    yield Text.assemble(
        (counted, "bold"), f" · {plural(len(report.checked), 'rule')} checked, {len(report.not_checked)} not"
    )
    reasons: dict[str, list[str]] = {}
    for rule, reason in report.not_checked:
        reasons.setdefault(reason, []).append(rule)
    for reason, rules in reasons.items():
        yield Text.assemble(("not checked  ", "dim"), f"{', '.join(rules)}: {reason}")


def page_text(page: RulePage) -> Group:
    """The page of a rule."""
    heading = Text.assemble(
        (page.rule.id, "bold"),
        "  ",
        (page.rule.severity, _STYLES[page.rule.severity]),
        f"  {page.rule.looks_for}",
    )
    code = Text(indent(page.example, "   "), no_wrap=True, overflow="ignore")
    parts = {
        "why it is bad": _indented(Text(page.why)), "example": code, "cure": _indented(Text(page.cure, "green")),
        "not reported": _indented(Text(page.spared)),
    }  # fmt: skip
    sections = [part for title, text in parts.items() for part in (Text(), Text(title, "dim"), text)]
    return Group(heading, Text(), _indented(Text(page.finds)), *sections)
