"""The equal blocks of a network are one box; those that differ are drawn by name."""

from __future__ import annotations

import pytest

import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.function_scopes import with_equal_blocks
from gradviz.graph.groups import SCOPE
from gradviz.graph.model import Graph
from gradviz.pictures.scene import scene_of
from tests.graph.test_graph import Traced, traced

__all__ = ["traced"]

BLOCKS = 8


class Block(torch.nn.Module):
    """Two layers, each behind a rectifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2, self.act = torch.nn.Linear(4, width), torch.nn.Linear(width, 4), torch.nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.01 * self.act(self.fc2(self.act(self.fc1(x))) + 3.0)


class Net(torch.nn.Module):
    """Blocks, of which some are wider."""

    def __init__(self, count: int = BLOCKS, wider: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.h = torch.nn.ModuleList([Block(16 if number in wider else 8) for number in range(count)])
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            x = block(x)
        return self.head(x)


def graph_of(net: torch.nn.Module, traced: Traced) -> Graph:
    torch.manual_seed(0)

    def run() -> None:
        net(torch.randn(3, 4)).pow(2).mean().backward()

    with traced(run) as trace:
        return build(trace)


def modules(graph: Graph) -> dict[str, int]:
    """The modules of a picture by the end of their path, each with how often it ran."""
    boxes = [node for node in graph.nodes.values() if node.op == SCOPE]
    return {f"{node.scope}/{node.name}".partition("/")[2]: node.count for node in boxes}


def test_equal_blocks_are_one_that_is_open(traced: Traced) -> None:
    shown = modules(folded(graph_of(Net(), traced)))
    family = "h.0 … h.7"
    assert shown == {f"{family}/fc1": BLOCKS, f"{family}/act": BLOCKS, f"{family}/fc2": BLOCKS, "head": 1}


class Reversed(torch.nn.Module):
    """A module whose forward nobody calls, as in flows that run backwards."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = Block(width)

    def inverse(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class Flow(Net):
    def __init__(self) -> None:
        super().__init__()
        self.h = torch.nn.ModuleList([Reversed(8) for _ in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.h:
            x = block.inverse(x)
        return self.head(x)


def test_blocks_inside_numbered_modules_that_are_not_called_are_one(traced: Traced) -> None:
    assert {f"h.0.inner … h.7.inner/{name}" for name in ("fc1", "act", "fc2")} <= {
        *modules(folded(graph_of(Flow(), traced)))
    }


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 48])
def test_the_picture_is_as_large_for_any_number_of_blocks(traced: Traced, count: int) -> None:
    assert len(folded(graph_of(Net(count), traced)).nodes) == len(folded(graph_of(Net(6), traced)).nodes)


def test_a_block_of_another_structure_has_its_own_name(traced: Traced) -> None:
    shown = modules(folded(graph_of(Net(wider=(3,)), traced)))
    assert shown["h.0 … h.7/fc1"] == BLOCKS - 1
    assert any(name.startswith("h.3") for name in shown)


def test_so_has_one_whose_gradient_is_much_smaller(traced: Traced) -> None:
    net = Net()
    with torch.no_grad():
        net.h[5].fc2.bias.fill_(-10.0)  # nothing passes the last rectifier
    shown = modules(folded(graph_of(net, traced)))
    assert shown["h.0 … h.7/fc1"] == BLOCKS - 1
    assert any(name.startswith("h.5") for name in shown)


@pytest.mark.parametrize("name", ["h.2/fc1", "h.2.fc1"])
def test_a_module_inside_a_block_is_unfolded_in_that_block_alone(traced: Traced, name: str) -> None:
    shown = modules(folded(graph_of(Net(), traced), unfold=[name]))
    assert "h.2/fc1" not in shown
    assert shown["h.2/fc2"] == 1
    assert shown["h.0 … h.7/fc1"] == BLOCKS - 1


def test_so_has_one_that_is_unfolded_by_name(traced: Traced) -> None:
    graph = graph_of(Net(), traced)
    shown = modules(folded(graph, unfold=["h.2"]))
    assert shown["h.2/fc1"] == 1
    assert shown["h.0 … h.7/fc1"] == BLOCKS - 1


def test_three_equal_blocks_stay_three(traced: Traced) -> None:
    graph = graph_of(Net(3), traced)
    assert with_equal_blocks(graph) is graph


def test_a_number_of_levels_shows_each_block(traced: Traced) -> None:
    shown = modules(folded(graph_of(Net(), traced), depth=1))
    assert {f"h.{number}" for number in range(BLOCKS)} <= {*shown}


def test_a_box_has_the_range_of_the_norms_over_the_blocks(traced: Traced) -> None:
    scene = scene_of(folded(graph_of(Net(), traced)))
    (lines,) = [thing.lines for thing in scene.things.values() if thing.lines[0][1] == "fc1 · Linear ×8"]
    told = [text for _, text in lines]
    assert told[2] == "16 parameters, 320 elements"
    assert told[3].startswith(".grad norm ")
    assert told[4].endswith(" each")
    assert len(told[5]) == BLOCKS
    assert "Block ×8" in scene.types.values()
