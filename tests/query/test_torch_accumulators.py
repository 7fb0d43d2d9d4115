"""A leaf has another AccumulateGrad once nothing leads to the first: both belong to its module."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.graph.fold import folded  # noqa: E402
from gradviz.query.nodes import ACCUMULATE  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402

pytestmark = pytest.mark.torch


class Quantizer(torch.nn.Module):
    """The nearest code: the distances lead to the codes, and are gone when these are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = torch.nn.Embedding(5, 3)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        index = torch.cdist(z, self.codes.weight).argmin(-1)
        return self.codes(index)


def test_the_accumulator_of_a_graph_that_is_gone_is_in_its_module(tmp_path: Path) -> None:
    net = Quantizer()
    with gradviz.record(tmp_path / "run.gradviz"):
        net(torch.randn(4, 3)).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        graph = build(trace)
    assert sum(node.grad_fn == ACCUMULATE for node in graph.nodes.values()) == 2
    shown = folded(graph, depth=1)
    assert [node.grad_fn for node in shown.nodes.values() if node.kind == "grad_fn"] == []
