"""The tangents of forward mode in a graph: at the tensors, along the edges, and as sums."""

from __future__ import annotations

import gradviz.engine as torch
from gradviz.engine.autograd import forward_ad
from gradviz.graph.build import build
from gradviz.graph.model import DATA, Graph
from gradviz.pictures.node_text import lines_of
from tests.graph.test_graph import Traced, traced

__all__ = ["traced"]


def swept() -> None:
    with forward_ad.dual_level():
        w1 = forward_ad.make_dual(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 4.0]))
        w2 = torch.tensor([3.0, 5.0])
        w3 = w1 * w2
        w4 = torch.relu(w3 - 6.0)
        w5 = w4.sum()
        assert w5.requires_grad is False


def grad_lines(graph: Graph, name: str) -> list[str]:
    node = next(node for node in graph.nodes.values() if node.name == name)
    return [text for role, text in lines_of(node, graph.show) if role == "grad"]


def test_a_tangent_is_shown_as_the_sum_that_makes_it(traced: Traced) -> None:
    with traced(swept) as trace:
        assert grad_lines(build(trace), "w3") == ["tangent = [3, 20]", "= [3, 5] × [1, 4]"]


def test_a_sum_that_does_not_make_the_tangent_is_not_shown(traced: Traced) -> None:
    with traced(swept) as trace:
        assert grad_lines(build(trace), "w5") == ["tangent = 0"]


def test_the_edges_along_which_tangents_moved_are_marked(traced: Traced) -> None:
    with traced(swept) as trace:
        graph = build(trace)
    ends = {
        (graph.nodes[edge.source].label, graph.nodes[edge.target].label)
        for edge in graph.edges
        if edge.kind == DATA and edge.tangent
    }
    assert ("w1", "mul") in ends
    assert ("mul", "w3") in ends
    assert ("w2", "mul") not in ends
