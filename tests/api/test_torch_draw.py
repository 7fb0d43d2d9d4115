"""`gradviz.draw` of what PyTorch made: a tensor, a module, and both while a recording is under way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import Event, OpRan, ScopeEntered, TensorMade  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.graph.fold import folded  # noqa: E402
from gradviz.graph.model import to_json  # noqa: E402
from tests.torch_programs import walk  # noqa: E402

pytestmark = pytest.mark.torch


def network() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))


def nodes(picture: gradviz.Picture, kind: str) -> list[dict[str, Any]]:
    return [node for node in to_json(picture.graph)["nodes"] if node["kind"] == kind]


def test_a_tensor_that_nobody_recorded_has_the_nodes_of_next_functions() -> None:
    net = network()
    loss = net(torch.ones(2, 3)).pow(2).mean()
    picture = gradviz.draw(loss, params=dict(net.named_parameters()))
    (names, edges), _ = walk([loss.grad_fn])
    assert sorted(node["grad_fn"] for node in nodes(picture, "grad_fn")) == sorted(names)
    drawn = [edge for edge in to_json(picture.graph)["edges"] if edge["kind"] == "grad"]
    between = {node["id"] for node in nodes(picture, "grad_fn")}
    assert len([e for e in drawn if e["source"] in between and e["target"] in between]) == len(edges) == 10
    leaves = {node["name"]: tuple(node["shape"]) for node in nodes(picture, "leaf")}
    assert leaves == {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    (result,) = (node for node in nodes(picture, "tensor") if node["op"] == "mean")
    assert result["name"] == "loss"
    assert "0.weight" in picture.svg


def test_a_leaf_is_drawn_with_the_gradient_that_it_has() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = (w * w).sum()
    assert "0.125" not in gradviz.draw(loss).svg
    w.grad = torch.tensor([0.125, 0.25])
    assert "0.125" in gradviz.draw(loss).svg


def test_drawing_a_tensor_leaves_it_as_it_is() -> None:
    w = torch.ones(2, requires_grad=True)
    loss = (w * w).sum()
    gradviz.draw(loss)
    attributes = set(vars(loss)) | set(vars(w))
    hooks = loss._backward_hooks, w._backward_hooks
    loss.backward()
    assert (attributes, hooks) == (set(), (None, None))
    assert w.grad.tolist() == [2.0, 2.0]


def test_a_module_is_drawn_by_one_call_with_its_scopes_and_names() -> None:
    net = network()
    calls = []
    net.register_forward_hook(lambda *_: calls.append(1))
    picture = gradviz.draw(net, torch.ones(2, 3))
    assert calls == [1]
    found = {node["op"]: node["scope"] for node in nodes(picture, "op")}
    assert found == {"t": "net/2", "addmm": "net/2", "tanh": "net/1"}
    assert {node["name"] for node in nodes(picture, "leaf")} == {
        "net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias", None
    }  # fmt: skip
    assert "picture" not in {node["name"] for node in nodes(picture, "tensor")}
    assert all(parameter.grad is None for parameter in net.parameters())


@pytest.mark.parametrize("inputs", ["tuple", "dict"])
def test_a_module_takes_several_inputs(inputs: str) -> None:
    class Product(torch.nn.Module):
        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a * b

    a, b = torch.ones(2, requires_grad=True), torch.ones(2)
    picture = gradviz.draw(Product(), (a, b) if inputs == "tuple" else {"b": b, "a": a})
    assert [node["op"] for node in nodes(picture, "op")] == ["mul"]


def test_a_module_without_inputs_is_refused() -> None:
    with pytest.raises(TypeError, match="give its inputs"):
        gradviz.draw(network())


def told(file: Path, kind: type[Event]) -> list[Any]:
    with gradviz.open(file) as trace:
        return [event for event in trace if isinstance(event, kind)]


def test_a_recording_does_not_hear_of_what_is_drawn_inside_it(tmp_path: Path) -> None:
    net, x = network(), torch.ones(2, 3)

    def program(draws: bool) -> None:
        y = net(x).sum()
        if draws:
            assert nodes(gradviz.draw(y), "grad_fn")
            assert nodes(gradviz.draw(net, x), "op")
        y.backward()
        (net(x) * 2).sum().backward()

    for name, draws in (("plain", False), ("drawn", True)):
        net.zero_grad()  # no gradient is told of as from before
        with gradviz.record(tmp_path / f"{name}.gradviz"):
            program(draws)
    for kind in (OpRan, ScopeEntered, TensorMade):
        plain, drawn = (told(tmp_path / f"{name}.gradviz", kind) for name in ("plain", "drawn"))
        named = [[getattr(event, "op", type(event).__name__) for event in events] for events in (plain, drawn)]
        assert named[0] == named[1] != []
    with gradviz.open(tmp_path / "plain.gradviz") as plain, gradviz.open(tmp_path / "drawn.gradviz") as drawn:
        assert [run.digest for run in plain.passes] == [run.digest for run in drawn.passes]


def test_a_module_that_fails_while_it_is_drawn_leaves_the_recording_on(tmp_path: Path) -> None:
    net = network()
    with gradviz.record(tmp_path / "run.gradviz"):
        with pytest.raises(RuntimeError, match="shapes"):
            gradviz.draw(net, torch.ones(2, 5))
        torch.ones(2, requires_grad=True).exp()
    assert [event.op for event in told(tmp_path / "run.gradviz", OpRan)] == ["exp"]


def test_a_mask_that_a_module_made_and_reads_is_no_loop(tmp_path: Path) -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(2, 2)
            self.register_buffer("mask", torch.tril(torch.ones(8, 8)).view(1, 8, 8))

        def forward(self, x: Any) -> Any:
            y = self.inner(x)
            scores = (y @ y.transpose(-2, -1)).masked_fill(self.mask[:, :4, :4] == 0, -1e9)
            return x + torch.softmax(scores, -1) @ y

    with gradviz.record(tmp_path / "run.gradviz"):
        net = torch.nn.Sequential(Masked(), Masked())
        net(torch.ones(1, 4, 2)).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        graph = folded(build(trace, 1), depth=1)
    assert [node.box.type for node in graph.nodes.values() if node.box is not None].count("Masked") == 2
    assert not [edge for edge in graph.edges if edge.source == edge.target]
