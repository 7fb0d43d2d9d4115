"""Leaves of a short branch beside a main path that gets a far larger gradient: a residual block behind a small learned
scale (Touvron et al. 2021, "Going deeper with Image Transformers", section 2). Their small gradients have not vanished
on the way from layer to layer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.flow import reach

_LARGER = 1e2  # the gradient of the main path over the gradient of the branch
_LAYERS = 4  # the most layers of a branch whose parameters are among the leaves
_NODES = 64  # the most nodes of a branch that are looked at
_VIEWS = 4  # the most ops on a leaf alone that are looked at


def on_short_branch(case: Case, leaves: set[int], number: int) -> set[int]:
    """The leaves whose branch begins at a node with a far larger gradient. In the pass, this node received a gradient
    100 times as large as the first op that reads the leaf."""
    came = _received(case, number)
    return {leaf for leaf in leaves if _begins_at_a_stream(case, leaf, leaves, came)}


def _received(case: Case, number: int) -> dict[int, float]:
    """The largest root mean square of the gradients that each node received in a pass."""
    received = case.trace.table(Kind.RECEIVED)
    gradients = received.lists("gradients")
    in_pass = received["in_pass"][gradients.owners] == number
    states = case.trace.states
    rows = states.rows_of(gradients.values[in_pass], received.events[gradients.owners[in_pass]])
    rms = np.nan_to_num(states.rms(rows))
    largest: dict[int, float] = {}
    for node, size in zip(received["node"][gradients.owners[in_pass]].tolist(), rms.tolist(), strict=True):
        largest[node] = max(largest.get(node, 0.0), size)
    return largest


def _begins_at_a_stream(case: Case, leaf: int, leaves: set[int], came: dict[int, float]) -> bool:
    query = case.query
    joins = _joins(case, leaf)
    sound = _LARGER * max((came.get(node, 0.0) for node in joins), default=0.0) or np.inf
    layers = dict.fromkeys(joins, 1)

    def onward(node: int) -> Iterator[int]:
        for onwards in {edge.node for edge in query.nodes.edges(node)} - set(layers):
            op = query.nodes.op(onwards)
            if op is None:
                continue
            is_layer = op != query.nodes.op(node) and not leaves.isdisjoint(query.tensors.op(op).inputs)
            if layers[node] + is_layer <= _LAYERS:
                layers[onwards] = layers[node] + is_layer
                yield onwards

    reached = (edge.node for node in reach(joins, onward, _NODES) for edge in query.nodes.edges(node))
    return any(came.get(node, 0.0) >= sound for node in reached)


def _joins(case: Case, leaf: int) -> list[int]:
    """The nodes of the op in which a leaf, or a view of it such as `weight.t()`, meets a computed tensor; empty if
    there is no such op."""
    nodes, tensor = case.query.nodes, leaf
    for _ in range(_VIEWS):
        readers = case.downstream.readers(tensor)
        if not readers:
            return []
        joining = nodes.of_op(readers[0])
        led_to = {
            edge.node for node in joining for edge in nodes.edges(node) if nodes.made(edge.node) is not None
        }
        if led_to - set(joining):
            return joining
        outputs = case.query.tensors.op(readers[0]).outputs
        tensor = outputs[0] if outputs else 0
    return []
