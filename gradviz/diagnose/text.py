"""A report of `check`: as text, and for programs as JSON and as SARIF 2.1.0."""

import re
import sys
from collections.abc import Iterator, Mapping
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from gradviz.diagnose.finding import ERROR, NOTE, WARNING, Finding, Report, place_of
from gradviz.diagnose.fix import Patch
from gradviz.diagnose.rank_reports import on_ranks
from gradviz.diagnose.rank_rule import RankRule
from gradviz.diagnose.rule import Rule
from gradviz.diagnose.rules import RULES
from gradviz.diagnose.run_rules import rule_called
from gradviz.sets import grouped
from gradviz.system.paths import as_argument, uri
from gradviz.tracefile import Site, Trace
from gradviz.version import __version__
from gradviz.words.escape import clean, shortened
from gradviz.words.numbers import plural
from gradviz.words.source import excerpt

_SECTIONS = re.compile(r"\n\n(Why it is bad|Example|Cure|Not reported):\s")


class RulePage(NamedTuple):
    """The sections of a rule's page. `spared` is what looks alike and is not reported."""

    rule: Rule | RankRule
    finds: str
    why: str
    example: str
    cure: str
    spared: str


def page_of(rule: Rule | RankRule) -> RulePage:
    """The page of a rule, from the docstring of its file; of a rule between ranks, from that of its search. Its texts
    are empty if Python leaves docstrings out (`-OO`)."""
    search = rule.search
    header = cleandoc((search if isinstance(rule, RankRule) else sys.modules[search.__module__]).__doc__ or "")
    finds, *parts = _SECTIONS.split(header)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    return RulePage(
        rule,
        _sentences(finds.removeprefix(f"`{rule.id}`: ")),
        _sentences(sections.get("Why it is bad", "")),
        dedent(sections.get("Example", "")).strip("\n"),
        _sentences(sections.get("Cure", "")),
        _sentences(sections.get("Not reported", "")),
    )


def _sentences(text: str) -> str:
    """The text with one line for each paragraph and a capital first letter."""
    text = "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
    return text[:1].upper() + text[1:]


def markdown(page: RulePage, cured: str = "") -> str:
    """The page as Markdown, with the `cured` example if it is given."""
    without = f"Cured:\n\n```python\n{cured}\n```\n\n" if cured else ""
    asked = ", if it is selected" if page.rule.opt_in else ""
    return (
        f"# {page.rule.id}\n\n*{page.rule.severity}{asked}*: {page.rule.looks_for}.\n\n{page.finds}\n\n"
        f"## Why it is bad\n\n{page.why}\n\n## Example\n\n```python\n{page.example}\n```\n\n"
        f"## Cure\n\n{page.cure}\n\n{without}## Not reported\n\n{page.spared}\n"
    )


_STYLES = {ERROR: "bold red", WARNING: "bold yellow", NOTE: "bold cyan"}
_LINES = 4  # the most lines of source, with the line of carets
_LONGEST_ERROR = 200  # characters
_EVENTS = 4  # the most events that are named
_NAMED = 3  # the most rules that are named where they were not checked; more are counted
_REASONS = 2  # the most reasons for which they are counted
_IDS = {rule.id for rule in RULES}
_OPT_IN = {rule.id for rule in RULES if rule.opt_in}


def report_text(
    report: Report,
    trace: Trace | Mapping[int, Trace],
    console: Console,
    names_all: bool = False,
    with_diffs: bool = False,
) -> Group:
    """All findings with their lines and cures, then how many rules were checked, and why others were not. With
    `names_all` each of these is named; `with_diffs` adds the edits of each cure. For a run of several ranks, `trace`
    maps each rank to its trace."""
    parts: list[RenderableType] = []
    for position, finding in enumerate(report.findings, 1):
        if isinstance(trace, Trace):
            parts += [*_finding(finding, position, trace, console.width), Text()]
        else:
            on = on_ranks(finding.ranks, len(trace))
            parts += [*_finding(finding, position, trace[finding.ranks[0]], console.width, on), Text()]
        if with_diffs and finding.patch is not None:
            parts += [diff_text(finding.patch), Text()]
    ended = [*_ended(report, trace)] if isinstance(trace, Trace) else []
    nothing = "no finding explains it" if ended else "no findings"
    return Group(*parts, *ended, *_coverage(report, names_all, nothing))


