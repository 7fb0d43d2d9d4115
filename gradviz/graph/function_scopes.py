"""Scopes for the calls of the program's own plain functions, where much is computed outside of modules.

A network of plain functions, or a loss that is built in functions, would be a carpet of operations. A call is told by
its line: two lines that call `layer_norm` are two scopes, and a loop over one of them is one scope. These are no
scopes: a function that calls a module with parameters, as a training step does, unless it runs often; a function that
does all there is; a call of a function from inside itself. A program that does much outside of functions has a scope
for each few lines."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator
from dataclasses import replace
from posixpath import commonpath
from statistics import median
from typing import NamedTuple

from gradviz.graph.model import DATA, GRAD_FN, OP, Graph, Node, Scope, learns, lines_text, moved, scopes_around
from gradviz.graph.roll import data_boxes
from gradviz.query.function_calls import FunctionCall
from gradviz.sets import grouped

_MOST_PLACES = 20  # of the program in a scope that are drawn without the functions around them
_MOST_NODES = 100
_OFTEN = 4  # calls of a function
_MOST_LINES, _GROUPS_OF_LINES = 26, 8  # lines that are drawn one by one, and else groups of them
_MOST_IN_A_CALL = 60  # operations of a library
_MOST_WAYS_BACK = 12  # from a place of a loop to an earlier one
_Where = tuple[str, int]  # the scope around a call, and the site of the call


class _Row(NamedTuple):
    """An operation, or the grad_fn of one, and the calls around it that can be scopes."""

    node: Node
    calls: list[FunctionCall]


def with_function_scopes(graph: Graph, names: Collection[str] = (), most: int = _MOST_NODES) -> Graph:
    """The graph with scopes for functions in each scope that has many places of its own; in all scopes, if one of the
    `names` is that of a function. Without modules, a graph of `most` nodes stays as it is. The ids of nodes stay. Takes
    linear time."""
    if not (graph.scopes or names) and len(graph.nodes) <= most:
        return graph
    rows = list(_outside_of_data(graph))
    last_names = {name.replace(".", "/").rpartition("/")[2].partition("(")[0] for name in names}
    is_named = any(call.name in last_names for row in rows for call in row.calls)
    crowded = None if is_named else _crowded(rows, len(graph.nodes) > most)
    rows = [
        _Row(row.node, [call for call in row.calls if crowded is None or _around(row.node, call) in crowded])
        for row in rows
    ]
    rows = _without_wrappers(rows)
    rows = _by_lines(graph, [_Row(row.node, list(_without_recursion(row.calls))) for row in rows])
    if not any(row.calls for row in rows):
        return graph
    return _Renaming(graph, rows).graph()


def _outside_of_data(graph: Graph) -> Iterator[_Row]:
    """The operations that are no data. The calls around a module with parameters are left out, and calls in which
    nothing is differentiated."""
    data = {node.id for box in data_boxes(graph).boxes for node in box.nodes}
    nodes = [node for node in graph.nodes.values() if node.kind == OP]
    nodes = nodes or [node for node in graph.nodes.values() if node.kind == GRAD_FN and node.op is not None]
    nodes = [node for node in nodes if node.id not in data]
    learning = {
        scope
        for edge in graph.edges
        if edge.kind == DATA and learns(graph.nodes[edge.source])
        for scope in scopes_around(graph.nodes[edge.target].scope)
    }
    calling: set[_Where] = set()
    for node in nodes:
        parts = node.scope.split("/")
        for call in node.calls:
            if "/".join(parts[: call.depth + 1]) in learning and call.depth < len(parts):
                calling.add(_where(node, call))
    differentiated = {_where(node, call) for node in nodes if node.grad_fn for call in node.calls}
    differentiated -= calling - _called_often(nodes)
    for node in nodes:
        yield _Row(node, [call for call in node.calls if _where(node, call) in differentiated])


def _called_often(nodes: list[Node]) -> set[_Where]:
    """The calls that ran many times, as the step of a solver does."""
    ran = Counter(
        (_where(node, node.calls[-1]), node.line, node.col, node.end_col, node.op)
        for node in nodes
        if node.calls and node.runs_once
    )
    return {where for (where, *_), times in ran.items() if times >= _OFTEN}


def _around(node: Node, call: FunctionCall) -> str:
    """The scope around a call."""
    return "/".join(node.scope.split("/")[: call.depth]) if node.scope else ""


def _where(node: Node, call: FunctionCall) -> _Where:
    return _around(node, call), call.site


def _crowded(rows: list[_Row], is_large: bool) -> set[str]:
    """The scopes that have many places of their own; in a large graph, also those with a place that several lines
    call."""
    places: defaultdict[str, set[Hashable]] = defaultdict(set)
    ways: defaultdict[tuple[str, Hashable], set[Hashable]] = defaultdict(set)  # the calls that lead to a place
    for node, calls in rows:
        place = node.file, node.line, node.col, node.end_col
        if not node.visit:
            places[node.scope].add(place)
        for scope in {_around(node, call) for call in calls} if is_large else ():
            ways[scope, place].add(tuple(call.site for call in calls if _around(node, call) == scope))
    many = {scope for scope, own in places.items() if len(own) > _MOST_PLACES}
    return many | {scope for (scope, _), sites in ways.items() if len(sites) > 1}


def _without_wrappers(rows: list[_Row]) -> list[_Row]:
    """The rows without the calls that all rows of their scope are in."""
    own = Counter(scope for row in rows for scope in ("", *scopes_around(row.node.scope)))
    inside = Counter(_where(row.node, call) for row in rows for call in row.calls)
    return [
        _Row(row.node, [call for call in row.calls if inside[_where(row.node, call)] < own[_around(row.node, call)]])
        for row in rows
    ]


def _without_recursion(calls: list[FunctionCall]) -> Iterator[FunctionCall]:
    """The calls without those of a function that is running already."""
    running = set()
    for call in calls:
        if call.function not in running:
            running.add(call.function)
            yield call


def _by_lines(graph: Graph, rows: list[_Row]) -> list[_Row]:
    """The rows, with groups of lines as if they were calls: of a program that does too much outside of functions and
    modules to be drawn line by line, of a loop whose operations lead to one another in too many ways, and of a call in
    which a library runs many."""
    outside = [row for row in rows if not row.node.scope]
    shown = {row.node.id: row.node for row in outside if not row.calls}
    file = next((node.file for node in shown.values() if node.file), "")
    line_of = {node.id: (file, calls[0].line) if calls else _line_of(node) for node, calls in outside}
    lines = sorted({*line_of.values()})
    together = math.ceil(len(lines) / _GROUPS_OF_LINES)
    if len(lines) <= _MOST_LINES:
        tangled = _tangled(graph, shown)
        line_of = {name: line_of[name] for name in tangled or _in_busy_calls(shown)}
        lines, together = sorted({*line_of.values()}), _MOST_LINES if tangled else 1
    groups: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number, (file, line) in enumerate(lines):
        groups[file, number // together].append(line)
    calls = {
        (file, line): FunctionCall(lines_text(group[0], group[-1]), (file, ""), -number, group[0], 0, 0, False)
        for number, ((file, _), group) in enumerate(groups.items(), 1)
        for line in group
    }
    return [_Row(node, [calls[line_of[node.id]], *own] if node.id in line_of else own) for node, own in rows]


def _line_of(node: Node) -> tuple[str, int]:
    return node.file or "", node.line or 0


def _tangled(graph: Graph, shown: dict[str, Node]) -> list[str]:
    """The operations of a loop, if there are too many ways from one of its places back to an earlier one."""
    places = {name: (_line_of(node), node.col, node.op) for name, node in shown.items()}
    order = {place: number for number, place in enumerate(dict.fromkeys(places.values()))}
    maker = {edge.target: edge.source for edge in graph.edges if edge.kind == DATA and edge.source in shown}
    ways = {
        (order[places[edge.target]], order[places[maker[edge.source]]])
        for edge in graph.edges
        if edge.kind == DATA and edge.source in maker and edge.target in shown
    }
    back = [(first, last) for first, last in ways if first <= last]
    if len(back) <= _MOST_WAYS_BACK:
        return []
    begin, end = min(first for first, _ in back), max(last for _, last in back)
    return [name for name in shown if begin <= order[places[name]] <= end]


def _in_busy_calls(shown: dict[str, Node]) -> list[str]:
    """The operations of the calls in which a library runs many, as a solver does."""
    by_place = grouped(((_line_of(node), node.col, node.end_col), name) for name, node in shown.items())
    many = (names for names in by_place.values() if len(names) > _MOST_IN_A_CALL)
    return [name for names in many if len({shown[name].op for name in names}) > 1 for name in names]


class _Renaming:
    """Moves the nodes of a graph into the scopes of functions."""

    def __init__(self, graph: Graph, rows: list[_Row]) -> None:
        self._graph, self._rows = graph, rows
        self._names = self._unique_names()
        self._plain: dict[str, None] = {}
        self._calls: Counter[str] = Counter()

    def graph(self) -> Graph:
        """The graph with all nodes moved."""
        graph = self._graph
        paths = {node.id: self._path(node, calls) for node, calls in self._rows}
        self._follow(paths)
        nodes = {
            name: moved(node, paths[name], node.block) if paths.get(name, node.scope) != node.scope else node
            for name, node in graph.nodes.items()
        }
        result = replace(graph, nodes=nodes)
        result.scopes = {**graph.scopes, **self._moved_scopes(paths)}
        result.scopes |= {path: Scope("", self._times(path), plain=True) for path in self._plain}
        return result

    def _unique_names(self) -> dict[tuple[str, ...], str]:
        """The name of each call in its path: `norm()`, or with the line if several lines call it. The key is the
        path of names and sites around a call, and its own."""
        by_name: defaultdict[tuple[str, ...], dict[int, FunctionCall]] = defaultdict(dict)
        for node, calls in self._rows:
            for key, call in _keys(node, calls):
                by_name[*key[:-1], call.name][call.site] = call
        names = {}
        for (*outer, name), by_site in by_name.items():
            lines = Counter(call.line for call in by_site.values())
            for site, call in by_site.items():
                where = f" at line {call.line}" if len(by_site) > 1 else ""
                column = f":{call.col}" if lines[call.line] > 1 else ""
                called = f"{name}()" if call.function[1] else name  # a group of lines is of no function
                names[*outer, f"{name}@{site}"] = f"{called}{where}{column}"
        return names

    def _path(self, node: Node, calls: list[FunctionCall]) -> str:
        """The path of a node's scope with the functions in it."""
        named = {key: self._names[key] for key, _ in _keys(node, calls)}
        path = ""
        for key in _all_keys(node, calls):
            part = named.get(key, key[-1])
            path = f"{path}/{part}" if path else part
            if key in named:
                self._plain.setdefault(path)
        return path

    def _follow(self, paths: dict[str, str]) -> None:
        """Take results and grad_fns along with their operations, and leaves that learn to their only users."""
        nodes = self._graph.nodes
        users: defaultdict[str, list[str]] = defaultdict(list)
        for edge in self._graph.edges:
            if edge.kind == DATA and nodes[edge.source].kind == OP and edge.source in paths:
                paths.setdefault(edge.target, paths[edge.source])
            elif edge.kind == DATA and learns(nodes[edge.source]):
                users[edge.source].append(paths.get(edge.target, nodes[edge.target].scope))
        for node in nodes.values():
            if node.kind == GRAD_FN and node.maker in paths:
                paths[node.id] = paths[node.maker]
        for name, scopes in users.items():
            if self._module_of(nodes[name]) not in self._graph.scopes and name not in paths:
                paths[name] = commonpath(scopes)
                if nodes[name].pair in nodes:
                    paths[nodes[name].pair] = paths[name]

    @staticmethod
    def _module_of(node: Node) -> str:
        return (node.name or "").rpartition(".")[0].replace(".", "/") if node.parameter else ""

    def _moved_scopes(self, paths: dict[str, str]) -> dict[str, Scope]:
        """The modules that were called inside of functions, by their new paths."""
        scopes = {}
        for node, calls in self._rows:
            if calls:
                old, new = node.scope, paths[node.id]
                while old and new and new not in self._plain:
                    if old in self._graph.scopes:
                        scopes[new] = self._graph.scopes[old]
                    old, new = old.rpartition("/")[0], new.rpartition("/")[0]
        return scopes

    def _times(self, path: str) -> int:
        """How often a function was called, as far as that is sure; else 1."""
        if not self._calls:
            self._count()
        return max(1, self._calls[path])

    def _count(self) -> None:
        """Count the calls of each function by the operations and calls that it surely runs once."""
        ran: Counter[tuple[str, Hashable]] = Counter()
        once: dict[str, bool] = {}
        for node, calls in self._rows:
            path = self._path(node, calls)
            if node.runs_once:
                ran[path, (node.line, node.col, node.end_col, node.op)] += 1
            depth = len(node.scope.split("/")) if node.scope else 0
            for call in reversed([call for call in calls if call.depth == depth]):
                once[path], path = call.runs_once, path.rpartition("/")[0]
        for (path, _), times in ran.items():
            if path in self._plain:
                self._calls[path] = max(self._calls[path], times)
        for path in sorted(once, key=lambda path: -path.count("/")):
            outer = path.rpartition("/")[0]
            if once[path] and outer in self._plain:
                self._calls[outer] = max(self._calls[outer], self._calls[path])


