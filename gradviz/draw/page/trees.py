"""The groups of a page: each step of a loop by itself, or each place of the program as one box."""

from __future__ import annotations

from typing import Any

from gradviz.draw.boxes import of_inside
from gradviz.graph.fold import closed_by_default, closed_places, fold
from gradviz.graph.groups import Group, ancestors, groups
from gradviz.graph.model import GROUP, Graph
from gradviz.graph.rolling import places
from gradviz.words.escape import plain

Tree = dict[str, Group]


def tree_of_steps(graph: Graph) -> dict[str, Any]:
    """The groups of scopes, repetitions and chains, and which are closed at first."""
    tree = groups(graph)
    return {"groups": _groups(graph, tree), "closed": sorted(closed_by_default(graph, tree))}


def tree_of_places(graph: Graph) -> dict[str, Any]:
    """The groups of modules and places, and which are closed at first."""
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
    """What the box of each group says of its inside: its class, how often it ran, and shapes. All groups of a level are
    closed at once."""
    levels: dict[int, set[str]] = {}
    for group in tree:
        levels.setdefault(len(ancestors(tree, group)), set()).add(group)
    found: dict[str, list[str]] = {}
    for level in levels.values():
        for node in fold(graph, tree, level).nodes.values():
            if node.kind == GROUP and node.box is not None:
                found[node.id] = of_inside(node, node.box)
    return found