def _ended(report: Report, trace: Trace) -> Iterator[RenderableType]:
    """The exception that ended the program, if no finding is an error: the reader may look for it."""
    error, file = trace.meta.get("error", ""), trace.meta.get("error_file", "")
    if not error or report.at_least(ERROR):
        return
    place = f"{clean(Path(file).name)}:{trace.meta.get('error_line', '')}  " if file else ""
    yield Text.assemble(("ended by an error  ", "dim"), place, shortened(clean(error), _LONGEST_ERROR))
    if used := trace.meta.get("operands", ""):
        yield Text.assemble(("it used  ", "dim"), clean(used))


def _finding(finding: Finding, position: int, trace: Trace, width: int, on: str = "") -> Iterator[RenderableType]:
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
    for follows in finding.consequences:
        place = f" (line {follows.line})" if follows.line and follows.line != finding.line else ""
        told = f"{place}: {clean(follows.message)}"
        yield _indented(Text.assemble(("because of this  ", "dim"), (follows.rule, "dim bold"), told))


def diff_text(patch: Patch) -> Text:
    """The edits of a cure as a unified diff, for a terminal."""
    lines = (clean(line.rstrip("\r").replace("\t", "    ")) for line in patch.diff[:-1].split("\n"))
    styles = {"+": "green", "-": "red"}
    text = Text("\n").join(Text(line, styles.get(line[:1], "")) for line in lines)
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _indented(text: Text) -> RenderableType:
    return Padding(text, (0, 0, 0, 3), expand=False)


def _events(finding: Finding, trace: Trace) -> str:
    """The command that shows the first event, and the other events."""
    first, *others = (event + 1 for event in finding.events[:_EVENTS])
    name = clean(as_argument(trace.path))
    also = f"  (also {', '.join(map(str, others))})" if others else ""
    return f"gradviz step {name} --at {first}{also}"


def _coverage(report: Report, names_all: bool, nothing: str) -> Iterator[Text]:
    """How many findings there are and how many rules were checked, then what was not checked and why."""
    counts = [
        plural(count, severity)
        for severity in _STYLES
        if (count := sum(finding.severity == severity for finding in report.findings))
    ]
    # those that are to be selected are not expected
    lacking = [one for one in report.not_checked if names_all or one[0] not in _OPT_IN]
    checked = f"{plural(len(report.checked), 'rule')} checked" + f", {len(lacking)} not" * bool(lacking)
    yield Text.assemble((", ".join(counts) or nothing, "bold"), f" · {checked}")
    reasons = grouped((reason, rule) for rule, reason in lacking)
    of_rules = {reason: rules for reason, rules in reasons.items() if all(rule in _IDS for rule in rules)}
    in_short = not names_all and sum(map(len, of_rules.values())) > _NAMED
    for reason, rules in reasons.items():
        if not in_short or reason not in of_rules:
            yield _not_checked(f"{', '.join(rules)}: {reason}")
    if in_short:
        yield _not_checked(_in_short({reason: len(rules) for reason, rules in of_rules.items()}))


def _in_short(counts: dict[str, int]) -> str:
    """How many rules were not checked for the main reasons: first those that recording with other options removes."""
    by_weight = sorted(counts, key=lambda reason: (" (--" not in reason, -counts[reason]))
    shown, others = by_weight[:_REASONS], by_weight[_REASONS:]
    parts = [f"{counts[reason]} as {reason.partition(':')[0]}" for reason in shown]
    parts[0] = parts[0].replace(" ", " rules " if counts[shown[0]] > 1 else " rule ", 1)
    if others:
        parts.append(f"{sum(counts[reason] for reason in others)} for other reasons")
    return f"{', '.join(parts)} (gradviz check --not-checked names them)"


def _not_checked(text: str) -> Text:
    return Text.assemble(("not checked  ", "dim"), text)


def page_text(page: RulePage) -> Group:
    """The page of a rule."""
    heading = Text.assemble(
        (page.rule.id, "bold"), "  ", (page.rule.severity, _STYLES[page.rule.severity]), f"  {page.rule.looks_for}"
    )
    code = Text(indent(page.example, "   "), no_wrap=True, overflow="ignore")
    parts = {
        "why it is bad": _indented(Text(page.why)), "example": code, "cure": _indented(Text(page.cure, "green")),
        "not reported": _indented(Text(page.spared)),
    }  # fmt: skip
    sections = [part for title, text in parts.items() for part in (Text(), Text(title, "dim"), text)]
    return Group(heading, Text(), _indented(Text(page.finds)), *sections)


