"""The groups of a page: each step of a loop as a group, or each place of the program as one box."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields
from operator import attrgetter
from typing import Any

from gradviz.graph.equal_blocks import with_equal_blocks
from gradviz.graph.fold import boxes, closed_by_default, closed_places
from gradviz.graph.function_scopes import with_function_scopes
from gradviz.graph.groups import Group, ancestors, groups
from gradviz.graph.model import GRAD_FN, GROUP, OP, Graph, Node
from gradviz.graph.rolling import places
from gradviz.pictures.boxes import of_inside
from gradviz.words.escape import plain

Tree = dict[str, Group]

# The attributes that differ between passes of one structure: numbers, ids, values.
_OWN = (
    "id", "number", "visit", "since", "version", "called", "base", "pair", "maker",
    "value", "grad", "tangent", "upstream", "becomes", "held", "box", "apart",
)  # fmt: skip
_shared = attrgetter(*(field.name for field in fields(Node) if field.name not in _OWN))


class Trees:
    """The groups of the graphs of a page. The graphs of a training loop have the same structure, and so the same
    groups with other nodes: they are computed once."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[list[str], dict[str, Any]]] = {}

    def of(self, graph: Graph) -> dict[str, Any]:
        """The groups of steps (`each`), and the groups of places (`rolled`). A graph of closed blocks has none."""
        if any(node.kind == GROUP for node in graph.nodes.values()):
            return {name: {"groups": [], "closed": []} for name in ("each", "rolled")}
        structure = _structure(graph)
        if structure not in self._known:
            self._known[structure] = [*graph.nodes], {"each": _of_steps(graph), "rolled": _of_places(graph)}
        nodes, trees = self._known[structure]
        now = dict(zip(nodes, graph.nodes, strict=True))
        return {name: _renamed(tree, now) for name, tree in trees.items()}


def _structure(graph: Graph) -> Hashable:
    """All of a graph that its groups depend on, equal for graphs that differ only in ids and values."""
    place = {name: number for number, name in enumerate(graph.nodes)}
    order = _ranks([(_counter(node), node.number) for node in graph.nodes.values()])
    visits = _ranks([node.visit for node in graph.nodes.values()])
    nodes = [
        (_shared(node), place.get(node.pair, -1), place.get(node.maker, -1), rank, visit)
        for node, rank, visit in zip(graph.nodes.values(), order, visits, strict=True)
    ]
    edges = [
        (place[edge.source], place[edge.target], edge.kind, edge.label, edge.cut, edge.count, edge.again)
        for edge in graph.edges
    ]
    return graph.show, tuple(graph.scopes.items()), tuple(nodes), tuple(edges)


def _counter(node: Node) -> str:
    """The kind of things that a node's number counts."""
    return node.kind if node.kind in (OP, GRAD_FN) else "tensor"


def _ranks(values: list[Any]) -> list[int]:
    """The rank of each value among the distinct values."""
    rank = {value: number for number, value in enumerate(sorted(set(values)))}
    return [rank[value] for value in values]


def _renamed(tree: dict[str, Any], now: dict[str, str]) -> dict[str, Any]:
    """Groups with their members replaced."""
    return {
        "groups": [
            {**group, "members": [now[name] for name in group["members"]]} for group in tree["groups"]
        ],
        "closed": tree["closed"],
    }


def _of_steps(graph: Graph) -> dict[str, Any]:
    """The groups of scopes, repetitions and chains, and the groups that are closed at first."""
    tree = groups(graph)
    return {"groups": _groups(graph, tree), "closed": sorted(closed_by_default(graph, tree))}


def _of_places(graph: Graph) -> dict[str, Any]:
    """The groups of modules and places, and the groups that are closed at first."""
    graph = with_equal_blocks(with_function_scopes(graph))
    tree = places(graph)
    return {"groups": _groups(graph, tree), "closed": sorted(closed_places(graph, tree))}


def _groups(graph: Graph, tree: Tree) -> list[dict[str, Any]]:
    texts = _texts(graph, tree)
    return [
        {
            "id": group.id,
            "kind": group.kind,
            "label": plain(group.label, 60),
            "parent": group.parent,
            "members": group.members,
            "count": group.count,
            "scope": plain(group.scope, 200),
            "lines": texts.get(group.id, []),
        }
        for group in tree.values()
    ]


def _texts(graph: Graph, tree: Tree) -> dict[str, list[str]]:
    """The text in the box of each group about its inside: its class, the number of its runs, and shapes. All groups
    of a level are closed together."""
    levels: dict[int, set[str]] = {}
    for group in tree:
        levels.setdefault(len(ancestors(tree, group)), set()).add(group)
    lines: dict[str, list[str]] = {}
    for level in levels.values():
        for node in boxes(graph, tree, level):
            if node.box is not None:
                lines[node.id] = of_inside(node, node.box)
    return lines
