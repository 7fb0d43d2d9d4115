"""Folds a graph: replaces groups of nodes by single nodes, and chooses which groups."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from heapq import heapify, heappop, heappush
from typing import Any

from gradviz.errors import GradvizError, nearest
from gradviz.graph import model
from gradviz.graph.function_scopes import with_equal_blocks, with_function_scopes
from gradviz.graph.groups import DATA_BOX, PLACE, REPEAT, RUN, SCOPE, Group, ancestors, groups
from gradviz.graph.roll import places
from gradviz.sets import grouped
from gradviz.tracefile import Snapshot

MOST = 100  # a graph up to this size is not folded
AIM = 80  # the size to which a larger graph is folded
FEW = 40  # a graph of modules up to this size is not folded; a larger one is folded to this size
FEW_ALIKE = 50  # the size up to which the modules of one kind are opened, if there is room for one of them
MOST_ROWS = 26  # boxes one below another: about 3,000 pixels
MOST_ROOTS = 6  # roots that one op made, side by side
MOST_COLUMNS = 18  # boxes side by side: about 3,000 pixels
_OPENED_FIRST = {SCOPE: 0, RUN: 2}  # a repetition is between these two


class FoldError(GradvizError):
    """There is no such scope. The message is one line and suggests the nearest name."""


@model.no_collection()
def fold(graph: model.Graph, tree: dict[str, Group], closed: set[str]) -> model.Graph:
    """A copy of the graph in which each of the `closed` groups is one node of kind "group".

    If closed groups are nested, the outermost is shown. Edges of one kind between the same two nodes become one edge,
    whose `count` is their number. Edges inside a group are removed, except from one turn of a loop to another. Takes
    linear time."""
    drawn_as = _drawn_as(tree, closed)
    if not drawn_as:
        return graph
    hidden_scopes = {group.scope for group in drawn_as.values() if group.kind == SCOPE}
    nodes: dict[str, model.Node] = {}
    places: dict[str, int] = {}  # a group takes the place of its first op
    for place, node in enumerate(graph.nodes.values()):
        group = drawn_as.get(node.id)
        if group is None:
            outside = _scope_outside(node.scope, hidden_scopes)
            nodes[node.id] = node if outside == node.scope else replace(node, scope=outside)
            places[node.id] = place
        else:
            if group.id not in nodes:
                nodes[group.id] = _group_node(group, tree, graph)
            if group.id not in places or (node.kind == model.OP and model.OP not in nodes[group.id].held):
                places[group.id] = place
            _add_to_group(nodes[group.id], node)
    nodes = {name: nodes[name] for name in sorted(nodes, key=places.__getitem__)}
    merging = Merging(graph, nodes, tree, drawn_as)
    result = replace(graph, nodes=nodes, edges=merging.edges(), notes=list(graph.notes), rolled=merging.is_rolled)
    result.notes += _told(nodes.values(), len(drawn_as))
    if result.rolled:
        result.scopes = _scopes_outside_of_data(graph, tree)
    return result


def boxes(graph: model.Graph, tree: dict[str, Group], closed: set[str]) -> list[model.Node]:
    """The nodes of kind "group" that `fold` makes for the `closed` groups, without the rest of the graph: it is
    faster."""
    drawn_as = _drawn_as(tree, closed)
    nodes = dict(graph.nodes)
    by_id: dict[str, model.Node] = {}
    for group in drawn_as.values():
        if group.id not in by_id:
            by_id[group.id] = _group_node(group, tree, graph)
    for node in graph.nodes.values():
        if node.id in drawn_as:
            _add_to_group(by_id[drawn_as[node.id].id], nodes.pop(node.id))
    Merging(graph, {**nodes, **by_id}, tree, drawn_as).note_shapes()
    return [*by_id.values()]


def _scopes_outside_of_data(graph: model.Graph, tree: dict[str, Group]) -> dict[str, model.Scope]:
    """The scopes with their calls, without the calls that only prepared data."""
    calls = Counter[str]()
    for group in tree.values():
        if group.kind == SCOPE:
            calls[group.scope] += group.count
    return {
        path: scope._replace(calls=min(scope.calls, calls[path] or scope.calls)) for path, scope in graph.scopes.items()
    }


def _scope_outside(path: str, hidden: set[str]) -> str:
    """The innermost scope around a node that is not hidden in a group."""
    parts = path.split("/")
    for count in range(1, len(parts) + 1):
        if "/".join(parts[:count]) in hidden:
            return "/".join(parts[: count - 1])
    return path


def _counted(count: int, thing: str) -> str:
    return f"{count:,} {thing}{'s' * (count != 1)}"


def _told(nodes: Iterable[model.Node], hidden: int) -> list[str]:
    """The notes above a picture about what was folded."""
    boxes = [node for node in nodes if node.kind == model.GROUP]
    inside = [node for node in boxes if node.op != PLACE]
    rolled = sum(node.count > 1 for node in boxes if node.op in (PLACE, SCOPE))
    ops = sum(node.held.get(model.OP, 0) for node in inside)
    what = _counted(ops, "op") if ops else _counted(hidden, "node")
    notes = []
    if inside:
        boxed = "module" if all(node.box is not None and node.box.type for node in inside) else "group"
        notes.append(f"folded: {what} into {_counted(len(inside), boxed)}")
    if rolled:
        notes.append("a box ×n ran n times")
    return notes


def _drawn_as(tree: dict[str, Group], closed: set[str]) -> dict[str, Group]:
    """The group that replaces each hidden node."""
    outermost: dict[str, Group] = {}
    for group in tree.values():  # groups come after their parents
        if group.parent in outermost:
            outermost[group.id] = outermost[group.parent]
        elif group.id in closed:
            outermost[group.id] = group
    return {name: outermost[group] for group in outermost for name in tree[group].members}


def _group_node(group: Group, tree: dict[str, Group], graph: model.Graph) -> model.Node:
    around = tree[group.parent].scope if group.parent else ""
    node = model.Node(group.id, model.GROUP, int(group.id.removeprefix("g")), name=group.label, op=group.kind)
    node.scope, node.count, node.held = around, group.count, Counter()
    if group.kind in (SCOPE, PLACE, DATA_BOX):
        known = graph.scopes.get(group.scope) if group.kind == SCOPE else None
        node.box = model.Box(known.type if known is not None else "")
    return node


def _add_to_group(group: model.Node, node: model.Node) -> None:
    """Add the marks of a node to its group: ran, error, finding, root, requires grad, and the first source line."""
    held = group.held
    assert isinstance(held, Counter)
    held[node.kind] += 1
    group.ran = group.ran or node.ran
    if node.kind == model.OP:
        group.astray = node.astray and (group.astray or held[model.OP] == 1)
    group.root = group.root or node.root
    group.error = group.error or node.error
    group.exchanges = tuple(dict.fromkeys((*group.exchanges, *node.exchanges)))
    is_lacking = [one for one in node.apart if one.what == "node"]
    group.apart = tuple(is_lacking) if held.total() == 1 or is_lacking == [*group.apart] else ()
    group.held_apart += bool(node.apart)
    group.finding = group.finding or node.finding
    group.requires_grad = bool(group.requires_grad or node.requires_grad)
    group.has_grad = group.has_grad or node.has_grad
    group.collectives = group.collectives or node.collectives
    if group.line is None and node.line is not None:
        group.file, group.line, group.text = node.file, node.line, node.text
    is_leaf = node.kind == model.LEAF or (node.kind == model.TENSOR and node.is_leaf and group.op == SCOPE)
    if group.box is not None and group.op != DATA_BOX and model.learns(node) and not node.buffer and is_leaf:
        group.box.parameters[node.number] = node  # the last version, which has the gradient
    if group.op == PLACE and node.kind == model.OP:
        group.args = node.args if held[model.OP] == 1 or group.args == node.args else ""
        group.grad_fn = group.grad_fn or node.grad_fn


def closed_places(
    graph: model.Graph, tree: dict[str, Group], depth: int | None = None, unfolded: Iterable[str] = ()
) -> set[str]:
    """The groups of a rolled graph to close: each place, and so many modules that about FEW boxes are shown. Modules of
    one kind at one level are opened together or not at all: a reader would look for the reason why two of three blocks
    are open. Modules whose inside is a library's code alone stay closed.

    With `depth`, exactly that many levels of modules are open (0: none). The groups `unfolded` and their parents are
    always open."""
    scopes = [group for group in tree.values() if group.kind == SCOPE]
    opened = {name for group in unfolded for name in ancestors(tree, group) if tree[name].kind != PLACE}
    if depth is not None:
        opened.update(group.id for group in scopes if len(ancestors(tree, group.id)) <= depth)
        return set(tree) - opened
    shown = _outermost(graph, tree)
    for alike in _of_one_kind(graph, tree, scopes):
        there = [group for group in alike if not group.parent or group.parent in opened]
        asked_for = [group for group in there if group.id in opened]
        shown += _growth(asked_for)
        others = [group for group in there if group.id not in opened and _is_written_out(graph, tree, group)]
        most = FEW_ALIKE if others and shown + _growth(others[:1]) <= FEW else FEW
        if shown + _growth(others) <= most:
            opened.update(group.id for group in others)
            shown += _growth(others)
    asked = {name for group in unfolded for name in ancestors(tree, group)}
    for group in reversed(scopes):  # inner ones first
        if group.id in opened - asked and _is_one_box(group) and _is_closed_scope(tree, group, opened):
            opened.remove(group.id)
    return set(tree) - opened


def _of_one_kind(graph: model.Graph, tree: dict[str, Group], scopes: Iterable[Group]) -> list[list[Group]]:
    """The modules of one class at one level, the outer levels first. A function of the program is of the kind of its
    name."""
    alike: dict[tuple[int, str], list[Group]] = {}
    for group in scopes:
        known = graph.scopes.get(group.scope)
        kind = known.type if known is not None and known.type else group.label.partition(" ")[0]
        alike.setdefault((len(ancestors(tree, group.id)), kind), []).append(group)
    return [alike[level, kind] for level, kind in sorted(alike, key=lambda key: key[0])]


def _growth(groups: Iterable[Group]) -> int:
    """The number of boxes by which a picture grows if groups are opened."""
    return sum(len(group.children) + len(group.members) - 1 for group in groups)


def _outermost(graph: model.Graph, tree: dict[str, Group]) -> int:
    """The number of boxes that are shown if all groups are closed."""
    grouped = sum(len(group.members) for group in tree.values())
    return len(graph.nodes) - grouped + sum(not group.parent for group in tree.values())


def _is_closed_scope(tree: dict[str, Group], group: Group, opened: set[str]) -> bool:
    """Whether the only thing inside a module is a module that stays closed: a frame around it would tell nothing."""
    inner = tree[group.children[0]]
    return inner.kind == SCOPE and inner.id not in opened


def _is_written_out(graph: model.Graph, tree: dict[str, Group], group: Group) -> bool:
    """Whether a module has modules, or runs code of the program's own. A function that does one thing is a box."""
    inner = [tree[name] for name in group.children]
    if graph.is_plain(group.scope) and _is_one_box(group) and inner[0].kind != SCOPE:
        return False
    return any(one.kind == SCOPE or not one.is_inside for one in inner)


