"""A program's own functions are boxes where much is computed outside of modules."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.graph.model import GRAD_FN, GROUP, LEAF, Graph, Node
from gradviz.pictures.node_text import lines_of
from gradviz.pictures.render import svg
from gradviz.pictures.scene import scene_of
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


def slope(y: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return torch.tanh(y @ matrix) - 0.1 * y


def solver_step(y: torch.Tensor, matrix: torch.Tensor, h: float) -> torch.Tensor:
    k1 = slope(y, matrix)
    k2 = slope(y + h / 2 * k1, matrix)
    k3 = slope(y + h / 2 * k2, matrix)
    k4 = slope(y + h * k3, matrix)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


def solver() -> None:
    y, matrix = torch.tensor([2.0, 0.0]), torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], requires_grad=True)
    for _ in range(12):
        y = solver_step(y, matrix, 0.05)
    (y**2).sum().backward()


def test_a_function_that_several_lines_of_a_solver_call_is_a_box_at_each(traced: Traced) -> None:
    shown = boxes(picture_of(solver, traced))
    assert sum(name.startswith("slope()") and box.count == 12 for name, box in shown.items()) == 4
    assert "tanh" not in shown


class Field(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(2, 2)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.net(y))


def midpoint(y: torch.Tensor, f: Field) -> torch.Tensor:
    k1 = f(y)
    k2 = f(y + 0.1 * k1)
    k3 = f(y + 0.1 * (k2 - k1))
    k4 = f(y + 0.2 * (k3 - k2 + k1))
    k5 = f(y + 0.2 * (k4 - k3 + k2 - k1))
    return 0.1 * (k1 + 3 * (k2 + k3) + k4 + k5)


def solved_field() -> None:
    f, y = Field(), torch.ones(3, 2)
    for _ in range(12):
        y = y + midpoint(y, f)
    (y**2).mean().backward()


def test_a_step_that_calls_a_module_has_the_parameters_of_the_module(traced: Traced) -> None:
    graph = picture_of(solved_field, traced, depth=0)
    step = boxes(graph)["midpoint()"]
    assert step.count == 12
    assert step.box is not None
    assert {leaf.name for leaf in step.box.parameters.values()} == {"f.net.weight", "f.net.bias"}
    assert not any(node.name == "f" for node in graph.nodes.values())


SCRIPT = "\n".join(
    [
        "import gradviz.engine as torch",
        "w = torch.tensor([0.3, 0.2], requires_grad=True)",
        "v0 = torch.tensor([0.5, 0.1])",
        *(f"v{i} = (v{i - 1} * w + v{max(0, i - 3)}).sin()" for i in range(1, 60)),
        "v59.sum().backward()",
    ]
)


def test_a_long_program_without_functions_is_boxes_of_its_lines(traced: Traced) -> None:
    def run() -> None:
        exec(compile(SCRIPT, "long.py", "exec"), {"__name__": "__main__"})

    graph = picture_of(run, traced)
    shown = boxes(graph)
    assert len(shown) <= 10
    assert "lines 4–11" in shown
    assert graph.notes == ["folded: 178 ops into 8 groups"]


MANY_LEAVES = "\n".join(
    [
        "import gradviz.engine as torch",
        *(f"p{i} = torch.tensor([0.{i % 9 + 1}, 0.2], requires_grad=True)" for i in range(30)),
        "h = torch.tensor([1.0, 2.0])",
        *(f"h = torch.tanh(h * p{i * 7 % 30} + p{i % 30})" for i in range(85)),
        "h.sum().backward()",
    ]
)


def test_many_leaves_that_groups_of_lines_share_are_one_box(traced: Traced) -> None:
    def run() -> None:
        exec(compile(MANY_LEAVES, "leaves.py", "exec"), {"__name__": "__main__"})

    graph = picture_of(run, traced)
    shown = boxes(graph)
    assert len(graph.nodes) <= 14
    leaves = shown["p0 … p29 (30)"].box
    assert leaves is not None
    assert len(leaves.parameters) == 30
    width = re.search(r'<svg width="(\d+)pt"', svg(graph))
    assert width is not None
    assert int(width[1]) < 3000 * 3 / 4


def test_many_lines_that_call_functions_are_groups_of_lines(traced: Traced) -> None:
    lines = [
        "import gradviz.engine as torch",
        *(f"def f{i}(h, w):\n    h = h * w\n    return torch.tanh(h) + h" for i in range(4)),
        "w = h = torch.tensor([1.0, 2.0], requires_grad=True)",
        *(f"h = f{i % 4}(h, w)" for i in range(56)),
        "h.sum().backward()",
    ]

    def run() -> None:
        exec(compile("\n".join(lines), "calls.py", "exec"), {"__name__": "__main__"})

    shown = boxes(picture_of(run, traced))
    assert len(shown) <= 10
    assert {"lines 15–22", "lines 63–70", "line 71"} <= {*shown}


def entangled() -> None:
    w, values = torch.tensor([0.3, 0.2], requires_grad=True), [torch.tensor([0.5, 0.1])]
    chosen = random.Random(1)
    ops = [torch.sin, torch.cos, torch.tanh, torch.exp, torch.sigmoid, torch.atan]
    for i in range(80):
        a = values[-1] if i % 7 else values[-1] + values[max(0, i - 3)]
        values.append(chosen.choice(ops)(a * w if i % 2 else a + w))
    values[-1].sum().backward()


def test_a_loop_whose_operations_lead_everywhere_is_one_box(traced: Traced) -> None:
    shown = boxes(picture_of(entangled, traced))
    assert sum(name.startswith("lines ") for name in shown) == 1
    assert len(shown) <= 3


def test_a_leaf_that_boxes_use_often_does_not_say_how_many_boxes_use_it(traced: Traced) -> None:
    graph = picture_of(solver, traced)
    leaf = next(thing for thing in scene_of(graph).things.values() if thing.lines[0] == ("name", "matrix"))
    assert not any("used" in text for _, text in leaf.lines)


def test_the_loop_that_a_library_runs_in_a_call_is_one_box(traced: Traced) -> None:
    solver = [
        "def solve(f, h):",
        "    for _ in range(20):",
        "        one = f(h) * 0.1",
        "        two = f(h + one / 2) * 0.1",
        "        three = f(h + two / 2 - one) * 0.1",
        "        four = f(h + three - two) * 0.1",
        "        h = h + (one + two * 2 + three * 2 + four) / 6 - three * 0.01 + (one - four) * 0.02",
        "    return h",
    ]
    program = [
        "import gradviz.engine as torch",
        "from gradviz.engine import nn",
        "field = nn.Linear(2, 2)",
        "h = solve(field, torch.ones(3, 2))",
        "h.square().mean().backward()",
    ]

    def run() -> None:
        space = {"__name__": "__main__"}
        exec(compile("\n".join(solver), "/lib/site-packages/solver.py", "exec"), space)
        exec(compile("\n".join(program), "solving.py", "exec"), space)

    shown = boxes(picture_of(run, traced))
    assert "line 4" in shown
    assert len(shown) <= 8
