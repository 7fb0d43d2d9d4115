"""What only prepares data is one box where it comes into the network."""

from __future__ import annotations

from collections.abc import Callable

import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.groups import DATA_BOX, SCOPE
from gradviz.graph.model import DATA, OP, Graph, Node
from gradviz.pictures.node_text import lines_of
from tests.graph.test_graph import Traced, traced

__all__ = ["traced"]


def net_of(layers: int = 6) -> torch.nn.Module:
    return torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(layers)))


def picture_of(run: Callable[[], None], traced: Traced, unfold: tuple[str, ...] = ()) -> Graph:
    torch.manual_seed(0)
    with traced(run) as trace:
        return folded(build(trace, 1), unfold=unfold)


def data_of(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if node.op == DATA_BOX]


def texts(node: Node) -> list[str]:
    return [text for _, text in lines_of(node, "both")]


def noisy() -> None:
    net = net_of()
    points = torch.zeros(50, 2)
    net(points + 0.001 * torch.ones(50, 2)).sum().backward()


def test_of_a_long_expression_a_box_of_data_cuts_the_expression_not_the_shape(traced: Traced) -> None:
    (data,) = data_of(picture_of(noisy, traced))
    assert texts(data)[1] == "points + 0.001 * torch.ones(50,… [50, 2]"


def filled_in_a_loop() -> None:
    net = net_of()
    points = torch.zeros(50, 2)
    for number in range(50):
        points[number] = torch.rand(2) * 2 - 1
    net(points).sum().backward()


def test_a_data_set_that_is_filled_in_a_loop_is_one_box(traced: Traced) -> None:
    (data,) = data_of(picture_of(filled_in_a_loop, traced))
    name, comes_in, size = texts(data)
    assert (name, comes_in) == ("data", "points [50, 2]")
    assert size == f"{data.held[OP]} ops on {data.held['tensor'] + data.held['leaf']} tensors"
    assert data.held[OP] >= 150


def test_data_opens_on_demand(traced: Traced) -> None:
    graph = picture_of(filled_in_a_loop, traced, ("data",))
    assert not data_of(graph)
    assert len(graph.nodes) > 150


def test_what_comes_in_at_two_places_of_one_computation_is_one_box(traced: Traced) -> None:
    def run() -> None:
        rows = torch.rand(20, 3) * 2 - 1
        inputs, targets = rows[:, :2] / 2, rows[:, 2:] / 2
        torch.nn.functional.mse_loss(net_of()(inputs)[:, :1], targets).backward()

    (data,) = data_of(picture_of(run, traced))
    assert texts(data)[1:3] == ["inputs [20, 2]", "targets [20, 1]"]


def test_many_tensors_that_one_op_puts_together_are_one_box(traced: Traced) -> None:
    def run() -> None:
        rewards = [torch.tensor([float(number)]) for number in range(12)]
        (net_of()(torch.ones(12, 2))[:, 0] - torch.cat(rewards)).pow(2).mean().backward()

    (data,) = data_of(picture_of(run, traced))
    assert texts(data) == ["data", "torch.cat(rewards) [12]", "1 op on 13 tensors"]


def test_a_mask_that_a_module_holds_is_inside_its_box(traced: Traced) -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = net_of(8)
            self.register_buffer("mask", torch.tril(torch.ones(4, 4)).view(1, 4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.mask @ x)

    def run() -> None:
        net = Masked()
        net(torch.ones(1, 4, 2)).sum().backward()

    (data,) = data_of(picture_of(run, traced))
    assert data.scope == "net"


def test_a_mask_written_in_place_that_several_blocks_hold_is_inside_what_holds_these(traced: Traced) -> None:
    class Block(torch.nn.Module):
        def __init__(self, mask: torch.Tensor) -> None:
            super().__init__()
            self.inner = net_of(2)
            self.register_buffer("mask", mask)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(self.mask @ x)

    class Tower(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            mask = torch.full((4, 4), 0.5).triu_(1)
            self.blocks = torch.nn.Sequential(Block(mask), Block(mask))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.blocks(x)

    def run() -> None:
        tower = Tower()
        tower(torch.ones(4, 2)).sum().backward()

    (data,) = data_of(picture_of(run, traced))
    assert data.scope == "tower/blocks"
    assert texts(data)[-1] == "1 op on 2 tensors"


def test_a_rollout_is_data_and_counts_as_no_call_of_the_network(traced: Traced) -> None:
    def run() -> None:
        policy, target = net_of(3), net_of(3)
        state, memory = torch.ones(1, 2), []
        for _ in range(10):
            with torch.no_grad():
                action = policy(state).max(1).indices.view(1, 1)
            state = state * 0.5 + 0.1 * action
            memory.append(state)
        states = torch.cat(memory)
        values = policy(states).max(1).values
        with torch.no_grad():
            aims = target(states).max(1).values
        torch.nn.functional.mse_loss(values, aims).backward()

    graph = picture_of(run, traced)
    (data,) = data_of(graph)
    assert "states [10, 2]" in texts(data)
    modules = [node for node in graph.nodes.values() if node.op == SCOPE]
    assert {node.scope.partition("/")[0] or node.name for node in modules} == {"policy", "target"}
    assert all(node.count == 1 for node in modules)
    assert all(scope.calls == 1 for scope in graph.scopes.values())
    into = [edge for edge in graph.edges if edge.kind == DATA and edge.target == data.id]
    assert not into  # the network's parameters do not lead to it


def test_a_single_operation_on_named_data_stays_as_it_is(traced: Traced) -> None:
    def run() -> None:
        x = torch.ones(4)
        y = x.view(2, 2)
        net_of()(y).sum().backward()

    graph = picture_of(run, traced)
    assert not data_of(graph)
    assert [node.name for node in graph.nodes.values() if node.name == "x"] == ["x"]


class Noisy(torch.nn.Module):
    """A policy that makes noise in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        return self.layer(state) + torch.empty(2).normal_()


def test_a_rollout_that_makes_noise_in_its_network_is_data(traced: Traced) -> None:
    def run() -> None:
        policy, net = Noisy(), net_of(12)
        state = torch.zeros(2)
        states = []
        for _ in range(20):
            with torch.no_grad():
                state = state + 0.1 * policy(state)
            states.append(state)
        net(torch.stack(states)).sum().backward()

    graph = picture_of(run, traced)
    assert len(data_of(graph)) == 1
    assert not any(node.name == "policy" for node in graph.nodes.values())
