"""Slices of a graph: around a node, from one to another, only what requires grad; and finding what is meant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradviz.graph.model import DATA, GRAD, GRAD_FN, OP, Graph
from gradviz.graph.slices import SliceError, around, between, find_nodes, only_grad
from tests.graph.graph_samples import program, programs


def distances(graph: Graph, start: str) -> dict[str, int]:
    """How many edges away each node is, whichever way the edges go."""
    near: dict[str, set[str]] = {}
    for edge in graph.edges:
        near.setdefault(edge.source, set()).add(edge.target)
        near.setdefault(edge.target, set()).add(edge.source)
    found = {start: 0}
    for name in (order := [start]):
        for other in near.get(name, ()):
            if other not in found:
                found[other] = found[name] + 1
                order.append(other)
    return found


def after(graph: Graph, start: str) -> set[str]:
    """What is computed from a node: along data, and back along what gradients come."""
    onward: dict[str, set[str]] = {}
    for edge in graph.edges:
        if edge.kind == DATA:
            onward.setdefault(edge.source, set()).add(edge.target)
        if edge.kind == GRAD:
            onward.setdefault(edge.target, set()).add(edge.source)
    order = [start]
    found = {start}
    for name in order:
        order += onward.get(name, set()) - found
        found |= onward.get(name, set())
    return found


def with_pairs(graph: Graph, names: set[str]) -> set[str]:
    return names | {graph.nodes[name].pair for name in names} - {""}


@given(programs(25), st.integers(0, 5), st.data())
def test_around_a_node_is_what_is_so_many_edges_away(graph: Graph, hops: int, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(graph.nodes)))
    part = around(graph, name, hops)
    near = {other for other, far in distances(graph, name).items() if far <= hops}
    assert set(part.nodes) == with_pairs(graph, near)
    assert [e for e in graph.edges if {e.source, e.target} <= set(part.nodes)] == part.edges


@given(programs(25), st.data())
def test_between_two_nodes_is_what_lies_on_a_way(graph: Graph, data: st.DataObject) -> None:
    start, end = (data.draw(st.sampled_from(sorted(graph.nodes))) for _ in range(2))
    way = {name for name in after(graph, start) if end in after(graph, name)}
    if not way:
        with pytest.raises(SliceError, match=f"no path leads from '{start}' to '{end}' in this graph"):
            between(graph, start, end)
        return
    assert set(between(graph, start, end).nodes) == with_pairs(graph, way)


@given(programs(25))
def test_only_what_requires_grad(graph: Graph) -> None:
    part = only_grad(graph)
    for name, node in graph.nodes.items():
        takes_part = node.kind == GRAD_FN or node.requires_grad or (node.kind == OP and bool(node.grad_fn))
        assert (name in part.nodes) == takes_part


def test_a_slice_says_what_was_left_out_and_leaves_the_graph_as_it_was() -> None:
    graph = program([("mul", "", [0], True)] * 5)
    part = around(graph, "w3", 1)
    left = len(graph.nodes) - len(part.nodes)
    assert part.notes == [f"at most 1 edge around w3: {left} of {len(graph.nodes)} nodes left out"]
    assert graph.notes == []
    assert "at most 2 edges around w3" in around(graph, "w3", 2).notes[0]


@pytest.mark.parametrize(
    ("text", "found"),
    [("t2", ["t2"]), ("w2", ["t2"]), ("mulBackward0", ["n4"]), ("add", ["op5"]), ("made_up.py:5", ["op5"])],
)
def test_a_node_is_found_by_id_name_grad_fn_op_and_place(text: str, found: list[str]) -> None:
    assert find_nodes(program([("mul", "", [0], True), ("add", "", [0], True)]), text) == found


def test_an_unknown_node_gets_one_line_that_names_the_nearest() -> None:
    graph = program([("mul", "", [0], True)])
    with pytest.raises(SliceError, match="there is no node 'mulBackwrd0' in this graph: did you mean 'mulBackward0'"):
        find_nodes(graph, "mulBackwrd0")
    with pytest.raises(
        SliceError, match="there is no node '§' in this graph: give a name, an id such as t3, or FILE:LINE"
    ):
        find_nodes(Graph(), "§")