_LEVELS = {ERROR: "error", WARNING: "warning", NOTE: "note"}
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def as_lines(report: Report) -> Iterator[str]:
    """One line for each finding, as compilers write them: `train.py:8:5: error: message [rule]`."""
    for finding in report.findings:
        column = finding.site.place.col + 1 if finding.site is not None else 0
        place = f"{finding.file}:{finding.line}:{column}" if column > 0 else place_of(finding)
        yield clean(f"{place}: {finding.severity}: {finding.message} [{finding.rule}]")


def as_json(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "findings": [
            {
                "rule": finding.rule,
                "severity": finding.severity,
                "message": finding.message,
                "fix": finding.fix,
                "edits": _edits(finding.patch),
                **({"replayed": finding.replayed} if finding.replayed else {}),
                "file": finding.file or None,
                "line": finding.line or None,
                "node": finding.node or None,
                "pass": finding.number or None,
                **({"ranks": list(finding.ranks)} if finding.ranks else {}),
            }
            for finding in report.findings
        ],
        "checked": list(report.checked),
        "not_checked": [{"rule": rule, "reason": reason} for rule, reason in report.not_checked],
    }


def _edits(patch: Patch | None) -> list[dict[str, Any]]:
    """The edits of a cure as plain data: lines and columns from 1; none if the cure is advice."""
    names = ("line", "column", "end_line", "end_column", "text")
    each = patch.replacements if patch is not None else ()
    return [{"file": patch.file if patch else "", **dict(zip(names, edit, strict=True))} for edit in each]


def as_sarif(report: Report) -> dict[str, Any]:
    """The report as a SARIF log. Consequences are related locations of their cause."""
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "gradviz",
                        "version": __version__,
                        "rules": [_rule(rule) for rule in report.checked],
                    }
                },
                "columnKind": "unicodeCodePoints",
                "results": [_result(finding) for finding in report.findings],
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            {
                                "level": "note",
                                "message": {"text": f"not checked: {reason}"},
                                "associatedRule": {"id": rule},
                            }
                            for rule, reason in report.not_checked
                        ],
                    }
                ],
            }
        ],
    }


def _rule(name: str) -> dict[str, Any]:
    """The SARIF description of a rule, for a single trace or between ranks."""
    rule = rule_called(name)
    page = page_of(rule)
    return {
        "id": name,
        "shortDescription": {"text": rule.looks_for},
        "help": {"text": f"{page.finds} {page.why} Cure: {page.cure}", "markdown": markdown(page)},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
    }


def _result(finding: Finding) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.message}. Cure: {finding.fix}"},
        **({"properties": {"ranks": list(finding.ranks)}} if finding.ranks else {}),
        "locations": [_location(finding.site)] if finding.site is not None else [],
        **({"fixes": [_fix(finding, finding.patch)]} if finding.patch is not None else {}),
    }
    related = [
        {**_location(follows.site), "message": {"text": f"{follows.rule}: {follows.message}"}}
        for follows in finding.consequences
        if follows.site is not None
    ]
    return {**result, "relatedLocations": related} if related else result


def _fix(finding: Finding, patch: Patch) -> dict[str, Any]:
    """The edits of a cure as replacements of regions."""
    replacements = []
    for line, column, end_line, end_column, text in patch.replacements:
        region = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
        replacements.append({"deletedRegion": region, "insertedContent": {"text": text}})
    change = {"artifactLocation": {"uri": uri(patch.file)}, "replacements": replacements}
    return {"description": {"text": finding.fix}, "artifactChanges": [change]}


def _location(site: Site) -> dict[str, Any]:
    place = site.place
    region: dict[str, int] = {"startLine": max(place.line, 1)}
    if place.col >= 0:
        region |= {"startColumn": place.col + 1, "endLine": place.end_line, "endColumn": place.end_col + 1}
    return {"physicalLocation": {"artifactLocation": {"uri": uri(place.file)}, "region": region}}
