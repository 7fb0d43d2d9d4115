"""The parts of a graph that can be drawn as one node: scopes, repeated blocks, chains of ops.

A group is a contiguous range of the order in which ops ran. This order is topological, so folding any set of groups
creates no cycle. Finding the groups takes O(n log n) time in the size of the graph."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from gradviz.graph.model import DATA, GRAD_FN, LEAF, OP, TENSOR, Graph, Node, lines_text, no_collection

SCOPE, REPEAT, RUN, PLACE, DATA_BOX = "scope", "repeat", "run", "place", "data"

DEEPEST = 8  # the most nested scopes; deeper scopes are merged into the eighth
_SHORTEST = 3  # the fewest ops in a chain
_CROWD = 150  # the most members of one group; larger groups are split into parts of size _PART
_PART = 50
_LOOK_AHEAD = 12  # how many later occurrences of an op are tried as the start of the next repetition


@dataclass(slots=True)
class Group:
    """Nodes that can be drawn as one.

    `parent` is the id of the enclosing group, or empty. `members` are the ids of nodes directly in it, and `children`
    the ids of groups directly in it. A `repeat` group contains its first block, and a `repeat` group for the other
    blocks; a `repeat` group with `count` 1 is a single block. A `place` is everything that ran at one place of the
    program, and `count` how often. `scope` is the path of its scope."""

    id: str
    kind: str
    label: str
    parent: str = ""
    members: list[str] = field(default_factory=list)
    children: list[str] = field(default_factory=list)
    count: int = 1
    scope: str = ""
    is_inside: bool = False  # whether a place is inside a library's module


@dataclass(slots=True, eq=False)
class _Item:
    """An op (`node`), or a future group with its contents. Items with equal structure have equal `token`s."""

    label: str
    kind: str = ""
    node: str = ""
    token: int = 0
    ops: int = 1
    count: int = 1
    scope: str = ""
    line: int = 0
    kids: list["_Item"] = field(default_factory=list)


@no_collection()
def groups(graph: Graph) -> dict[str, Group]:
    """All groups of a graph by id, each after its parent. The same graph always gives the same groups and ids."""
    return _Tree(graph).groups


def ancestors(tree: dict[str, Group], group: str) -> list[str]:
    """The ids of a group and its ancestors, innermost first."""
    ids = []
    while group:
        ids.append(group)
        group = tree[group].parent
    return ids


class _Tree:
    """Finds the groups of one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.groups: dict[str, Group] = {}
        self.home: dict[str, str] = {}  # node -> the group it is directly in
        self.tokens: dict[tuple[Any, ...], int] = {}
        self.outputs: dict[str, list[str]] = {}  # op -> tensors
        self.reader: dict[str, str] = {}  # tensor -> the only op that reads it, or empty
        self.inputs: dict[str, int] = {}
        self._take_in_edges()
        self._number(self._arranged())
        self._place_the_rest()
        for node in graph.nodes:
            if home := self.home.get(node, ""):
                self.groups[home].members.append(node)

    def _take_in_edges(self) -> None:
        nodes, outputs, reader, inputs = self.graph.nodes, self.outputs, self.reader, self.inputs
        ops = {name for name, node in nodes.items() if node.kind == OP}
        for edge in self.graph.edges:
            if edge.kind != DATA:
                continue
            source, target = edge.source, edge.target
            if source not in ops:
                reader[source] = "" if source in reader else target
                inputs[target] = inputs.get(target, 0) + 1
            else:
                outputs.setdefault(source, []).append(target)

    # --- from the order of ops to a tree

    def _arranged(self) -> list[_Item]:
        """The ops in nested scopes, with repetitions and chains made into groups."""
        top = _Item("")
        scopes, stack = [top], [top]
        names: list[str] = []
        for node in rows_of(self.graph):
            parts = node.scope.split("/")[:DEEPEST] if node.scope else []
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(names, parts, strict=False)))
            del stack[same + 1 :]
            names = parts
            for depth in range(same, len(parts)):
                inner = _Item(parts[depth], SCOPE, scope="/".join(parts[: depth + 1]))
                stack[-1].kids.append(inner)
                stack.append(inner)
                scopes.append(inner)
            stack[-1].kids.append(self._op(node))
        for scope in reversed(scopes):  # inner ones first
            scope.ops = sum(kid.ops for kid in scope.kids)
            scope.token = self._token(*(kid.token for kid in scope.kids))
            scope.kids = self._parts(self._runs(self._repeats(scope.kids)))
            for kid in scope.kids:
                _inherit_scope(kid, scope.scope)
        return top.kids

    def _op(self, node: Node) -> _Item:
        made = [self.graph.nodes[name].shape for name in self.outputs.get(node.id, ())]
        token = self._token(node.op or node.name, node.grad_fn, *made, self.inputs.get(node.id))
        return _Item(node.name or "?", node=node.id, token=token, line=node.line or 0)

    def _token(self, *structure: object) -> int:
        return self.tokens.setdefault(structure, len(self.tokens))

    def _repeats(self, items: list[_Item]) -> list[_Item]:
        """The items, with each block that repeats immediately made into one item; the shortest blocks first."""
        while (shortest := _shortest_repeat(items)) is not None:
            period, places = shortest
            result, done = [], 0
            for start, count in places:
                result += items[done:start]
                done = start + period * count
                result.append(self._repeat(items[start:done], period, count))
            items = result + items[done:]
        return items

    def _repeat(self, items: list[_Item], period: int, count: int) -> _Item:
        block, blocks = items[:period], items
        if period > 1:
            blocks = [
                _Item(f"{number + 1} of {count}", REPEAT, kids=items[number * period : (number + 1) * period])
                for number in range(count)
            ]
            for item in blocks:
                item.ops = sum(kid.ops for kid in item.kids)
        first, last = items[0].label, items[-1].label
        name = f"{first}–{last}" if period == 1 and first != last else _named(block)
        token = self._token(REPEAT, count, *(item.token for item in block))
        ops = sum(item.ops for item in items)
        if count > 2 and blocks[0].kind:  # so that one block can be drawn in full, and the rest as one node
            again = _Item(_again(blocks[1:]), REPEAT, ops=ops, count=count - 1, kids=blocks[1:])
            blocks = [blocks[0], again]
        return _Item(f"{name} ×{count}", REPEAT, token=token, ops=ops, count=count, kids=blocks)

    def _runs(self, items: list[_Item]) -> list[_Item]:
        """The items, with each chain made into one item. In a chain, only the next op uses the result of an op."""
        result: list[_Item] = []
        run: list[_Item] = []
        for item in items:
            made = self.outputs.get(run[-1].node, ()) if run else ()
            if run and not (item.node and len(made) == 1 and self.reader.get(made[0]) == item.node):
                result += self._run(run)
                run = []
            (run if item.node else result).append(item)
        return result + self._run(run)

    def _run(self, items: list[_Item]) -> list[_Item]:
        if len(items) < _SHORTEST:
            return items
        return [_Item(_named(items), RUN, ops=len(items), kids=items)]

    def _parts(self, items: list[_Item]) -> list[_Item]:
        """The items, split into parts if there are very many, so that every graph can be folded."""
        while len(items) > _CROWD:
            parts = [items[start : start + _PART] for start in range(0, len(items), _PART)]
            items = [
                _Item(
                    f"part {number} of {len(parts)}{_lines(part)}",
                    RUN,
                    ops=sum(item.ops for item in part),
                    kids=part,
                    line=part[0].line,
                )
                for number, part in enumerate(parts, 1)
            ]
        return items

    # --- from the tree to groups

    def _number(self, items: list[_Item]) -> None:
        stack = [(item, "") for item in reversed(items)]
        while stack:
            item, parent = stack.pop()
            if item.node:
                self.home[item.node] = parent
                continue
            group = Group(f"g{len(self.groups) + 1}", item.kind, item.label, parent, [], [], item.count, item.scope)
            self.groups[group.id] = group
            if parent:
                self.groups[parent].children.append(group.id)
            stack += [(kid, group.id) for kid in reversed(item.kids)]

    def _place_the_rest(self) -> None:
        """Assign groups to the other nodes: results and grad_fns go with their op, other nodes into the
        smallest group that contains all their users."""
        nodes = self.graph.nodes
        self.depth: dict[str, int] = {"": 0}
        for group in self.groups.values():
            self.depth[group.id] = self.depth[group.parent] + 1
        for op, made in self.outputs.items():
            for name in made:
                place = self.home[op]
                self.home[name] = self._out_of_scopes(name, place) if nodes[op].scope else place
        for row, place in list(self.home.items()):
            node = nodes[row]
            if node.kind == OP and node.pair in nodes:
                self.home[node.pair] = place
        for node in nodes.values():
            if node.kind == GRAD_FN and node.maker in self.home:
                self.home[node.id] = self.home[node.maker]
        smallest: dict[str, str] = {}
        home = self.home
        half = [edge for edge in self.graph.edges if (edge.source in home) is not (edge.target in home)]
        for edge in half:
            inside = edge.source in home
            name, place = (edge.target, home[edge.source]) if inside else (edge.source, home[edge.target])
            before = smallest.get(name)
            smallest[name] = place if before is None or before == place else self._around(before, place)
        for name, place in smallest.items():
            self.home[name] = self._out_of_scopes(name, place)
        for node in nodes.values():  # an AccumulateGrad goes with its leaf
            if node.pair and node.kind in (LEAF, TENSOR) and node.pair in nodes:
                self.home[node.pair] = self.home.get(node.id, "")

    def _out_of_scopes(self, name: str, place: str) -> str:
        """The group of a node whose users are in group `place`. Inputs of a scope, and roots, stay outside of it."""
        node = self.graph.nodes[name]
        comes_in = node.kind in (LEAF, TENSOR) and name not in self.home and node.name and not node.scope
        if not (node.root or comes_in):
            return place
        outermost = place
        for group in ancestors(self.groups, place):
            if self.groups[group].kind == SCOPE:
                outermost = self.groups[group].parent
        return outermost

    def _around(self, one: str, other: str) -> str:
        """The smallest group that contains both groups."""
        while one != other:
            if self.depth[one] >= self.depth[other]:
                one = self.groups[one].parent
            else:
                other = self.groups[other].parent
        return one