def closed_by_default(
    graph: model.Graph, tree: dict[str, Group], most: int = AIM, depth: int | None = None, unfolded: Iterable[str] = ()
) -> set[str]:
    """The groups to close so that about `most` nodes are shown. Inner groups are closed before outer groups.

    With `depth`, exactly that many levels of groups are open (0: none). The groups `unfolded` and their parents are
    always open."""
    opened = {name for group in unfolded for name in ancestors(tree, group)}
    if depth is not None:
        return {group for group in tree if len(ancestors(tree, group)) > depth} - opened
    if len(graph.nodes) <= most:
        return set()
    inside: Counter[str] = Counter({group.id: len(group.members) + len(group.children) for group in tree.values()})
    shown = _outermost(graph, tree)
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
        repeats = group.kind == REPEAT and group.count > 1
        # the others have the structure of the first
        for child in group.children[:1] if repeats else group.children:
            heappush(queue, _turn(tree[child], level + 1, inside))
    return set(tree) - opened_here


def _turn(group: Group, level: int, inside: Counter[str]) -> tuple[int, int, int, int]:
    """Sort key for opening groups: outer before inner, scopes first, small before large."""
    return level, _OPENED_FIRST.get(group.kind, 1), inside[group.id], int(group.id.removeprefix("g"))


