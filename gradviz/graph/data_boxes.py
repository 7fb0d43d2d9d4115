"""The parts of a graph that only prepare data for a pass, so that each can be drawn as one box.

Data is what no gradient will ever reach: tensors that do not require grad, and the operations outside of the network
that compute them from such tensors. The results of a rollout are data too: a network that runs without recording a
graph, many times before the first operation that records one. A tensor that a module holds, such as a mask, belongs to
the module."""

from __future__ import annotations

from collections.abc import Container, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from gradviz.graph.model import DATA, GRAD_FN, MUTATION, OP, VIEW, Graph, Node, scopes_around

_FEWEST = 2  # the fewest operations that are drawn as one
_MANY_TENSORS = 4  # the fewest tensors that are drawn as one with a single operation, or with none
_MOST_CALLS = 3  # the most calls at one place of a network that records no graph; more are a rollout


@dataclass(slots=True)
class DataBox:
    """Nodes that are drawn as one. `scope` is the scope of the module that holds a tensor of them; else empty."""

    nodes: list[Node] = field(default_factory=list)
    scope: str = ""


class DataBoxes(NamedTuple):
    """The boxes of a graph, in the order in which they began, and the number of calls of each scope in rollouts."""

    boxes: list[DataBox]
    calls: dict[str, int]


def data_boxes(graph: Graph) -> DataBoxes:
    """The boxes of a graph. Takes linear time."""
    rollouts = _rollouts(graph)
    data = _Data(graph, {node.id for nodes in rollouts for node in nodes})
    boxes: dict[str, DataBox] = {}
    for name in data.leader:
        boxes.setdefault(data.found(name), DataBox()).nodes.append(graph.nodes[name])
    for box in boxes.values():
        box.scope = data.holder(box)
    calls: dict[str, int] = {}
    for nodes in rollouts:
        for scope in scopes_around(nodes[0].scope):
            calls[scope] = max(calls.get(scope, 0), len(nodes))
    return DataBoxes([box for box in boxes.values() if _is_worth_it(box)], calls)


def _is_worth_it(box: DataBox) -> bool:
    ops = sum(node.kind == OP for node in box.nodes)
    return ops >= _FEWEST or bool(box.scope) or len(box.nodes) - ops >= _MANY_TENSORS


class _Data:
    """The nodes of a graph that are data. `leader` leads from each of them to one node for each group: nodes that were
    computed from one another, or are read at one place."""

    def __init__(self, graph: Graph, rollouts: Container[str]) -> None:
        self.nodes = graph.nodes
        self.leader: dict[str, str] = {}
        before: dict[str, list[str]] = {}
        self.readers: dict[str, list[str]] = {}
        computed = {edge.target for edge in graph.edges if edge.kind == DATA}
        for edge in graph.edges:
            if edge.kind in (DATA, MUTATION) or (edge.kind == VIEW and edge.target not in computed):
                before.setdefault(edge.target, []).append(edge.source)
                self.readers.setdefault(edge.source, []).append(edge.target)
        inside = self._made_in(rollouts)
        for node in self.nodes.values():
            read = before.get(node.id, ())
            in_rollout = node.id in rollouts or node.id in inside
            if in_rollout:
                read = [name for name in read if not self.nodes[name].requires_grad]
            is_outside = bool(read) or in_rollout or not node.scope
            if (
                is_outside
                and self._can_be_data(node, in_rollout)
                and all(map(self.leader.__contains__, read))
            ):
                self.leader[node.id] = node.id
                for name in read:
                    self._join(node.id, name)
        self._join_by_reader()

    def _made_in(self, rollouts: Container[str]) -> set[str]:
        """The tensors without parameters that only rollouts read, such as noise that a module made."""
        inside: set[str] = set()
        for name, node in reversed(self.nodes.items()):
            readers = self.readers.get(name, ())
            is_plain = not (node.kind == OP or node.parameter or node.buffer)
            if readers and is_plain and all(reader in rollouts or reader in inside for reader in readers):
                inside.add(name)
        return inside

    @staticmethod
    def _can_be_data(node: Node, in_rollout: bool) -> bool:
        if node.kind == OP:
            return not node.grad_fn and (in_rollout or not node.scope)
        return node.kind != GRAD_FN and not (node.requires_grad or node.root)

    def _join_by_reader(self) -> None:
        """Join data that comes into the network at one place: results, and tensors of one name."""
        first: dict[Hashable, str] = {}
        for name in self.leader:
            node = self.nodes[name]
            for reader in self.readers.get(name, ()):
                if reader not in self.leader:
                    at = self.nodes[reader]
                    key = at.scope, at.file, at.line, at.col, at.op, node.name, node.line, node.col
                    self._join(name, first.setdefault(key, name))

    def found(self, name: str) -> str:
        """The node that stands for the group of a node."""
        leader = self.leader
        while leader[name] != name:
            leader[name] = name = leader[leader[name]]
        return name

    def _join(self, one: str, other: str) -> None:
        self.leader[self.found(one)] = self.found(other)

    def holder(self, box: DataBox) -> str:
        """The innermost scope around all that reads the buffers in a box; empty if there is no buffer."""
        readers = {reader for node in box.nodes if node.buffer for reader in self.readers.get(node.id, ())}
        around = [[*scopes_around(self.nodes[reader].scope)] for reader in readers - self.leader.keys()]
        common = [scopes[0] for scopes in zip(*around, strict=False) if len({*scopes}) == 1]
        return common[-1] if common else ""


def _rollouts(graph: Graph) -> list[list[Node]]:
    """The operations of networks that ran many times before the first that recorded a graph, by their places."""
    ran: dict[Hashable, list[Node]] = {}
    for node in graph.nodes.values():
        if node.kind == OP and node.grad_fn:
            break
        if node.kind == OP and node.scope:
            ran.setdefault((node.scope, node.file, node.line, node.col, node.op), []).append(node)
    return [nodes for nodes in ran.values() if len(nodes) > _MOST_CALLS]