def _keys(node: Node, calls: list[FunctionCall]) -> Iterator[tuple[tuple[str, ...], FunctionCall]]:
    """The key of each call around a node: the names of scopes and the calls around it, and its own."""
    by_part = {f"{call.name}@{call.site}": call for call in calls}
    yield from ((key, by_part[key[-1]]) for key in _all_keys(node, calls) if key[-1] in by_part)


def _all_keys(node: Node, calls: list[FunctionCall]) -> Iterator[tuple[str, ...]]:
    """The key of each scope and of each call around a node, outermost first."""
    parts = node.scope.split("/") if node.scope else []
    key: tuple[str, ...] = ()
    waiting = list(calls)
    for depth in range(len(parts) + 1):
        while waiting and waiting[0].depth <= depth:
            call = waiting.pop(0)
            key = (*key, f"{call.name}@{call.site}")
            yield key
        if depth < len(parts):
            key = (*key, parts[depth])
            yield key


# The equal blocks of a network as one block: `h.0 … h.47`, all of one class and with the same operations inside.
#
# A block keeps its own name if its gradient is ten times larger or smaller than those of nearly all others, if there
# is a finding in it, if fewer than three other blocks are equal to it, or if it has no modules inside.

_FEWEST = 4
_APART = 10.0
_MOST_APART = 3  # if more blocks are apart, the norms change from block to block, and the range shows it
_NUMBER = re.compile(r"\d+")


