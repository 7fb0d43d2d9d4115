"""Pictures of passes within passes, and of what a pass was not asked for."""

from __future__ import annotations

import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.groups import RUN, SCOPE
from gradviz.graph.model import Graph
from gradviz.pictures.node_text import lines_of
from tests.graph.test_graph import Traced, traced

__all__ = ["traced"]


def net_of(layers: int) -> torch.nn.Module:
    parts = [part for _ in range(layers) for part in (torch.nn.Linear(4, 4), torch.nn.Tanh())]
    return torch.nn.Sequential(*parts, torch.nn.Linear(4, 1))


def physics() -> None:
    """A derivative of a network with respect to its input, and a loss of it."""
    torch.manual_seed(0)
    net = net_of(3)
    x = torch.randn(5, 4).requires_grad_(True)
    u = net(x)
    (slope,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
    (slope.pow(2).mean() + u.pow(2).mean()).backward()


def pictured(traced: Traced, number: int | None = None) -> Graph:
    with traced(physics) as trace:
        return folded(build(trace, number), rolled=True)


def test_what_a_pass_computed_for_a_later_one_is_one_box(traced: Traced) -> None:
    (inner,) = [node for node in pictured(traced, 2).nodes.values() if node.op == RUN]
    assert inner.name == "pass 1"
    assert inner.held["op"] > 5
    assert inner.held["op"] == inner.held["grad_fn"]


def test_it_opens_by_its_name(traced: Traced) -> None:
    with traced(physics) as trace:
        graph = folded(build(trace, 2), unfold=["pass 1"])
    assert not [node for node in graph.nodes.values() if node.op == RUN]


def test_no_gradient_is_missing_that_the_pass_was_not_asked_for(traced: Traced) -> None:
    boxes = [node for node in pictured(traced, 1).nodes.values() if node.op == SCOPE]
    assert boxes
    assert not [text for box in boxes for _, text in lines_of(box, "both") if ".grad = None" in text]


def test_the_pass_that_is_shown_first_sets_grad(traced: Traced) -> None:
    def steps() -> None:
        for _ in range(3):
            physics()

    with traced(steps) as trace:
        graph = build(trace)
    assert (graph.pass_number, graph.why) == (2, "the first that sets .grad")


def test_a_cut_in_a_penalty_is_no_reason_to_show_it(traced: Traced) -> None:
    def step() -> None:
        w = torch.ones(3, requires_grad=True)
        x = (w * 2).detach().requires_grad_()
        (slope,) = torch.autograd.grad((x * w).pow(2).sum(), x, create_graph=True)
        slope.pow(2).sum().backward()

    with traced(lambda: [step() for _ in range(2)]) as trace:
        assert build(trace).pass_number == 2


def test_a_tensor_that_a_module_without_parameters_makes_is_in_the_box_of_its_call(traced: Traced) -> None:
    class Waves(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return torch.sin(t[:, None] * torch.exp(-torch.arange(4.0)))

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.waves, self.layers = Waves(), net_of(6)

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return self.layers(self.waves(t))

    def run() -> None:
        model = Net()
        model(torch.ones(5)).mean().backward()

    with traced(run) as trace:
        graph = folded(build(trace), depth=1)
    assert [node.name for node in graph.nodes.values() if node.op == SCOPE].count("waves") == 1


def test_equal_blocks_share_the_box_of_their_rectifier(traced: Traced) -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.inner = (torch.nn.LayerNorm(4), torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(4, 4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(self.norm(x))

    def run() -> None:
        blocks = torch.nn.Sequential(torch.nn.Linear(4, 4), *(Block() for _ in range(6)))
        blocks(torch.randn(3, 4)).pow(2).mean().backward()

    torch.manual_seed(0)
    with traced(run) as trace:
        graph = folded(build(trace), rolled=True)
    rectifiers = [node for node in graph.nodes.values() if node.box is not None and node.box.type == "SiLU"]
    assert [node.count for node in rectifiers] == [6]