def folded(
    graph: model.Graph,
    depth: int | None = None,
    unfold: Iterable[str] = (),
    rolled: bool | None = None,
    most: int = MOST,
) -> model.Graph:
    """The graph as a picture shows it. The user chooses `depth`, `unfold`, and with `rolled` whether each place in the
    program is one box. `most` is the largest number of nodes that is not folded.

    Raises FoldError if a name in `unfold` does not exist."""
    names = list(unfold)
    graph = graph if depth or names else _with_roots_together(graph)
    is_asked = depth is not None or bool(names)
    with_functions = graph if rolled is False else with_function_scopes(graph, names, most)
    if rolled is None:
        rolled = is_clearer_rolled(with_functions, is_asked, most)
    if rolled:
        graph = with_functions
        if depth is None:
            graph = with_equal_blocks(graph, names)
        tree = places(graph)
        opened = [group for name in names for group in find_scopes(tree, name, graph.scopes)]
        closed = closed_places(graph, tree, depth, opened)
        return fold(graph, tree, closed) if is_asked else _of_a_page(graph, tree, closed)
    if len(graph.nodes) <= most and not is_asked:
        return graph
    tree = groups(graph)
    opened = [group for name in names for group in find_scopes(tree, name, graph.scopes)]
    return fold(graph, tree, closed_by_default(graph, tree, min(AIM, most), depth, opened))


