"""The edges of a folded graph, merged, and the shapes that come into each group and go out of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gradviz.graph.groups import DATA_BOX, PLACE, SCOPE, Group
from gradviz.graph.model import DATA, GRAD, GROUP, OP, SAVED, VIEW, Edge, Graph, Node
from gradviz.tracefile import Snapshot


class Merging:
    """The edges between the nodes of a folded graph. `nodes` are the nodes that are shown, in their order, and
    `drawn_as` has the group that replaces each hidden node."""

    def __init__(self, graph: Graph, nodes: Mapping[str, Node], drawn_as: Mapping[str, Group]) -> None:
        self.graph, self.nodes, self.drawn_as = graph, nodes, drawn_as
        self.order = {name: number for number, name in enumerate(nodes)}
        self.is_rolled = any(node.op == PLACE for node in nodes.values() if node.kind == GROUP)
        self.turns = self._turns() if self.is_rolled else {}

    def note_shapes(self) -> None:
        """Note the shapes of the tensors that come into each group and go out of it."""
        drawn_as = self.drawn_as
        for edge in self.graph.edges:
            if edge.kind != DATA:
                continue
            source, target = drawn_as.get(edge.source), drawn_as.get(edge.target)
            is_merged = source is not None or target is not None
            if is_merged and not _is_read_by_rollout(source, target):
                self._note_shapes(edge, source, target)

    def edges(self) -> list[Edge]:
        """The merged edges. Also notes the shapes of the tensors that come into each group and go out of it."""
        self.note_shapes()
        merged: dict[tuple[Any, ...], Edge] = {}
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
            if self.is_rolled and (edge.kind == SAVED or (edge.kind == VIEW and not edge.cut)):
                continue
            ends = source.id if source else edge.source, target.id if target else edge.target
            key = (*ends, edge.kind, edge.cut, edge.label)
            if key not in merged:
                again = self._leads_back(edge.kind, *ends)
                merged[key] = replace(edge, source=ends[0], target=ends[1], count=0, again=again)
                moved[key] = set()
            one = merged[key]
            moved[key].add(edge.target if edge.kind == GRAD else edge.source)
            one.count = len(moved[key]) if self.is_rolled else one.count + 1
            one.gradient = one.gradient or edge.gradient
            one.due = one.due or edge.due
            one.value = _worse(one, edge)
        return list(merged.values())

    def _note_shapes(self, edge: Edge, source: Group | None, target: Group | None) -> None:
        """Note the shape of a tensor that comes into a group or goes out of it."""
        is_result = self.graph.nodes[edge.source].kind == OP
        tensor = self.graph.nodes[edge.target if is_result else edge.source]
        is_parameter = not is_result and tensor.parameter
        shape = "" if tensor.shape is None else "scalar" if tensor.shape == () else str(list(tensor.shape))
        if source is not None and source.kind == PLACE:
            if is_result and edge.target not in self.nodes:  # otherwise the result has a box of its own
                _add(self.nodes[source.id], "gives", f"{tensor.name} {shape}" if tensor.name else shape)
        elif source is not None and source is not target and not (source.kind == SCOPE and is_parameter):
            name = _known_name(tensor) if source.kind == DATA_BOX else ""
            _add(self.nodes[source.id], "gives", f"{name} {shape}" if name else shape)
        if target is not None and (source is not target or self._leads_to_another_turn(edge, target)):
            if target.kind == SCOPE and is_parameter and tensor.name:
                _add(self.nodes[target.id], "reads", _name_in(target.scope, tensor))
            else:
                _add(self.nodes[target.id], "takes", shape)

    def _note_cut(self, edge: Edge, group: Group | None) -> None:
        box = self.nodes[group.id].box if group is not None else None
        if box is not None and edge.cut:
            box.cuts.add(edge.cut)
            box.due = box.due or edge.due

    def _leads_back(self, kind: str, source: str, target: str) -> bool:
        """Whether an edge closes a loop: a box that ran later leads to one that ran earlier, or to itself."""
        earlier, later = (target, source) if kind == GRAD else (source, target)
        return self.is_rolled and self.order[earlier] >= self.order[later]

    # --- turns of loops

    def _turns(self) -> dict[str, int]:
        """The turn of its group in which each node was computed."""
        turns: dict[str, int] = {}
        count: dict[str, int] = {}
        before = None
        for node in self.graph.nodes.values():
            if node.kind != OP:
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
            if node.kind == OP and node.pair and node.id in turns:
                turns[node.pair] = turns[node.id]
            elif node.maker and node.maker in turns:
                turns[node.id] = turns[node.maker]
        for edge in self.graph.edges:
            is_result = (
                edge.kind == DATA and edge.source in turns and self.graph.nodes[edge.source].kind == OP
            )
            if is_result and self.drawn_as.get(edge.target) is self.drawn_as[edge.source]:
                turns[edge.target] = turns[edge.source]
        return turns

    def _leads_to_another_turn(self, edge: Edge, group: Group | None) -> bool:
        """Whether an edge inside a group leads from one turn of a loop to another. A buffer of a module was made before
        the first turn, and no turn passes it to the next."""
        if group is None or group.kind not in (SCOPE, PLACE) or edge.kind not in (DATA, GRAD):
            return False
        if self.graph.nodes[edge.source].buffer:
            return False
        source, target = self.turns.get(edge.source), self.turns.get(edge.target)
        return source is not None and target is not None and source != target


def _is_read_by_rollout(source: Group | None, target: Group | None) -> bool:
    """Whether an edge leads into a box of data from outside: a rollout read a tensor of the network."""
    return target is not None and target.kind == DATA_BOX and source is not target


def _name_in(scope: str, parameter: Node) -> str:
    """The name of another module's parameter that a module reads; of a tied one, also its name in the module."""
    within = scope.replace("/", ".") + "."
    own = next((name.removeprefix(within) for name in parameter.tied if name.startswith(within)), "")
    return f"{parameter.name} as {own}" if own else parameter.name or ""


def _known_name(tensor: Node) -> str:
    """The name of a tensor, or the expression that made it; empty if it has only a number."""
    return tensor.name or (tensor.called if tensor.called != f"t{tensor.number}" else "")


def _add(node: Node, part: str, shape: str) -> None:
    if node.box is not None and shape:
        getattr(node.box, part)[shape] = None


def _worse(one: Edge, other: Edge) -> Snapshot | None:
    """The value of two merged edges: the gradient with NaN or inf if one has it, else the larger."""
    return max(one.value, other.value, key=_size)


def _size(value: Snapshot | None) -> float:
    stats = value.stats if value is not None else None
    if stats is None:
        return -1.0
    return math.inf if stats.nan or stats.inf else stats.rms