def rows_of(graph: Graph) -> list[Node]:
    """The ops in the order in which they ran; the grad_fns that an op made, if it has no ops."""
    if rows := [node for node in graph.nodes.values() if node.kind == OP]:
        return rows
    grad_fns = [node for node in graph.nodes.values() if node.kind == GRAD_FN and node.op is not None]
    return sorted(grad_fns, key=lambda node: node.number)


def _shortest_repeat(items: list[_Item]) -> tuple[int, list[tuple[int, int]]] | None:
    """The shortest block that repeats immediately: its length, and a (start, count) for each place."""
    if len(items) < 2:
        return None
    tokens = np.array([item.token for item in items])
    weights = np.concatenate([[0], np.cumsum([item.ops for item in items])])
    for period in _periods(tokens):
        places, free = [], 0
        for start, length in _stretches(tokens[period:] == tokens[:-period]):
            start, end = max(start, free), start + length
            count = 1 + (end - start) // period if end > start else 1
            weight = int(weights[start + period] - weights[start]) if count > 1 else 0
            if count > 2 or (count == 2 and weight > 3):
                places.append((start, count))
                free = start + period * count
        if places:
            return period, places
    return None


def _periods(tokens: np.ndarray) -> list[int]:
    """Possible lengths of a repeating block, shortest first: distances at which tokens recur often enough."""
    order = np.argsort(tokens, kind="stable")
    counts = np.zeros(len(tokens) + 1, np.int64)
    for ahead in range(1, min(_LOOK_AHEAD, len(tokens) - 1) + 1):
        same = tokens[order[ahead:]] == tokens[order[:-ahead]]
        gaps = (order[ahead:] - order[:-ahead])[same]
        counts += np.bincount(gaps, minlength=len(counts))
    periods = np.flatnonzero(counts >= np.maximum(np.arange(len(counts)), 1))
    return periods[periods <= len(tokens) // 2].tolist()


def _stretches(holds: np.ndarray) -> Iterable[tuple[int, int]]:
    """The (start, length) of each range in which all values of `holds` are true."""
    changes = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]])))
    return zip(changes[::2].tolist(), (changes[1::2] - changes[::2]).tolist(), strict=True)


def _named(items: list[_Item]) -> str:
    """The first names in a list of items."""
    names = list(dict.fromkeys(item.label for item in items))
    return " · ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _again(blocks: list[_Item]) -> str:
    """The label of the later blocks of a repetition: `2–11 ×10` if they have their own names."""
    first, last = blocks[0], blocks[-1]
    have_names = first.kind == SCOPE and first.label != last.label
    return f"{first.label}–{last.label} ×{len(blocks)}" if have_names else f"again ×{len(blocks)}"


def _lines(items: list[_Item]) -> str:
    numbers = [item.line for item in items if item.line]
    return f", {lines_text(min(numbers), max(numbers))}" if numbers else ""


def _inherit_scope(item: _Item, scope: str) -> None:
    stack = [item]
    while stack:
        item = stack.pop()
        if item.kind != SCOPE and not item.node:
            item.scope = scope
            stack += item.kids