def _with_roots_together(graph: model.Graph) -> model.Graph:
    """The graph with one box for the roots that one op made, if there are many: `y.unbind()` of a batch."""
    data = (edge for edge in graph.edges if edge.kind == model.DATA)
    made = grouped((edge.source, edge.target) for edge in data if graph.nodes[edge.target].root)
    crowds = [(graph.nodes[op].label, roots) for op, roots in made.items() if len(roots) > MOST_ROOTS]
    tree = {f"g0{i}": Group(f"g0{i}", SCOPE, f"{len(of)} roots of {op}", "", of) for i, (op, of) in enumerate(crowds)}
    return fold(graph, tree, set(tree))


def _of_a_page(graph: model.Graph, tree: dict[str, Group], closed: set[str]) -> model.Graph:
    """A rolled graph folded so that it fits a page. While a chain of boxes is too long, or too much is side by side,
    the innermost open scopes are closed, and the scopes around them that would show only one box; at last the leaves
    become one box. A module that has no other around it stays open."""
    while True:
        result = fold(graph, tree, closed)
        rows, columns = _size_of(result)
        depths = {group.id: len(ancestors(tree, group.id)) for group in tree.values() if group.id not in closed}
        if columns <= MOST_COLUMNS:
            depths = {name: depth for name, depth in depths.items() if depth > 1}
        depths = {name: depth for name, depth in depths.items() if depth > 1 or graph.is_plain(tree[name].scope)}
        innermost = max(depths.values(), default=0)
        if rows <= MOST_ROWS and columns <= MOST_COLUMNS:
            return result
        if not innermost:
            leaves = [node for node in result.nodes.values() if node.kind == model.LEAF]
            leaves = max(([node for node in leaves if model.learns(node) is one] for one in (True, False)), key=len)
            if columns <= MOST_COLUMNS or len(leaves) <= MOST_COLUMNS // 2:
                return _without_accumulators(result)
            label = f"{leaves[0].label} … {leaves[-1].label} ({len(leaves)})"
            members = [name for node in leaves for name in (node.id, node.pair) if name in graph.nodes]
            together = Group(f"g{len(tree) + 1}", SCOPE, label, "", members)
            tree, closed = {**tree, together.id: together}, {*closed, together.id}
        closed = closed | {name for name, depth in depths.items() if depth == innermost}
        closed |= {name for name, depth in depths.items() if depth == innermost - 1 and _is_one_box(tree[name])}


