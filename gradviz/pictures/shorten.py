"""Shortens long edges, which make the layout slow and the picture hard to read.

A leaf that is used again far below, such as the weights of a recurrent network, is drawn there a second time, smaller.
The same is done for its AccumulateGrad."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gradviz.graph.model import DATA, GRAD, GRAD_FN, OP, SAVED, Edge, Graph, Node

FAR = 2  # the number of ops between two uses
_SMALL = 60  # smaller graphs are not changed


@dataclass(frozen=True, slots=True)
class Reference:
    """A second place where a node is drawn, near the op that uses it there."""

    id: str
    node: Node
    user: str


def shortened(graph: Graph) -> tuple[list[Edge], list[Reference]]:
    """The edges of the picture, and the references that replace the ends of some of them."""
    if len(graph.nodes) < _SMALL:
        return graph.edges, []
    places = _places(graph)
    homes: dict[str, int] = {}
    for edge in graph.edges:
        hub, user = _hub_and_user(edge, graph)
        if hub and user in places:
            homes[hub] = min(places[user], homes.get(hub, places[user]))
    references: dict[str, Reference] = {}
    drawn = []
    for edge in graph.edges:
        hub, user = _hub_and_user(edge, graph)
        if not hub or user not in places or places[user] - homes[hub] <= FAR:
            drawn.append(edge)
            continue
        name = f"{hub}at{places[user]}"
        references[name] = Reference(name, graph.nodes[hub], user)
        drawn.append(replace(edge, source=name) if edge.source == hub else replace(edge, target=name))
    return drawn, list(references.values())


def _places(graph: Graph) -> dict[str, int]:
    """The position of each op and each grad_fn in the order of execution."""
    rows = [node for node in graph.nodes.values() if node.kind == OP]
    if not rows:
        rows = sorted(
            (node for node in graph.nodes.values() if node.kind == GRAD_FN), key=lambda node: node.number
        )
    places = {node.id: place for place, node in enumerate(rows)}
    return places | {node.pair: places[node.id] for node in rows if node.pair}


def _hub_and_user(edge: Edge, graph: Graph) -> tuple[str, str]:
    """The leaf or AccumulateGrad at one end of an edge, and its user at the other end; empty texts for other
    edges."""
    if edge.kind in (DATA, SAVED) and graph.nodes[edge.source].is_leaf:
        return edge.source, edge.target
    if edge.kind == GRAD and graph.nodes[edge.target].name == "AccumulateGrad":
        return edge.target, edge.source
    return "", ""
