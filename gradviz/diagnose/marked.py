"""Findings in pictures: the pass that is drawn because of them, and the nodes that they are about."""

from collections.abc import Iterable

from gradviz.diagnose.finding import ERROR, WARNING, Finding
from gradviz.diagnose.rules.detached_path import detached_path
from gradviz.events.kinds import Kind, TensorMade
from gradviz.graph.model import LEAF, OP, OUTSIDE, TENSOR, Graph, Node
from gradviz.tracefile import Trace

_MARKED = 4  # tensors of a finding


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
    later = (one.number for one in trace.passes if one.last is None or one.last >= finding.events[0])
    return next(later, 0)


def mark(graph: Graph, trace: Trace, found: list[tuple[int, Finding]]) -> dict[int, list[Node]]:
    """Mark the nodes of a graph that errors and warnings are about, and the cuts that findings name. An error or a
    warning of the graph's pass that is about none of its nodes gets a node of its own. Returns the nodes by the number
    of the finding."""
    _mark_cuts(graph, trace, [finding for _, finding in found])
    faults = faults_of(found)
    marked = {number: _about(graph, trace, finding) for number, finding in faults}
    for number, finding in faults:
        if not marked[number] and (graph.pass_number is None or pass_of(finding, trace) in (0, graph.pass_number)):
            marked[number] = [outside := _outside(number, finding, trace)]
            graph.nodes[outside.id] = outside
        for node in marked[number]:
            node.finding = node.finding or f"finding {number}: {finding.rule}"
    return marked


def _outside(number: int, finding: Finding, trace: Trace) -> Node:
    """A node for a finding that is about nothing in a graph: its place in the program."""
    lines = trace.source(finding.file) if finding.line else []
    text = lines[finding.line - 1].strip() if finding.line <= len(lines) else ""
    return Node(
        f"f{number}", OUTSIDE, number, finding.rule, file=finding.file or None, line=finding.line or None, text=text
    )


def _mark_cuts(graph: Graph, trace: Trace, findings: list[Finding]) -> None:
    """Mark the edges at whose cut a finding says that a gradient was due. A lesson's finding is only a note, but its
    gradient is missing all the same."""
    named = [one for finding in findings for one in (finding, *finding.consequences) if one.events]
    cuts = {one.events[0] for one in named if one.rule == detached_path.id}
    views = {made.tensor for cut in cuts if isinstance(made := trace.event(cut), TensorMade)}
    for edge in graph.edges:
        if edge.cut:
            target = graph.nodes[edge.target]
            edge.due = target.number in (cuts if target.kind == OP else views)


def _about(graph: Graph, trace: Trace, finding: Finding) -> list[Node]:
    """The nodes of a graph that a finding is about: its op or grad_fn, otherwise its tensors."""
    names = [f"n{finding.node}"] if finding.node else []
    names += [f"op{event}" for event in finding.events[:1] if trace.kinds[event] in (Kind.OP, Kind.MUTATED)]
    if about := [graph.nodes[name] for name in names if name in graph.nodes]:
        return about
    tensors = finding.tensors[:_MARKED]
    newest = {
        node.number: node for node in graph.nodes.values() if node.kind in (LEAF, TENSOR) and node.number in tensors
    }
    return list(newest.values())