def _without_accumulators(graph: model.Graph) -> model.Graph:
    """The graph with gradients that lead to the leaves themselves, in place of an AccumulateGrad beside each."""
    nodes = graph.nodes
    leaf_of = {leaf.pair: leaf.id for leaf in nodes.values() if leaf.kind == model.LEAF and leaf.pair in nodes}
    edges = [
        replace(edge, target=leaf_of.get(edge.target, edge.target))
        for edge in graph.edges
        if edge.source not in leaf_of
    ]
    return replace(graph, nodes={name: nodes[name] for name in nodes if name not in leaf_of}, edges=edges)


def _is_one_box(group: Group) -> bool:
    return len(group.children) == 1 and not group.members


def _size_of(graph: model.Graph) -> tuple[int, int]:
    """The number of boxes in the longest chain of data, and the most boxes that are side by side. An edge of data that
    passes boxes at its side counts as one. A grad_fn stands beside its op or leaf; others are not counted."""
    row = {name: 0 for name, node in graph.nodes.items() if node.kind != model.GRAD_FN}
    following = grouped(
        (edge.source, edge.target) for edge in graph.edges if edge.kind == model.DATA and not edge.again
    )
    for name in [*row]:  # in the order in which they ran
        for target in following.get(name, ()):
            row[target] = max(row[target], row[name] + 1)
    columns = Counter[int](row.values())
    columns.update(row[name] for name in row if graph.nodes[name].pair in graph.nodes)
    beside: Counter[int] = Counter()
    for edge in graph.edges:
        if edge.source not in row or edge.target not in row:
            continue
        first, last = sorted((row[edge.source], row[edge.target]))
        beside.update(range(first, last + 1) if edge.again else range(first + 1, last))
    rows = 1 + max(columns, default=-1)
    return rows, max((columns[one] + beside[one] for one in range(rows)), default=0)


def is_clearer_rolled(graph: model.Graph, is_asked: bool = False, most: int = MOST) -> bool:
    """Whether modules, or a loop, make a smaller picture than the operations one by one, or these are too wide."""
    if not is_asked and _size_of(graph)[1] > MOST_COLUMNS:
        return True
    ops = [node for node in graph.nodes.values() if node.kind == model.OP]
    if any(node.scope for node in ops):
        return is_asked or len(graph.nodes) > FEW
    places_of_ops = {(node.file, node.line, node.col, node.end_col) for node in ops}
    return len(graph.nodes) > most and 2 * len(places_of_ops) <= len(ops)