def with_equal_blocks(graph: Graph, named: Collection[str] = ()) -> Graph:
    """The graph with one scope for the blocks of each family of equal blocks; the ids of nodes stay. Blocks around or
    inside the scopes that are `named` keep their own scope. Takes linear time."""
    families = {path: family for family in _families(graph, named) for path in family}
    if not families:
        return graph
    homes = {path: _home(path, families) for path in {node.scope for node in graph.nodes.values()} | {*graph.scopes}}
    result = replace(graph, nodes=dict(graph.nodes), scopes={})
    for node in graph.nodes.values():
        if homes[node.scope] != node.scope:
            block = next(path for path in scopes_around(node.scope) if path in families)
            result.nodes[node.id] = moved(node, homes[node.scope], block)
    for path, scope in graph.scopes.items():
        known = result.scopes.get(homes[path])
        result.scopes[homes[path]] = Scope(scope.type, scope.calls + (known.calls if known is not None else 0))
    return result


def _home(path: str, families: dict[str, list[str]]) -> str:
    """The path with the names of families in place of the names of their blocks."""
    parts = []
    for inner in scopes_around(path):
        family = families.get(inner)
        first, last = (family[0], family[-1]) if family is not None else (inner, "")
        name = first.rpartition("/")[2]
        parts.append(f"{name} … {last.rpartition('/')[2]}" if last else name)
    return "/".join(parts)


