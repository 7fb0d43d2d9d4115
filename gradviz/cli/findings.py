"""Findings that commands show or mark without being asked to check, for runs that are checked quickly."""

from collections.abc import Collection, Iterable, Iterator

from rich.text import Text

from gradviz.cli.common import stderr
from gradviz.diagnose import Finding
from gradviz.diagnose.finding import ERROR, NOTE, WARNING, place_of
from gradviz.diagnose.marked import faults_of
from gradviz.diagnose.rule_settings import Settings
from gradviz.events.kinds import Kind
from gradviz.replaying import quick_report
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace
from gradviz.words.escape import clean
from gradviz.words.numbers import plural

_TOLD = 2


def findings_of(trace: Trace, settings: Settings) -> list[tuple[int, Finding]] | None:
    """The findings of a trace with their numbers in the report, from 1. None for a long run, which only
    `gradviz check` checks, and if a rule fails. Raises TraceError for a damaged trace."""
    report = quick_report(trace, settings, _say)
    return None if report is None else list(enumerate(report, 1))


def _say(line: str) -> None:
    stderr.print(Text(line, "yellow"))


_STYLES = {ERROR: "red", WARNING: "yellow", NOTE: "cyan"}


def hints(trace: Trace, settings: Settings, failed: bool, said: Collection[Finding] = ()) -> Iterator[Text]:
    """The strongest findings, a line each, and how to read more; after a traceback also the cure of the first.
    Findings in `said` are omitted."""
    report: Iterable[Finding] = quick_report(trace, settings, _say) or ()
    findings = faults_of(enumerate(report, 1))
    if not findings and not failed:
        # a lesson may intend what a note reports on a program that trains nothing
        trains = len(trace.table(Kind.STEPPED)) or len(trace.table(Kind.HOLDS))
        yield from map(hint, [] if trains else list(report)[:1])
    known = {(finding.rule, finding.file, finding.line) for finding in said}
    for position, (_, finding) in enumerate(findings[:_TOLD]):
        if (finding.rule, finding.file, finding.line) not in known:
            yield hint(finding)
        if failed and not position:
            yield Text.assemble(("gradviz: cure ", "dim"), (clean(finding.fix), "green"))
    if findings:
        others = f"  (and {plural(len(findings) - _TOLD, 'other finding')})" if len(findings) > _TOLD else ""
        yield Text.assemble(("gradviz: more ", "dim"), f"gradviz check {clean(as_argument(trace.path))}{others}")


def hint(finding: Finding) -> Text:
    """A finding in one line."""
    return Text.assemble(
        (f"gradviz: {finding.severity} ", "dim"),
        (clean(finding.rule), f"bold {_STYLES[finding.severity]}"),
        f"  {place_of(finding)}  {clean(finding.message)}",
    )
