"""Fills in the values and gradients of a graph, at the event that it shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from gradviz.events.kinds import Accumulated, Kind, Produced, Received
from gradviz.graph import model as m
from gradviz.graph.exchanges import note_exchanges
from gradviz.graph.ids import Ids
from gradviz.graph.model import Edge, Graph, Node
from gradviz.query import Query, State
from gradviz.query.changes import added_to
from gradviz.query.reduced_gradients import on_gradients
from gradviz.query.writes import used_otherwise
from gradviz.tracefile import PassInfo, Snapshot


def fill_values(
    graph: Graph, query: Query, states: Mapping[str, State], backward_pass: PassInfo | None
) -> None:
    """Fill in `value`, `grad`, `tangent` and `upstream` of nodes, and the gradients of `grad` edges. `states`
    are the states of the graph's tensors, by id."""
    _fill_tensors(graph, query, states)
    if backward_pass is not None:
        _fill_gradients(graph, query, backward_pass)
        note_exchanges(graph, query, backward_pass)


def _fill_tensors(graph: Graph, query: Query, states: Mapping[str, State]) -> None:
    trace, tensors, at = query.trace, query.tensors, graph.at
    last_version: dict[int, Node] = {}
    used = used_otherwise(query, at)
    for node in graph.nodes.values():
        if node.kind not in (m.LEAF, m.TENSOR):
            continue
        node.value = trace.snapshot(node.number, tensors.last_event(states[node.id], at))
        if write := used.get(states[node.id]):
            node.value, node.used = write.before, write.after
        last_version[node.number] = node
    for tensor, node in last_version.items():
        grad = tensors.grad(tensor, at)
        node.grad = trace.snapshot(grad, at)
        node.has_grad = bool(grad)
        node.tangent = trace.snapshot(tensors.tangent(tensor, at), at)
        node.retained = not node.is_leaf and tensors.is_retained(tensor, at)


def name_gradients(graph: Graph, query: Query) -> None:
    """Name the gradients and tangents that tensors hold, if they have no name of their own."""
    versions: dict[int, list[Node]] = {}
    for node in graph.nodes.values():
        if node.kind in (m.LEAF, m.TENSOR):
            versions.setdefault(node.number, []).append(node)
    for of in (query.tensors.grad, query.tensors.tangent):
        for tensor in sorted(versions):
            for part in versions.get(of(tensor, graph.at), ()):
                if not part.name:
                    part.name = part.called


def _fill_gradients(graph: Graph, query: Query, backward_pass: PassInfo) -> None:
    """Fill in the gradients that moved along the edges in a pass."""
    trace, ids = query.trace, Ids().node
    arrived: dict[str, Snapshot | None] = {}
    added: dict[str, tuple[Snapshot, Snapshot] | None] = {}  # by AccumulateGrad
    edges: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if edge.kind == m.GRAD:
            edges.setdefault(edge.source, []).append(edge)
    for event in _events_of(query, backward_pass):
        node = graph.nodes.get(ids[event.node])
        if node is None:
            continue
        if isinstance(event, Accumulated):
            node.accumulated = True
            added[node.id] = added_to(query, event, graph.at)
        elif isinstance(event, Received):
            node.ran = True
            arrived[node.id] = trace.snapshot(event.gradients[0], event.index)
        else:
            flows = [flow.gradient for flow in event.flows if flow.node]
            for edge, gradient in zip(edges.get(node.id, ()), flows, strict=False):
                edge.gradient, edge.value = gradient, trace.snapshot(gradient, event.index)
    for leaf in graph.nodes.values():
        if leaf.grad is not None:
            leaf.added = added.get(leaf.pair)
        if (
            leaf.pair in arrived
            and leaf.kind == m.LEAF
            and not (leaf.has_grad and graph.nodes[leaf.pair].accumulated)
        ):
            leaf.reached = arrived[leaf.pair]
    between_ranks = on_gradients(query, backward_pass)
    for leaf in graph.nodes.values() if between_ranks else ():
        if leaf.is_leaf and not leaf.overwritten and leaf.number in between_ranks:
            leaf.collectives = _collectives(between_ranks[leaf.number], query.trace.meta.get("world", ""))
    for root in query.passes.began(backward_pass.number).roots:
        if ids[root.node] in graph.nodes:
            graph.nodes[ids[root.node]].upstream = trace.snapshot(root.gradient, backward_pass.first)


def _collectives(names: list[str], world: str) -> str:
    """The collectives that a gradient went through, in a few words: `all_reduce · 2 ranks`."""
    parts = [name if count == 1 else f"{name} ×{count}" for name, count in Counter(names).items()]
    return ", ".join(parts) + (f" · {world} ranks" if world else "")


def _events_of(query: Query, backward_pass: PassInfo) -> list[Received | Produced | Accumulated]:
    """The events at nodes in a pass, in order."""
    last = query.passes.last(backward_pass)
    events: list[Received | Produced | Accumulated] = []
    for kind in (Kind.RECEIVED, Kind.PRODUCED, Kind.ACCUMULATED):
        table = query.trace.table(kind)
        first, end = np.searchsorted(table.events, [backward_pass.first, last + 1])
        of_pass = table.events[first:end][table["in_pass"][first:end] == backward_pass.number]
        events += [table.object(event) for event in of_pass.tolist()]
    return sorted(events, key=lambda event: event.index)