def _families(graph: Graph, named: Collection[str]) -> Iterator[list[str]]:
    """The paths of the blocks of each family, in the order in which they ran."""
    inside = _inside(graph)
    alike: dict[tuple[object, ...], list[str]] = {}
    for path, content in inside.items():
        outer, _, name = path.rpartition("/")
        unnumbered = _NUMBER.sub("", name)  # the number may be that of a module around, which the program does not call
        has_modules = any(scope for scope, *_ in content)
        if unnumbered != name and has_modules and not _is_named(path, named):
            type_ = graph.scopes[path].type if path in graph.scopes else ""
            alike.setdefault((outer, unnumbered, type_, tuple(content)), []).append(path)
    norms, with_findings = _norms(graph)
    for paths in alike.values():
        usual = median([norms.get(path, 0.0) for path in paths])
        own = {path: norms.get(path, 0.0) for path in paths}
        # also a norm that is not finite
        apart = {path for path, norm in own.items() if not usual / _APART <= norm <= usual * _APART or norm == math.inf}
        if len(apart) > _MOST_APART:
            apart = set()
        equal = [path for path in paths if path not in with_findings | apart]
        if len(equal) >= _FEWEST:
            yield equal


def _is_named(path: str, names: Collection[str]) -> bool:
    """Whether one of the names is that of a scope or of a scope inside it. Names may leave out the scopes around, and
    have dots or slashes."""
    last = path.rpartition("/")[2]
    return any(f".{last}." in f".{name.replace('/', '.')}." for name in names)