def find_scopes(tree: dict[str, Group], name: str, scopes: Mapping[str, model.Scope] | None = None) -> list[str]:
    """The groups that `--unfold NAME` selects: by id, by a scope's path or the end of it, by class, or by label. A
    pattern such as `encoder.*` selects all that it fits.

    Raises FoldError with the nearest name if there is none."""
    if name in tree:
        return [name]
    types = {path: scope.type for path, scope in (scopes or {}).items()}
    matching: list[str] = []
    known: set[str] = set()
    for group in tree.values():
        names = {group.label, group.label.partition("()")[0]}
        if group.kind == SCOPE:
            names |= {group.scope, group.scope.replace("/", "."), types.get(group.scope, "")}
        known |= names
        is_end = group.kind == SCOPE and model.ends_with(group.scope, name)
        if is_end or name in names or any(fnmatchcase(one, name) for one in names):
            matching.append(group.id)
    if matching:
        return matching
    if near := nearest(name, sorted(known)):
        raise FoldError(f"there is no scope {name!r}: did you mean {near!r}?")
    paths = sorted({group.scope for group in tree.values() if group.scope})[:5]
    listed = f": the scopes are {', '.join(paths)}" if paths else " in this graph"
    raise FoldError(f"there is no scope {name!r}{listed}")


# The edges of a folded graph, merged, and the shapes that come into each group and go out of it.


