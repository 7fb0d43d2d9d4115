"""The edges of a graph, from the events of its part of a run."""

from __future__ import annotations

from collections.abc import Iterable

from gradviz.events.kinds import OpRan, TensorMade
from gradviz.events.listener import REQUIRES_GRAD
from gradviz.graph import model as m
from gradviz.graph.history import FIRST, History, State
from gradviz.graph.model import Edge, Node
from gradviz.graph.select import Part


def edges_of(history: History, part: Part, grad_fns: Iterable[int], nodes: dict[str, Node]) -> list[Edge]:
    """The edges among `nodes`: those of a part of a run, and those that lead on from `grad_fns`."""
    edges: list[Edge] = []
    for event in sorted(part.ops):
        edges += _of_op(history, history.op(event))
    for event in sorted(part.writes):
        mutated = history.mutation(event)
        source, result = history.before(mutated.source, event), State(mutated.tensor, event)
        name = history.op_ids[event]
        edges.append(Edge(history.id_of(source), name, m.DATA))
        edges.append(Edge(name, history.id_of(result), m.DATA))
    for state in sorted(part.states):
        edges += _mutation_or_view(history, state)
    ids = history.node_ids
    for number in grad_fns:
        made_by = history.node_op(number)
        if made_by is not None:
            name = ids[number]
            edges += [Edge(name, ids[target], m.GRAD) for target, _ in history.op(made_by).edges if target]
    return [edge for edge in edges if edge.source in nodes and edge.target in nodes]


def _of_op(history: History, op: OpRan) -> list[Edge]:
    """What an op read, what it made, and what it saved for its grad_fn."""
    name, id_of = history.op_ids[op.index], history.id_of
    ways = op.edges if op.node and len(op.inputs) == len(op.edges) else ()
    edges = [
        Edge(id_of(state), name, m.DATA, "", "" if ways and ways[i][0] else _why_cut(history, op, i))
        for i, state in enumerate(history.reads(op.index))
        if state
    ]
    edges += [Edge(name, id_of(history.output(tensor)), m.DATA) for tensor in op.outputs]
    if not (op.node and op.saved):
        return edges
    states = [
        history.output(tensor) if tensor in op.outputs else history.before(tensor, op.index)
        for tensor, _ in op.saved
        if tensor
    ]
    node = history.node_ids[op.node]
    return edges + [Edge(name, node, m.SAVED) for name in dict.fromkeys(map(id_of, states))]


def _why_cut(history: History, op: OpRan, position: int) -> str:
    """Why no gradient comes back to an op's input that requires grad; empty where one does."""
    if op.node and len(op.inputs) != len(op.edges):
        return ""
    if not history.flags(op.inputs[position], op.index - 1) & REQUIRES_GRAD:
        return ""
    if op.node:
        return "not differentiable"
    if op.op == "detach":
        return "detach"
    output = history.trace.shape(op.outputs[0]) if op.outputs else None
    is_real = output is None or output[1].startswith(("float", "bfloat", "complex"))
    return "no_grad" if is_real else "not differentiable"


def _mutation_or_view(history: History, state: State) -> list[Edge]:
    """The edge from what a tensor was before it was written over, or from the tensor whose memory it shares."""
    if state.since != FIRST:
        before = history.before(state.tensor, state.since)
        how = history.mutation(state.since).how
        return [Edge(history.id_of(before), history.id_of(state), m.MUTATION, label=how)]
    base = history.base(state)
    if base is None:
        return []
    made = history.made(state.tensor)
    cut = ""
    if isinstance(made, TensorMade) and history.flags(base.tensor, made.index) & REQUIRES_GRAD:
        cut = made.how
    return [Edge(history.id_of(base), history.id_of(state), m.VIEW, cut=cut)]
