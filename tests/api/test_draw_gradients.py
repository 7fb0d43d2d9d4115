"""`gradviz.draw(loss, gradients=True)`: the gradients of a pass that runs for the picture; nothing stays of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz.errors import GradvizError
from gradviz.graph.model import GRAD, LEAF, TENSOR, Graph
from gradviz.notebook import RUN_FOR_THIS
from tests.page.page_views import views_of


@pytest.fixture(params=["gradviz.engine", "torch"])
def torch(request: pytest.FixtureRequest) -> Any:
    found = pytest.importorskip(request.param)
    import_module(f"{request.param}.nn")
    return found


Made = tuple[Any, list[Any]]  # a loss, and the leaves


def flowing(graph: Graph) -> list[tuple[str | None, str | None, list[float] | None]]:
    """The gradient on each edge, by the nodes that it leads from and to, in the order in which they were made."""
    found = []
    for edge in graph.edges:
        if edge.kind == GRAD:
            source, target = graph.nodes[edge.source], graph.nodes[edge.target]
            assert edge.value is None or edge.value.array is not None
            value = None if edge.value is None else np.ravel(edge.value.array).tolist()
            found.append((source.number, (source.grad_fn, target.grad_fn, value)))
    return [entry for _, entry in sorted(found, key=lambda pair: pair[0])]


# --- programs


def perceptron(torch: Any) -> Made:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    return (net(torch.ones(4, 2)) ** 2).mean(), list(net.parameters())


def convolution(torch: Any) -> Made:
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2))
    return (net(torch.rand(3, 1, 4, 4)) ** 2).sum(), list(net.parameters())


def adversarial(torch: Any) -> Made:
    nn = torch.nn
    G = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    D = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    loss = (D(torch.ones(4, 2)) - D(G(torch.ones(4, 2)))).exp().mean()
    return loss, [*G.parameters(), *D.parameters()]


def called_twice(torch: Any) -> Made:
    layer = torch.nn.Linear(2, 2)
    return layer(layer(torch.ones(4, 2)).tanh()).exp().sum(), list(layer.parameters())


def several_outputs(torch: Any) -> Made:
    x = torch.tensor([[3.0, 1.0], [2.0, 4.0]], requires_grad=True)
    first, second = x.unbind(0)
    return (first.exp() * second).sum() + x.max(1)[0].sum(), [x]


def one_part_is_not_used(torch: Any) -> Made:
    x = torch.tensor([[3.0, 1.0], [2.0, 4.0]], requires_grad=True)
    first, _ = x.unbind(0)
    return first.exp().sum(), [x]


def with_hooks(torch: Any) -> Made:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    hidden = x * 3.0
    hidden.register_hook(lambda gradient: gradient * 10.0)
    x.register_hook(lambda gradient: gradient + 1.0)
    return (hidden.exp() + hidden).sum(), [x]


def custom_function(torch: Any) -> Made:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 3 * x**2 * gradient

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    return Cube.apply(x.sin()).sum(), [x]


PROGRAMS = [
    perceptron, convolution, adversarial, called_twice, several_outputs, one_part_is_not_used, with_hooks,
    custom_function,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_edge_has_the_gradient_of_a_recorded_run(
    program: Callable[[Any], Made], torch: Any, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        loss, _ = program(torch)
        loss.backward()
        recorded = gradviz.draw(loss)
    torch.manual_seed(0)
    loss, leaves = program(torch)
    picture = gradviz.draw(loss, gradients=True)
    truth, told = flowing(recorded.graph), flowing(picture.graph)
    assert len(truth) > 1
    assert [entry[:2] for entry in told] == [entry[:2] for entry in truth]
    for (*edge, shown), (*_, real) in zip(told, truth, strict=True):
        assert shown == (None if real is None else pytest.approx(real, rel=1e-6)), edge
    assert RUN_FOR_THIS in picture.graph.notes
    assert all(leaf.grad is None for leaf in leaves)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_graph_is_as_it_was(program: Callable[[Any], Made], torch: Any) -> None:
    torch.manual_seed(0)
    loss, leaves = program(torch)
    versions = [leaf._version for leaf in leaves]
    gradviz.draw(loss, gradients=True)
    gradviz.draw(loss, gradients=True)
    loss.backward()
    torch.manual_seed(0)
    undrawn, others = program(torch)
    undrawn.backward()
    for leaf, other in zip(leaves, others, strict=True):
        assert leaf.grad.tolist() == other.grad.tolist()
    assert [leaf._version for leaf in leaves] == versions


@pytest.mark.slow
def test_a_gradient_that_was_there_stays(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (x * 5.0).sum().backward()
    grad = x.grad
    picture = gradviz.draw((x * x).sum(), gradients=True)
    assert x.grad is grad
    assert grad.tolist() == [5.0, 5.0]
    (leaf,) = [node for node in picture.graph.nodes.values() if node.kind == LEAF]
    assert np.ravel(leaf.grad.array).tolist() == [5.0, 5.0]
    assert [v for _, to, v in flowing(picture.graph) if to == "AccumulateGrad"] == [[1.0, 2.0], [1.0, 2.0]]


@pytest.mark.slow
@pytest.mark.parametrize("is_named", [True, False])
def test_a_tensor_that_retains_its_gradient_keeps_the_one_it_had(is_named: bool, torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    hidden = x * 3.0
    hidden.retain_grad()
    loss = (hidden * 2.0).sum()
    kept = [hidden]
    if not is_named:
        del hidden
    gradviz.draw(loss, gradients=True)
    assert kept[0].grad is None
    loss.backward(retain_graph=True)
    gradviz.draw(loss, gradients=True)
    assert kept[0].grad.tolist() == [2.0, 2.0]


@pytest.mark.slow
def test_no_hook_is_left_in_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    backward = import_module("gradviz.sources.torch_recorder.backward")
    live_pass = import_module("gradviz.sources.torch_recorder.torch_graph")
    passes: list[weakref.ref[Any]] = []

    class Watched(backward.Pass):
        def begin(self) -> None:
            passes.append(weakref.ref(self))
            super().begin()
            assert self.handles

    monkeypatch.setattr(live_pass, "Pass", Watched)
    loss, _ = convolution(torch)
    gradviz.draw(loss, gradients=True)
    gc.collect()
    assert [reference() for reference in passes] == [None]  # a hook would refer to it


@pytest.mark.slow
def test_hooks_are_those_of_the_picture_and_afterwards_of_the_recording(torch: Any, tmp_path: Path) -> None:
    """A hook uses a tensor that a recording knows, and the recording goes on."""
    with gradviz.record(tmp_path / "run.gradviz"):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        scale = torch.tensor([2.0, 2.0])
        hidden = w * scale
        hidden.register_hook(lambda gradient: gradient * scale)
        loss = hidden.sum()
        picture = gradviz.draw(loss, gradients=True)
        loss.backward()
    assert [v for *_, v in flowing(picture.graph)] == [[4.0, 4.0], [1.0, 1.0]]
    assert w.grad.tolist() == [4.0, 4.0]
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        whole = gradviz.draw(trace)
    assert whole.graph.passes == 1
    leaves = [node for node in whole.graph.nodes.values() if node.kind == LEAF]
    assert sorted(node.name or "" for node in leaves) == ["scale", "w"]
    assert [v for *_, v in flowing(whole.graph)] == [[4.0, 4.0], [1.0, 1.0]]


def test_a_module_that_is_drawn_during_a_recording_leaves_it_as_it_was(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = net(torch.ones(3, 2)).sum()
        gradviz.draw(net, torch.ones(3, 2))
        loss.backward()
    picture = gradviz.draw(loss)
    leaves = {node.name: node for node in picture.graph.nodes.values() if node.kind == LEAF}
    assert leaves["net.weight"].has_grad
    assert leaves["net.bias"].has_grad


def test_a_recorded_pass_is_drawn_as_it_was_recorded(torch: Any, tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = x.exp().sum()
        loss.backward()
    picture = gradviz.draw(loss, gradients=True)
    assert RUN_FOR_THIS not in picture.graph.notes
    assert x.grad.tolist() == pytest.approx(np.exp([1.0, 2.0]))


@pytest.mark.slow
def test_names_and_modules_are_those_of_the_picture_without_gradients(torch: Any) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    loss = net(torch.ones(4, 2)).sum()
    plain, picture = gradviz.draw(loss).graph, gradviz.draw(loss, gradients=True).graph

    def names(graph: Graph) -> list[str | None]:
        return [node.name for node in graph.nodes.values() if node.kind in (LEAF, TENSOR)]

    assert names(picture) == names(plain)
    assert picture.scopes == plain.scopes


@pytest.mark.slow
def test_leaves_and_modules_show_the_gradients_that_came_to_them(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    drawing = gradviz.draw((x * x).sum(), gradients=True).svg.replace("\u00a0", " ")
    assert ".grad = None" in drawing
    assert "gradient = [2, 4]" in drawing
    layer = torch.nn.Linear(2, 1, bias=False)
    layer.weight.data.fill_(1.0)
    loss = layer(torch.tensor([[3.0, 4.0]])).sum()
    drawing = gradviz.draw(loss, gradients=True, depth=0).svg.replace("\u00a0", " ")
    assert "gradient norm 5" in drawing
    assert ".grad = None" not in drawing
    loss.backward(retain_graph=True)
    assert ".grad norm 5" in gradviz.draw(loss, depth=0).svg.replace("\u00a0", " ")


@pytest.mark.slow
def test_the_page_replays_the_pass(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (view,) = views_of(str(gradviz.draw(x.exp().sum(), gradients=True).html()))
    assert "ExpBackward0" in view


# --- where there are none


def refusal(thing: Any, **settings: Any) -> str:
    with pytest.raises(GradvizError) as caught:
        gradviz.draw(thing, gradients=True, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.slow
def test_a_freed_graph_says_what_to_do(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = x.exp().sum()
    loss.backward()
    said = refusal(loss)
    assert "a backward() has freed this graph" in said
    assert "draw(..., gradients=True) before it" in said
    assert "gradviz.record" in said


@pytest.mark.slow
def test_only_a_tensor_of_one_element_has_them(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert "not of shape [2]: draw its sum() or mean()" in refusal(x.exp())
    gradviz.draw(x[:1].exp(), gradients=True)


def test_a_tensor_that_does_not_require_grad_has_none(torch: Any) -> None:
    assert "does not require grad" in refusal(torch.tensor(1.0))


@pytest.mark.slow
def test_an_error_of_the_program_is_the_programs(torch: Any) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            raise ValueError("no derivative")

    x = torch.tensor(1.0, requires_grad=True)
    with pytest.raises(ValueError, match="no derivative"):
        gradviz.draw(Fails.apply(x), gradients=True)


def test_gradients_are_of_tensors(torch: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="takes a tensor"):
        gradviz.draw(torch.nn.Linear(2, 1), torch.ones(1, 2), gradients=True)
    with pytest.raises(TypeError, match="takes a tensor"):
        gradviz.draw(tmp_path / "run.gradviz", gradients=True)
