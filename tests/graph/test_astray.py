"""Branches that no root was computed from: they are marked, and a pass's picture has those that hold parameters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradviz.engine as torch
from gradviz.engine import nn
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.model import GROUP, OP, Graph
from gradviz.pictures.render import svg
from gradviz.pictures.scene import caption
from gradviz.sources.record import record
from gradviz.tracefile import open_trace

Drawn = Callable[..., Graph]


@pytest.fixture
def drawn(tmp_path: Path) -> Drawn:
    """The graph of a function's run: of a pass by its number, or as the picture has it."""

    def graph(program: Callable[[], Any], number: int | None = None) -> Graph:
        with record(tmp_path / "run.gradviz"):
            program()
        return build(open_trace(tmp_path / "run.gradviz"), number)

    return graph


def astray(graph: Graph) -> list[str | None]:
    return [node.name for node in graph.nodes.values() if node.kind in (OP, GROUP) and node.astray]


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.aux = nn.Linear(3, 4), nn.Linear(4, 2), nn.Linear(4, 1)

    def forward(self, x: Any) -> tuple[Any, Any]:
        h = torch.relu(self.body(x))
        return self.head(h), self.aux(h)


def training(uses_aux: bool) -> None:
    net = Heads()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        out, aux = net(torch.randn(5, 3))
        loss = out.pow(2).mean()
        extra = aux.exp().mean()
        optimizer.zero_grad()
        (loss + extra if uses_aux else loss).backward()
        optimizer.step()


def test_a_pass_has_the_branch_whose_parameters_no_loss_reaches(drawn: Drawn) -> None:
    graph = drawn(lambda: training(uses_aux=False), 1)
    assert astray(graph) == ["t", "addmm", "exp", "mean"]
    assert "net.aux.weight" in {node.name for node in graph.nodes.values()}
    assert astray(folded(graph, 1)) == ["aux", "exp", "mean"]  # and not the network that holds it


def test_a_branch_in_the_loss_is_not_astray(drawn: Drawn) -> None:
    assert astray(drawn(lambda: training(uses_aux=True), 1)) == []


def test_a_pass_has_no_branch_whose_parameters_it_has_already(drawn: Drawn) -> None:
    def program() -> None:
        net = Heads()
        for _ in range(3):
            out, aux = net(torch.randn(5, 3))
            norm = net.body.weight.norm()  # for a log
            (out.mean() + aux.mean()).backward()
            del norm

    graph = drawn(program, 2)
    assert "linalg_vector_norm" not in {node.op for node in graph.nodes.values()}
    assert astray(graph) == []


def test_what_a_later_pass_begins_with_is_not_astray(drawn: Drawn) -> None:
    def program() -> None:
        net = Heads()
        for _ in range(2):
            out, aux = net(torch.randn(5, 3))
            out.mean().backward(retain_graph=True)
            aux.mean().backward()

    assert astray(drawn(program, 1)) == []


def test_what_is_written_through_a_view_into_a_root_is_not_astray(drawn: Drawn) -> None:
    def program() -> None:
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        out = torch.zeros(2, 2)
        out[0].copy_(w.exp())
        out[1] = w * 2
        out.sum().backward()

    assert astray(drawn(program)) == []


def test_a_picture_hatches_a_branch_and_says_what_that_means(drawn: Drawn) -> None:
    def program() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        y = x * 3
        y.exp()
        y.sin().backward()

    graph = drawn(program)
    assert astray(graph) == ["exp"]
    assert "▥ reaches no root" in " ".join(caption(graph))
    assert 'class="node op astray"' in svg(graph)
