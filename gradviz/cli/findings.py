"""Findings that commands show or mark without being asked to check, for runs that are checked quickly."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import numpy as np
from rich.text import Text

from gradviz.cli.common import one_line, stderr
from gradviz.diagnose import Finding, check
from gradviz.diagnose.finding import ERROR, NOTE, WARNING
from gradviz.diagnose.place import place_of
from gradviz.diagnose.rule_settings import Settings
from gradviz.diagnose.rules.detached_path import RULE as DETACHED_PATH
from gradviz.errors import tracebacks_are_wanted
from gradviz.events.kinds import Kind, TensorMade
from gradviz.graph.model import LEAF, OP, TENSOR, Graph, Node
from gradviz.replaying import fill_in_where_bad
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace, TraceError
from gradviz.words.escape import clean
from gradviz.words.numbers import plural

MOST_EVENTS = 200_000  # of a run that is checked in passing: half a second
_TOLD = 2
_MARKED = 4  # tensors of a finding


def findings_of(trace: Trace, settings: Settings) -> list[tuple[int, Finding]]:
    """The findings of a trace with their numbers in the report, from 1. Empty for a long run, which only
    `gradviz check` checks. Raises TraceError for a damaged trace."""
    return list(enumerate(_report(trace, settings), 1))


def _report(trace: Trace, settings: Settings) -> Iterable[Finding]:
    """The findings of a trace; empty for a long run, and if a rule fails."""
    if trace.count > MOST_EVENTS:
        return []
    try:
        with np.errstate(all="ignore"):
            fill_in_where_bad(trace)
            return check(trace, settings=settings)
    except TraceError:
        raise
    except Exception as error:  # whatever fails in a rule, the command goes on
        if tracebacks_are_wanted():
            raise
        stderr.print(Text(f"gradviz: not checked: {one_line(repr(error))}", "yellow"))
        return []


def faults_of(found: Iterable[tuple[int, Finding]]) -> list[tuple[int, Finding]]:
    """The errors and warnings among findings with numbers."""
    return [(number, finding) for number, finding in found if finding.severity in (ERROR, WARNING)]


def pass_of_first(found: list[tuple[int, Finding]], trace: Trace) -> int:
    """The number of the pass of the first finding; 0 if there is none."""
    return pass_of(found[0][1], trace) if found else 0


def pass_of(finding: Finding, trace: Trace) -> int:
    """The number of the pass of a finding; 0 if there is none."""
    if finding.number or not finding.events:
        return finding.number
    later = (
        backward_pass.number
        for backward_pass in trace.passes
        if backward_pass.last is None or backward_pass.last >= finding.events[0]
    )
    return next(later, 0)


_STYLES = {ERROR: "red", WARNING: "yellow", NOTE: "cyan"}


def hints(trace: Trace, settings: Settings, failed: bool, said: Collection[Finding] = ()) -> Iterator[Text]:
    """The strongest findings, a line each, and how to read more; after a traceback also the cure of the first.
    Findings in `said` are omitted."""
    report = _report(trace, settings)
    findings = faults_of(enumerate(report, 1))
    if not findings and not failed:
        yield from map(hint, _first_note(trace, report))
    known = {(finding.rule, finding.file, finding.line) for finding in said}
    for position, (_, finding) in enumerate(findings[:_TOLD]):
        if (finding.rule, finding.file, finding.line) not in known:
            yield hint(finding)
        if failed and not position:
            yield Text.assemble(("gradviz: cure ", "dim"), (clean(finding.fix), "green"))
    if findings:
        others = f"  (and {plural(len(findings) - _TOLD, 'other finding')})" if len(findings) > _TOLD else ""
        yield Text.assemble(
            ("gradviz: more ", "dim"), f"gradviz check {clean(as_argument(trace.path))}{others}"
        )


def _first_note(trace: Trace, report: Iterable[Finding]) -> list[Finding]:
    """The first note on a program that trains nothing, as a list: a lesson may intend what the note reports."""
    trains = len(trace.table(Kind.STEPPED)) or len(trace.table(Kind.HOLDS))
    return [] if trains else list(report)[:1]


def hint(finding: Finding) -> Text:
    """A finding in one line."""
    return Text.assemble(
        (f"gradviz: {finding.severity} ", "dim"),
        (clean(finding.rule), f"bold {_STYLES[finding.severity]}"),
        f"  {place_of(finding)}  {clean(finding.message)}",
    )


def mark(graph: Graph, trace: Trace, found: list[tuple[int, Finding]]) -> dict[int, list[Node]]:
    """Mark the nodes of a graph that errors and warnings are about, and the cuts that findings name. Returns the nodes
    by the number of the finding."""
    _mark_cuts(graph, trace, [finding for _, finding in found])
    faults = faults_of(found)
    marked = {number: _about(graph, trace, finding) for number, finding in faults}
    for number, finding in faults:
        for node in marked[number]:
            node.finding = node.finding or f"finding {number}: {finding.rule}"
    return marked


def _mark_cuts(graph: Graph, trace: Trace, findings: list[Finding]) -> None:
    """Mark the edges at whose cut a finding says that a gradient was due. A lesson's finding is only a note, but its
    gradient is missing all the same."""
    named = [one for finding in findings for one in (finding, *finding.consequences) if one.events]
    cuts = {one.events[0] for one in named if one.rule == DETACHED_PATH.id}
    views = {made.tensor for cut in cuts if isinstance(made := trace.event(cut), TensorMade)}
    for edge in graph.edges:
        if edge.cut:
            target = graph.nodes[edge.target]
            edge.due = target.number in (cuts if target.kind == OP else views)


def _about(graph: Graph, trace: Trace, finding: Finding) -> list[Node]:
    """The nodes of a graph that a finding is about: its op or grad_fn, otherwise its tensors."""
    names = [f"n{finding.node}"] if finding.node else []
    names += [f"op{event}" for event in finding.events[:1] if trace.kinds[event] in (Kind.OP, Kind.MUTATED)]
    about = [graph.nodes[name] for name in names if name in graph.nodes]
    if about:
        return about
    tensors = finding.tensors[:_MARKED]
    newest = {
        node.number: node
        for node in graph.nodes.values()
        if node.kind in (LEAF, TENSOR) and node.number in tensors
    }
    return list(newest.values())
