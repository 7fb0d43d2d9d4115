"""A program's own functions are boxes where much is computed outside of modules."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.model import GRAD_FN, GROUP, LEAF, Graph, Node
from gradviz.pictures.node_text import lines_of
from tests.graph.test_graph import Traced, traced

__all__ = ["traced"]

BLOCKS = 5


def norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    spread = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / (spread + 1e-5).sqrt() * scale


def linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight


def feed_forward(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return linear(gelu(linear(x, up)), down)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.045 * x**3)))


def block(x: torch.Tensor, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    x = x + norm(linear(x, weights["mix"]), weights["scale"])
    return x + feed_forward(norm(x, weights["scale"]), weights["up"], weights["down"])


def network(x: torch.Tensor, blocks: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    for weights in blocks:
        x = block(x, weights)
    return x


def loss_of(x: torch.Tensor, blocks: list[dict[str, torch.Tensor]]) -> torch.Tensor:
    return (network(x, blocks) ** 2).mean()


def weights_of_a_block() -> dict[str, torch.Tensor]:
    shapes = {"mix": (4, 4), "scale": (4,), "up": (4, 8), "down": (8, 4)}
    return {name: (torch.randn(*shape) * 0.1).requires_grad_() for name, shape in shapes.items()}


def functional() -> None:
    blocks = [weights_of_a_block() for _ in range(BLOCKS)]
    loss_of(torch.randn(3, 4), blocks).backward()


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    low, high = torch.minimum(a, b), torch.maximum(a, b)
    gap = (high - low).clamp(min=0)
    return (gap**2).sum() / (gap.abs() + 1).mean() + gap.exp().log().sum()


def matching_loss(out: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(())
    for row, target in zip(out, targets, strict=True):
        shifted = (row + 1.0).sigmoid().log().neg().exp().tanh().sin().cos()
        total = total + distance(shifted, target) + distance(shifted * 2, target)
    return total / len(targets)


def training_step(net: torch.nn.Module, x: torch.Tensor, targets: list[torch.Tensor]) -> torch.Tensor:
    return matching_loss(net(x), targets)


def with_a_network() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 4))
    training_step(net, torch.randn(3, 2), [torch.rand(4) for _ in range(3)]).backward()


def picture_of(run: Callable[[], None], traced: Traced, **options: object) -> Graph:
    torch.manual_seed(0)
    with traced(run) as trace:
        return folded(build(trace, 1), **options)  # type: ignore[arg-type]


def boxes(graph: Graph) -> dict[str, Node]:
    return {node.name or "": node for node in graph.nodes.values() if node.kind == GROUP}


def test_a_network_of_plain_functions_is_boxes_named_by_them(traced: Traced) -> None:
    assert "block()" in boxes(picture_of(functional, traced, depth=1))


@pytest.mark.slow
def test_a_function_that_a_loop_calls_says_how_often(traced: Traced) -> None:
    assert boxes(picture_of(functional, traced, depth=0))["network()"].count == 1
    assert boxes(picture_of(functional, traced, depth=1))["block()"].count == BLOCKS


def test_a_function_is_a_box_for_each_line_that_calls_it(traced: Traced) -> None:
    shown = boxes(picture_of(functional, traced, depth=2))
    first = block.__code__.co_firstlineno
    assert [shown[f"norm() at line {line}"].count for line in (first + 1, first + 2)] == [BLOCKS, BLOCKS]


def test_leaves_are_inside_the_function_that_reads_them(traced: Traced) -> None:
    graph = picture_of(functional, traced, depth=1)
    texts = [text for _, text in lines_of(boxes(graph)["block()"], "both")]
    assert f"{4 * BLOCKS} leaves, {BLOCKS * (16 + 4 + 32 + 32)} elements" in texts
    assert any(text.startswith(".grad norm") for text in texts)
    assert not [node for node in graph.nodes.values() if node.kind in (LEAF, GRAD_FN) and node.requires_grad]


@pytest.mark.slow
def test_a_function_that_does_all_there_is_has_no_frame(traced: Traced) -> None:
    graph = picture_of(functional, traced)
    assert not any("loss_of" in path or "functional" in path for path in graph.scopes)


@pytest.mark.slow
def test_a_function_can_be_opened_by_its_name(traced: Traced) -> None:
    graph = picture_of(functional, traced, unfold=("feed_forward",))
    assert "gelu()" in boxes(graph)
    assert any(node.scope.endswith("feed_forward()") for node in graph.nodes.values())


@pytest.mark.slow
def test_a_loss_in_functions_is_boxes_beside_the_network(traced: Traced) -> None:
    graph = picture_of(with_a_network, traced)
    names = {path for path, scope in graph.scopes.items() if scope.plain}
    assert "matching_loss()" in names
    assert not any("training_step" in name for name in names)  # it calls the network
    assert any(node.name == "0" for node in graph.nodes.values())  # the network is open


def test_a_small_program_is_drawn_without_functions(traced: Traced) -> None:
    def run() -> None:
        weights = weights_of_a_block()
        feed_forward(torch.randn(3, 4), weights["up"], weights["down"]).sum().backward()

    assert not picture_of(run, traced).scopes


def test_a_call_in_a_loop_of_unknown_length_is_not_counted(traced: Traced) -> None:
    def summed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = torch.tanh(x * w + 1.0)
        return x

    def run() -> None:
        w = torch.randn(4, requires_grad=True)
        (summed(torch.ones(4), w).sum() + w.sum()).backward()

    graph = picture_of(run, traced, unfold=("summed",), rolled=True)
    assert {path: scope.calls for path, scope in graph.scopes.items()} == {"summed()": 1}


def test_several_nodes_of_one_operation_are_one_call(traced: Traced) -> None:
    def scored(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x @ w, torch.tensor([0, 1, 2]))

    def run() -> None:
        w = torch.randn(4, 4, requires_grad=True)
        (scored(torch.randn(3, 4), w) + w.sum()).backward()

    with traced(run) as trace:
        for show in ("both", "backward"):
            graph = folded(build(trace, 1, show), unfold=("scored",), rolled=True)
            assert {path: scope.calls for path, scope in graph.scopes.items()} == {"scored()": 1}
