"""The edges of a graph, from the events of its part of a run."""

from __future__ import annotations

from collections.abc import Iterable

from gradviz.events.kinds import OpRan, TensorMade
from gradviz.graph import model as m
from gradviz.graph.ids import Ids
from gradviz.graph.model import Edge, Node
from gradviz.graph.select import Part
from gradviz.query import FIRST, Query, State
from gradviz.query.flow import Reason, computed_from, why_no_node

# Labels of edges along which no gradient flows back.
CUTS = {
    Reason.DETACHED: "detach",
    Reason.GRAD_MODE_OFF: "no_grad",
    Reason.NOT_DIFFERENTIABLE: "not differentiable",
    Reason.NOTHING_REQUIRES_GRAD: "",
}


class Edges:
    """Makes the edges between the nodes of one graph."""

    def __init__(self, query: Query, ids: Ids, nodes: dict[str, Node]) -> None:
        self.query, self.tensors, self.ids, self.nodes = query, query.tensors, ids, nodes

    def of(self, part: Part, grad_fns: Iterable[int]) -> list[Edge]:
        """The edges of a part of a run, and the edges of the nodes `grad_fns`."""
        edges: list[Edge] = []
        for event in sorted(part.ops):
            edges += self._of_op(self.tensors.op(event))
        for event in sorted(part.writes):
            mutated, name = self.tensors.mutation(event), self.ids.op[event]
            source = self.tensors.before(mutated.source, event)
            edges.append(Edge(self.ids.tensor(source), name, m.DATA))
            edges.append(Edge(name, self.ids.tensor(State(mutated.tensor, event)), m.DATA))
        for state in sorted(part.states):
            edges += self._write_or_view(state)
        node_ids = self.ids.node
        for number in grad_fns:
            edges += [
                Edge(node_ids[number], node_ids[edge.node], m.GRAD)
                for edge in self.query.nodes.edges(number)
                if edge.node
            ]
        return [edge for edge in edges if edge.source in self.nodes and edge.target in self.nodes]

    def _of_op(self, op: OpRan) -> list[Edge]:
        """Edges for the inputs and outputs of an op, and for the tensors that its nodes saved."""
        name, tensors = self.ids.op[op.index], self.tensors
        made = self.query.nodes.of_op(op.index)
        led_to = {edge.tensor for node in made for edge in self.query.nodes.edges(node) if edge.node}
        edges = [
            Edge(self.ids.tensor(state), name, m.DATA, "", self._cut(op, state.tensor, bool(made), led_to))
            for state in tensors.reads(op.index)
            if state
        ]
        edges += [
            Edge(name, self.ids.tensor(tensors.after(tensor, op.index)), m.DATA) for tensor in op.outputs
        ]
        for node in made:
            states = [
                tensors.after(saved.tensor, op.index)
                if saved.tensor in op.outputs and saved.tensor not in op.inputs
                else tensors.before(saved.tensor, op.index)
                for saved in self.query.nodes.saved(node)
                if saved.tensor
            ]
            ids = dict.fromkeys(map(self.ids.tensor, states))
            edges += [Edge(tensor, self.ids.node[node], m.SAVED) for tensor in ids]
        return edges

    def _cut(self, op: OpRan, tensor: int, has_node: bool, led_to: set[int]) -> str:
        """The reason why no gradient flows back to an input that requires grad. Empty if a gradient does flow back, if
        the input does not require grad, or if it gives only a shape."""
        if tensor in led_to or (has_node and 0 in led_to) or tensor not in computed_from(op):
            return ""
        base = self.tensors.base(State(tensor, FIRST))
        if base is not None and base.tensor in led_to:
            return ""
        if not self.tensors.requires_grad(tensor, op.index - 1):
            return ""
        return CUTS[Reason.NOT_DIFFERENTIABLE if has_node else why_no_node(self.query, op)]

    def _write_or_view(self, state: State) -> list[Edge]:
        """The edge from the earlier state of a tensor that was changed in place, or from the base of a view."""
        tensors, ids = self.tensors, self.ids
        if state.since != FIRST:
            before = tensors.before(state.tensor, state.since)
            how = tensors.writer(state.since)
            return [Edge(ids.tensor(before), ids.tensor(state), m.MUTATION, label=how)]
        base = tensors.base(state)
        if base is None:
            return []
        made = tensors.made(state.tensor)
        cut = ""
        if isinstance(made, TensorMade) and tensors.requires_grad(base.tensor, made.index):
            cut = made.how
        return [Edge(ids.tensor(base), ids.tensor(state), m.VIEW, cut=cut)]
