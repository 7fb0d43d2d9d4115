"""Folds a graph: replaces groups of nodes by single nodes, and chooses which groups."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Any

from gradviz.errors import GradvizError
from gradviz.graph.groups import REPEAT, RUN, SCOPE, Group, ancestors, groups
from gradviz.graph.many import no_collection
from gradviz.graph.model import GROUP, OP, Edge, Graph, Node, ends_with
from gradviz.tracefile import Snapshot

MOST = 100  # a graph up to this size is not folded
AIM = 80  # the size to which a larger graph is folded
_OPENED_FIRST = {SCOPE: 0, RUN: 2}  # a repetition is between these two


class FoldError(GradvizError):
    """There is no such scope. The message is one line and suggests the nearest name."""


@no_collection()
def fold(graph: Graph, tree: dict[str, Group], closed: set[str]) -> Graph:
    """A copy of the graph in which each of the `closed` groups is one node of kind "group".

    If closed groups are nested, the outermost is shown. Edges of one kind between the same two nodes become
    one, and its `count` is their number; edges inside a group are removed. Takes linear time."""
    drawn_as = _drawn_as(tree, closed)
    if not drawn_as:
        return graph
    nodes: dict[str, Node] = {}
    places: dict[str, int] = {}  # a group takes the place of its first op
    for place, node in enumerate(graph.nodes.values()):
        group = drawn_as.get(node.id)
        if group is None:
            nodes[node.id] = node
            places[node.id] = place
        else:
            if group.id not in nodes:
                nodes[group.id] = _group_node(group, tree)
            if group.id not in places or (node.kind == OP and OP not in nodes[group.id].held):
                places[group.id] = place
            _add_to_group(nodes[group.id], node)
    nodes = {name: nodes[name] for name in sorted(nodes, key=places.__getitem__)}
    result = replace(graph, nodes=nodes, edges=_merged(graph.edges, drawn_as), notes=list(graph.notes))
    hidden = sum(node.held.get(OP, 0) for node in nodes.values() if node.kind == GROUP)
    folded = sum(node.kind == GROUP for node in nodes.values())
    what = f"{hidden:,} ops" if hidden else f"{len(drawn_as):,} nodes"
    result.notes.append(f"folded: {what} into {folded:,} group{'s' * (folded > 1)}")
    return result


def _drawn_as(tree: dict[str, Group], closed: set[str]) -> dict[str, Group]:
    """For each hidden node, the group that replaces it."""
    outermost: dict[str, Group] = {}
    for group in tree.values():  # groups come after their parents
        if group.parent in outermost:
            outermost[group.id] = outermost[group.parent]
        elif group.id in closed:
            outermost[group.id] = group
    return {name: outermost[group] for group in outermost for name in tree[group].members}


def _group_node(group: Group, tree: dict[str, Group]) -> Node:
    around = tree[group.parent].scope if group.parent else ""
    number = int(group.id.removeprefix("g"))
    return Node(
        group.id,
        GROUP,
        number,
        name=group.label,
        op=group.kind,
        scope=around,
        count=group.count,
        held=Counter(),
    )


def _add_to_group(group: Node, node: Node) -> None:
    """Add the marks of a node to its group: ran, error, finding, root, requires grad, and the first source line."""
    held = group.held
    assert isinstance(held, Counter)
    held[node.kind] += 1
    group.ran = group.ran or node.ran
    group.root = group.root or node.root
    group.error = group.error or node.error
    group.finding = group.finding or node.finding
    group.requires_grad = bool(group.requires_grad or node.requires_grad)
    group.has_grad = group.has_grad or node.has_grad
    if group.line is None and node.line is not None:
        group.file, group.line, group.text = node.file, node.line, node.text


def _merged(edges: Iterable[Edge], drawn_as: dict[str, Group]) -> list[Edge]:
    found: dict[tuple[Any, ...], Edge] = {}
    for edge in edges:
        source, target = drawn_as.get(edge.source), drawn_as.get(edge.target)
        if source is None and target is None:
            found[id(edge),] = edge
            continue
        if source is target:
            continue
        ends = source.id if source else edge.source, target.id if target else edge.target
        key = (*ends, edge.kind, edge.cut, edge.label)
        if key in found:
            one = found[key]
            one.count += 1
            one.gradient = one.gradient or edge.gradient
            one.value = _worse(one, edge)
        else:
            found[key] = replace(edge, source=ends[0], target=ends[1])
    return list(found.values())


def _worse(one: Edge, other: Edge) -> Snapshot | None:
    """The value of two merged edges: the gradient with NaN or inf if one has it."""
    stats = other.value.stats if other.value is not None else None
    return other.value if stats is not None and (stats.nan or stats.inf) else one.value


def closed_by_default(
    graph: Graph,
    tree: dict[str, Group],
    most: int = AIM,
    depth: int | None = None,
    unfolded: Iterable[str] = (),
) -> set[str]:
    """The groups to close so that about `most` nodes are shown. Inner groups are closed rather than outer
    ones.

    With `depth`, exactly that many levels of groups are open (0: none). The groups `unfolded` and their
    parents are always open."""
    opened = {name for group in unfolded for name in ancestors(tree, group)}
    if depth is not None:
        return {group for group in tree if len(ancestors(tree, group)) > depth} - opened
    if len(graph.nodes) <= most:
        return set()
    inside: Counter[str] = Counter(
        {group.id: len(group.members) + len(group.children) for group in tree.values()}
    )
    shown = len(graph.nodes) - sum(len(group.members) for group in tree.values())
    shown += sum(not group.parent for group in tree.values())
    queue = [_turn(group, 1, inside) for group in tree.values() if not group.parent]
    heapify(queue)
    opened_here = set(opened)
    while queue:
        level, _, _, number = heappop(queue)
        group = tree[f"g{number}"]
        growth = inside[group.id] - 1
        if group.id not in opened and shown + growth > most:
            continue
        shown += growth
        opened_here.add(group.id)
        for child in _worth_opening(group):
            heappush(queue, _turn(tree[child], level + 1, inside))
    return set(tree) - opened_here


def _worth_opening(group: Group) -> list[str]:
    """The children of a group, without those that repeat the structure of the first."""
    return group.children[:1] if group.kind == REPEAT and group.count > 1 else group.children


def _turn(group: Group, level: int, inside: Counter[str]) -> tuple[int, int, int, int]:
    """Sort key for opening groups: outer before inner, scopes first, small before large."""
    return level, _OPENED_FIRST.get(group.kind, 1), inside[group.id], int(group.id.removeprefix("g"))


def folded(graph: Graph, depth: int | None = None, unfold: Iterable[str] = (), most: int = MOST) -> Graph:
    """The graph as a picture shows it. `depth` and `unfold` are the user's choices; `most` is the largest
    number of nodes that is not folded.

    Raises FoldError if a name in `unfold` does not exist."""
    names = list(unfold)
    if len(graph.nodes) <= most and depth is None and not names:
        return graph
    tree = groups(graph)
    opened = [group for name in names for group in find_scopes(tree, name)]
    return fold(graph, tree, closed_by_default(graph, tree, min(AIM, most), depth, opened))


def find_scopes(tree: dict[str, Group], name: str) -> list[str]:
    """The groups that `--unfold NAME` selects: by id, by a scope's path or the end of it, or by label.

    Raises FoldError with the nearest name if there is none."""
    if name in tree:
        return [name]
    found = [
        group.id
        for group in tree.values()
        if group.label == name or (group.kind == SCOPE and ends_with(group.scope, name))
    ]
    if found:
        return found
    known = {group.scope for group in tree.values() if group.scope} | {group.label for group in tree.values()}
    near = difflib.get_close_matches(name, sorted(known), 1, 0.4)
    if near:
        raise FoldError(f"there is no scope {name!r}: did you mean {near[0]!r}?")
    scopes = sorted({group.scope for group in tree.values() if group.scope})[:5]
    raise FoldError(
        f"there is no scope {name!r}"
        + (f": the scopes are {', '.join(scopes)}" if scopes else " in this graph")
    )
