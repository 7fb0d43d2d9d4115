"""The calls of modules without parameters, told apart: a dropout behind each of two layers is two boxes.

Repeated parameters make a loop, and a plain function is one box for each line that calls it. Two calls of a module
without parameters are one box if they come behind the same layer of the module around them: a rectifier in a loop over
a cell is one box, a rectifier between three layers is two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import NamedTuple

from gradviz.graph.model import DATA, OP, Graph, Node, learns, scopes_around


class Call(NamedTuple):
    """A call of a scope without parameters: the layer or place that it comes `behind`, the `number` of the call since
    then, and whether an operation `begins` it."""

    scope: str
    behind: Hashable
    number: int
    begins: bool


class Calls:
    """Goes over the operations of a graph in their order."""

    def __init__(self, graph: Graph) -> None:
        self._reading = {
            edge.target
            for edge in graph.edges
            if edge.kind == DATA and graph.nodes[edge.target].kind == OP and learns(graph.nodes[edge.source])
        }
        self._graph = graph
        self._read_at = Counter(_place(graph.nodes[name]) for name in self._reading)
        self._reading_ops = {_op_in_scope(graph.nodes[name]) for name in self._reading}
        self._learning = {scope for name in self._reading for scope in scopes_around(graph.nodes[name].scope)}
        # for each scope (each equal block by itself): the last place or scope in it that has parameters
        self._behind: dict[tuple[str, str], Hashable] = {}
        self._since: dict[tuple[str, str], Counter[str]] = {}  # and calls of other scopes in it since
        self._open: dict[str, int] = {}  # the visit to each scope of the present call
        self._scope = ""

    def of(self, node: Node) -> Call | None:
        """The outermost call without parameters that an operation is in; None if there is none. To be called once for
        each operation, in the order in which they ran."""
        bare = (path for path in scopes_around(node.scope) if path not in self._learning)
        scope = next((path for path in bare if not self._graph.is_plain(path)), "")
        if not self._learning or not scope:
            self._scope = ""
            self._note(node)
            return None
        begins = scope != self._scope or self._open.get(node.scope, node.visit) != node.visit
        outer = scope.rpartition("/")[0], node.block
        since = self._since.setdefault(outer, Counter())
        if begins:
            since[scope] += 1
            self._scope, self._open = scope, {}
        self._open[node.scope] = node.visit
        return Call(scope, self._behind.get(outer), since[scope], begins)

    def behind(self, node: Node) -> Hashable:
        """The last place or scope with parameters before an operation, in the scope around it; None if there is none.
        To be called before `of` for the same operation."""
        return self._behind.get((node.scope, node.block))

    def reads_parameters(self, node: Node) -> bool:
        """Whether an operation reads a leaf that learns."""
        return node.id in self._reading

    def came_once(self, behind: Hashable) -> bool:
        """Whether a result of `behind` ran once: it is no part of a loop."""
        if isinstance(behind, str):
            return behind in self._graph.scopes and self._graph.scopes[behind].calls == 1
        return behind is None or self._read_at[behind] == 1

    def _note(self, node: Node) -> None:
        """Note an operation that reads a parameter, in each scope around it. A layer that is called with other weights,
        as by `functional_call`, is the same layer."""
        if node.id not in self._reading and not (node.scope and _op_in_scope(node) in self._reading_ops):
            return
        inner: Hashable = _place(node)
        for scope in [*reversed([*scopes_around(node.scope)]), ""]:
            self._behind[scope, node.block], self._since[scope, node.block] = inner, Counter()
            inner = scope


def _op_in_scope(node: Node) -> Hashable:
    return node.scope, node.op, None if node.visit else _place(node)


def _place(node: Node) -> Hashable:
    return node.file, node.line, node.col
