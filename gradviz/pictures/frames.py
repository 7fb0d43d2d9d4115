"""The frames of a picture: one for each call of a module or function.

A module that is called repeatedly, such as the cell of a recurrent network, gets one frame for each call. One frame
for all calls would pull distant parts of the picture together."""

from __future__ import annotations

from collections import Counter

from gradviz.graph.model import DATA, GRAD_FN, GROUP, OP, Graph, Node

_DEEPEST = 8  # nested scopes


def frames(graph: Graph) -> dict[str, str]:
    """The frame of each node: the path of its scope, with a number for second and later calls; empty without a scope.
    In a rolled graph, all calls are one frame."""
    if graph.rolled:
        return {node.id: _path(node.scope) for node in graph.nodes.values()}
    found, first = _of_rows(_rows(graph))
    for edge in graph.edges:  # a result is in the frame of its op, a parameter in the frame of its first use
        if edge.kind == DATA:
            for name, user in ((edge.source, edge.target), (edge.target, edge.source)):
                if user in found and graph.nodes[name].scope == graph.nodes[user].scope:
                    found.setdefault(name, found[user])
    for node in graph.nodes.values():
        found.setdefault(node.id, first.get(node.scope, _path(node.scope)))
    return found | {node.pair: found[node.id] for node in graph.nodes.values() if node.pair in graph.nodes}


def _rows(graph: Graph) -> list[Node]:
    """The ops and groups in execution order; the grad_fns if there are no ops."""
    rows = [node for node in graph.nodes.values() if node.kind in (OP, GROUP)]
    if any(node.kind == OP for node in rows):
        return rows
    return sorted(
        (node for node in graph.nodes.values() if node.kind in (GROUP, GRAD_FN)), key=lambda node: node.number
    )


def _of_rows(rows: list[Node]) -> tuple[dict[str, str], dict[str, str]]:
    """The frame of each op, and the first frame of each scope."""
    frame_of: dict[str, str] = {}
    first: dict[str, str] = {}
    calls: Counter[str] = Counter()
    inside: list[str] = []  # the path of the previous node, and the frame of each of its parts
    around: list[str] = []
    for node in rows:
        parts = _path(node.scope).split("/") if node.scope else []
        same = 0
        while same < min(len(inside), len(parts)) and inside[same] == parts[same]:
            same += 1
        del around[same:]
        for depth in range(same, len(parts)):
            path = f"{around[-1]}/{parts[depth]}" if around else parts[depth]
            calls[path] += 1
            around.append(path if calls[path] == 1 else f"{path} ({calls[path]})")
            first.setdefault("/".join(parts[: depth + 1]), around[-1])
        inside = parts
        frame_of[node.id] = around[-1] if around else ""
    return frame_of, first


def _path(scope: str) -> str:
    return "/".join(scope.split("/")[:_DEEPEST])
