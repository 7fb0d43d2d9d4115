"""Values and gradients of a graph's nodes and edges, as of the moment that it shows."""

from __future__ import annotations

from gradviz.events.kinds import Accumulated, Kind, PassBegan, Produced, Received
from gradviz.graph import model as m
from gradviz.graph.history import FIRST, History, State
from gradviz.graph.model import Edge, Graph, Node
from gradviz.tracefile import PassInfo


def fill_values(graph: Graph, history: History, run: PassInfo | None) -> None:
    """Fill in `value`, `grad`, `tangent`, `upstream`, and the gradients along `grad` edges."""
    _fill_tensors(graph, history)
    if run is not None:
        _fill_gradients(graph, history, run)


def _fill_tensors(graph: Graph, history: History) -> None:
    trace, at = history.trace, graph.at
    grads = history.latest(at, Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)
    tangents = history.latest(at, Kind.TANGENT)
    retained = set(history.latest(at, Kind.RETAINED))
    last_version: dict[int, Node] = {}
    for node in graph.nodes.values():
        if node.kind not in (m.LEAF, m.TENSOR):
            continue
        node.value = trace.snapshot(node.number, _end(history, node, at))
        last_version[node.number] = node
    for tensor, node in last_version.items():
        node.grad = trace.snapshot(grads.get(tensor, 0), at)
        node.has_grad = bool(grads.get(tensor))
        node.tangent = trace.snapshot(tangents.get(tensor, 0), at)
        node.retained = tensor in retained and not node.is_leaf


def name_gradients(graph: Graph, history: History) -> None:
    """Call what is another tensor's gradient or tangent `x.grad` or `x.tangent`, if it has no name of its own."""
    last_version = {node.number: node for node in graph.nodes.values() if node.kind in (m.LEAF, m.TENSOR)}
    held = (
        (".grad", history.latest(graph.at, Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)),
        (".tangent", history.latest(graph.at, Kind.TANGENT)),
    )
    for suffix, parts in held:
        for tensor, number in parts.items():
            owner, part = last_version.get(tensor), last_version.get(number)
            if owner is not None and part is not None and not part.name:
                part.name = f"{owner.name or owner.id}{suffix}"


def _end(history: History, node: Node, at: int) -> int:
    """The last event at which a tensor's node stands for it."""
    since = FIRST
    for event in history.mutations(node.number):
        if node.id == f"t{node.number}v{history.mutation(event).version}":
            since = event
    return history.last_event(State(node.number, since), at)


def _fill_gradients(graph: Graph, history: History, run: PassInfo) -> None:
    """Which gradient went along which edge in a pass."""
    trace = history.trace
    last = trace.count - 1 if run.last is None else run.last
    edges: dict[str, list[Edge]] = {}
    for edge in graph.edges:
        if edge.kind == m.GRAD:
            edges.setdefault(edge.source, []).append(edge)
    told = trace.indices(Kind.PRODUCED, Kind.RECEIVED, Kind.ACCUMULATED)
    for index in told[(told >= run.first) & (told <= last)].tolist():
        event = trace.event(index)
        assert isinstance(event, (Produced, Received, Accumulated))
        name = f"n{event.node}"
        if name not in graph.nodes:
            continue
        if isinstance(event, Accumulated):
            graph.nodes[name].accumulated = True
        elif isinstance(event, Produced):
            flows = [
                gradient for target, gradient in zip(event.targets, event.gradients, strict=True) if target
            ]
            for edge, gradient in zip(edges.get(name, ()), flows, strict=False):
                edge.gradient, edge.value = gradient, trace.snapshot(gradient, index)
        else:
            graph.nodes[name].ran = True
    began = trace.event(run.first)
    if isinstance(began, PassBegan):
        for root, gradient in zip(began.roots, began.gradients, strict=False):
            if f"n{root}" in graph.nodes:
                graph.nodes[f"n{root}"].upstream = trace.snapshot(gradient, run.first)