def _inside(graph: Graph) -> dict[str, list[tuple[object, ...]]]:
    """The ops inside each scope, in order: the place in the scope, the op, its node and the shapes of its results."""
    of_ops = (edge for edge in graph.edges if edge.kind == DATA and graph.nodes[edge.source].kind == OP)
    made = grouped((edge.source, graph.nodes[edge.target].shape) for edge in of_ops)
    inside: dict[str, list[tuple[object, ...]]] = {}
    for node in graph.nodes.values():
        if node.kind == OP:
            for path in scopes_around(node.scope):
                within = node.scope[len(path) + 1 :]
                inside.setdefault(path, []).append((within, node.op, node.grad_fn, *made.get(node.id, ())))
    return inside


def _norms(graph: Graph) -> tuple[dict[str, float], set[str]]:
    """The norm of the gradients of the parameters in each scope, and the scopes with a finding or an error."""
    squares: dict[str, float] = {}
    with_findings: set[str] = set()
    for node in graph.nodes.values():
        if node.finding or node.error:
            with_findings.update(scopes_around(node.scope))
        for path in scopes_around(node.scope):
            squares[path] = squares.get(path, 0.0) + square_of(node)
    return {path: math.sqrt(square) if square >= 0 else math.nan for path, square in squares.items()}, with_findings


def square_of(node: Node) -> float:
    """The sum of the squares of the gradient of a parameter or a leaf; 0 for any other node, or without a gradient."""
    grad = (node.grad or node.reached) if learns(node) and not node.overwritten else None
    if grad is None or grad.stats is None:
        return 0.0
    return grad.stats.rms**2 * math.prod(grad.shape) if not grad.stats.nan else math.nan