class Merging:
    """The edges between the nodes of a folded graph. `nodes` are the nodes that are shown, in their order, and
    `drawn_as` has the group that replaces each hidden node."""

    def __init__(
        self,
        graph: model.Graph,
        nodes: Mapping[str, model.Node],
        tree: Mapping[str, Group],
        drawn_as: Mapping[str, Group],
    ) -> None:
        self.graph, self.nodes, self.drawn_as = graph, nodes, drawn_as
        self.order = {name: number for number, name in enumerate(nodes)}
        self.is_rolled = any(group.kind == PLACE for group in tree.values())
        self.turns = self._turns() if self.is_rolled else {}

    def note_shapes(self) -> None:
        """Note the shapes of the tensors that come into each group and go out of it."""
        drawn_as = self.drawn_as
        data = [edge for edge in self.graph.edges if edge.kind == model.DATA]
        read = {edge.source for edge in data}
        for edge in data:
            source, target = drawn_as.get(edge.source), drawn_as.get(edge.target)
            if source is target and edge.target not in read and not self.graph.nodes[edge.target].buffer:
                target = None  # a result that nothing reads leaves its module all the same
            is_merged = source is not None or target is not None
            if is_merged and not _is_read_by_rollout(source, target):
                self._note_shapes(edge, source, target)

    def edges(self) -> list[model.Edge]:
        """The merged edges. Also notes the shapes of the tensors that come into each group and go out of it."""
        self.note_shapes()
        merged: dict[tuple[Any, ...], model.Edge] = {}
        moved: dict[tuple[Any, ...], set[str]] = {}  # the tensors and gradients along each edge
        drawn_as = self.drawn_as
        for edge in self.graph.edges:
            source, target = drawn_as.get(edge.source), drawn_as.get(edge.target)
            if source is None and target is None:
                merged[id(edge),] = edge
                continue
            if _is_read_by_rollout(source, target):
                continue
            if source is target and not self._leads_to_another_turn(edge, source):
                self._note_cut(edge, source)
                continue
            if self.is_rolled and (edge.kind == model.SAVED or (edge.kind == model.VIEW and not edge.cut)):
                continue
            ends = source.id if source else edge.source, target.id if target else edge.target
            key = (*ends, edge.kind, edge.cut, edge.label)
            if key not in merged:
                earlier, later = reversed(ends) if edge.kind == model.GRAD else ends
                again = self.is_rolled and self.order[earlier] >= self.order[later]  # it closes a loop
                merged[key] = replace(edge, source=ends[0], target=ends[1], count=0, again=again)
                moved[key] = set()
            one = merged[key]
            moved[key].add(edge.target if edge.kind == model.GRAD else edge.source)
            one.count = len(moved[key]) if self.is_rolled else one.count + 1
            one.gradient = one.gradient or edge.gradient
            one.due = one.due or edge.due
            one.value = max(one.value, edge.value, key=_size)  # NaN or inf if one has it
        return list(merged.values())

    def _note_shapes(self, edge: model.Edge, source: Group | None, target: Group | None) -> None:
        """Note the shape of a tensor that comes into a group or goes out of it."""
        is_result = self.graph.nodes[edge.source].kind == model.OP
        tensor = self.graph.nodes[edge.target if is_result else edge.source]
        is_parameter = not is_result and tensor.parameter
        shape = "" if tensor.shape is None else "scalar" if tensor.shape == () else str(list(tensor.shape))
        if source is not None and source.kind == PLACE:
            if is_result and edge.target not in self.nodes:  # otherwise the result has a box of its own
                _add(self.nodes[source.id], "gives", f"{tensor.name} {shape}" if tensor.name else shape)
        elif source is not None and source is not target and not (source.kind == SCOPE and is_parameter):
            has_name = tensor.called != f"t{tensor.number}"
            name = tensor.name or (tensor.called if has_name else "")
            name = name if source.kind == DATA_BOX else ""
            _add(self.nodes[source.id], "gives", f"{name} {shape}" if name else shape)
        if target is not None and (source is not target or self._leads_to_another_turn(edge, target)):
            if target.kind == SCOPE and is_parameter and tensor.name:
                _add(self.nodes[target.id], "reads", _name_in(target.scope, tensor))
            else:
                _add(self.nodes[target.id], "takes", shape)

    def _note_cut(self, edge: model.Edge, group: Group | None) -> None:
        box = self.nodes[group.id].box if group is not None else None
        if box is not None and edge.cut:
            box.cuts.add(edge.cut)
            box.due = box.due or edge.due

    # --- turns of loops

    def _turns(self) -> dict[str, int]:
        """The turn of its group in which each node was computed."""
        turns: dict[str, int] = {}
        count: dict[str, int] = {}
        before = None
        for node in self.graph.nodes.values():
            if node.kind != model.OP:
                continue
            group = self.drawn_as.get(node.id)
            if group is not None and group.kind == DATA_BOX:
                continue
            if group is not None and (group is not before or group.kind == PLACE):
                count[group.id] = count.get(group.id, 0) + 1
            before = group
            if group is not None:
                turns[node.id] = count[group.id]
        for node in self.graph.nodes.values():
            if node.kind == model.OP and node.pair and node.id in turns:
                turns[node.pair] = turns[node.id]
            elif node.maker and node.maker in turns:
                turns[node.id] = turns[node.maker]
        for edge in self.graph.edges:
            is_result = (
                edge.kind == model.DATA and edge.source in turns and self.graph.nodes[edge.source].kind == model.OP
            )
            if is_result and self.drawn_as.get(edge.target) is self.drawn_as[edge.source]:
                turns[edge.target] = turns[edge.source]
        return turns

    def _leads_to_another_turn(self, edge: model.Edge, group: Group | None) -> bool:
        """Whether an edge inside a group leads from one turn of a loop to another. A buffer of a module was made before
        the first turn, and no turn passes it to the next."""
        if group is None or group.kind not in (SCOPE, PLACE) or edge.kind not in (model.DATA, model.GRAD):
            return False
        if self.graph.nodes[edge.source].buffer:
            return False
        source, target = self.turns.get(edge.source), self.turns.get(edge.target)
        return source is not None and target is not None and source != target


def _is_read_by_rollout(source: Group | None, target: Group | None) -> bool:
    """Whether an edge leads into a box of data from outside: a rollout read a tensor of the network."""
    return target is not None and target.kind == DATA_BOX and source is not target


def _name_in(scope: str, parameter: model.Node) -> str:
    """The name of another module's parameter that a module reads; of a tied one, also its name in the module."""
    within = scope.replace("/", ".") + "."
    own = next((name.removeprefix(within) for name in parameter.tied if name.startswith(within)), "")
    return f"{parameter.name} as {own}" if own else parameter.name or ""


def _add(node: model.Node, part: str, shape: str) -> None:
    if node.box is not None and shape:
        getattr(node.box, part)[shape] = None


def _size(value: Snapshot | None) -> float:
    stats = value.stats if value is not None else None
    if stats is None:
        return -1.0
    return math.inf if stats.nan or stats.inf else stats.rms
