"""`gradviz.draw` of a loss that nobody recorded: the modules, values and gradients that its graph itself tells, each of
them as in the picture of the same program when it is recorded."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz.graph.model import GRAD, GRAD_FN, LEAF, TENSOR, Graph, Node
from gradviz.notebook import BY_PARAMETERS, NOT_RECORDED
from tests.warm import python


@pytest.fixture(params=["gradviz.engine", "torch"])
def torch(request: pytest.FixtureRequest) -> Any:
    found = pytest.importorskip(request.param)
    import_module(f"{request.param}.nn")
    return found


def modules(picture: gradviz.Picture) -> Counter[str]:
    """How often each module was called, by the paths of modules."""
    found: Counter[str] = Counter()
    for path, scope in picture.graph.scopes.items():
        found[path.replace("/", ".")] += scope.calls
    return found


def homes(graph: Graph) -> list[tuple[str | None, str]]:
    """The nodes in the order in which they were made, each with the path of its module."""
    waiting = [name for name, node in graph.nodes.items() if node.root and node.kind == GRAD_FN]
    reached = set(waiting)
    while waiting:
        source = waiting.pop()
        behind = {e.target for e in graph.edges if e.kind == GRAD and e.source == source} - reached
        reached |= behind
        waiting += behind
    nodes = [graph.nodes[name] for name in reached if graph.nodes[name].op is not None]
    nodes.sort(key=lambda node: node.number)
    return [(node.grad_fn, node.scope.replace("/", ".")) for node in nodes]


def drawn(program: Callable[[Any], Any], torch: Any, tmp_path: Path) -> Counter[str]:
    """The calls of modules in the picture of a program that was not recorded. Each of them is in that of the recorded
    one, and each node stands in a module in which it ran."""
    with gradviz.record(tmp_path / "run.gradviz"):
        recorded = program(torch)
    at_hand = program(torch)
    calls = modules(at_hand)
    assert calls <= modules(recorded)
    truth = homes(recorded.graph)
    told = homes(at_hand.graph)
    assert [name for name, _ in told] == [name for name, _ in truth]
    for (name, shown), (_, real) in zip(told, truth, strict=True):
        assert not shown or f"{real}.".startswith(f"{shown}."), name
    assert at_hand.graph.notes == [BY_PARAMETERS if calls else NOT_RECORDED]
    return calls


# --- programs


def perceptron(torch: Any) -> Any:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU(), torch.nn.Linear(3, 1))
    return gradviz.draw((net(torch.ones(4, 2)) ** 2).mean())


def with_batch_norm(torch: Any) -> Any:
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)
            self.norm = nn.BatchNorm2d(2)
            self.out = nn.Linear(18, 2)

        def forward(self, x: Any) -> Any:
            return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))

    net = Net()
    return gradviz.draw(net(torch.ones(3, 1, 5, 5)).sum())


def adversarial(torch: Any) -> Any:
    nn = torch.nn
    G = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    D = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    return gradviz.draw((D(torch.ones(5, 4)) - D(G(torch.ones(5, 2)))).mean())


def tied(torch: Any) -> Any:
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.body = nn.Linear(4, 4)
            self.head = nn.Linear(4, 5, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Any) -> Any:
            return self.head(self.body(self.embedding(x)).tanh())

    model = Model()
    return gradviz.draw(model(torch.tensor([1, 2])).sum())


def tied_by_hand(torch: Any) -> Any:
    nn = torch.nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4)
            self.body = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return nn.functional.linear(self.body(self.embedding(x)), self.embedding.weight)

    model = Model()
    return gradviz.draw(model(torch.tensor([1, 2])).sum())


def two_heads_share_a_weight(torch: Any) -> Any:
    one, other = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)
    other.weight = one.weight
    return gradviz.draw(other(one(torch.ones(3, 2)).tanh()).sum())


def called_twice(torch: Any) -> Any:
    nn = torch.nn

    class Tower(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(2, 3)
            self.second = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x).relu())

    tower = Tower()
    return gradviz.draw((tower(torch.ones(4, 2)) - tower(torch.zeros(4, 2))).exp().sum())


def a_layer_called_twice_inside(torch: Any) -> Any:
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.layer(self.layer(x).tanh())

    net = Net()
    return gradviz.draw(net(torch.ones(4, 2)).sum())


def recurrent(torch: Any) -> Any:
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(2, 3)
            self.out = nn.Linear(3, 1)

        def forward(self, x: Any) -> Any:
            h = torch.zeros(4, 3)
            for step in range(5):
                h = self.cell(x[step], h)
            return self.out(h)

    net = Net()
    return gradviz.draw(net(torch.ones(5, 4, 2)).sum())


def only_a_cell_in_a_loop(torch: Any) -> Any:
    nn = torch.nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.GRUCell(2, 3)

        def forward(self, x: Any) -> Any:
            h = torch.zeros(4, 3)
            for step in range(5):
                h = self.cell(x[step], h)
            return h

    net = Net()
    return gradviz.draw(net(torch.ones(5, 4, 2)).sum())


def gated(torch: Any) -> Any:
    gru = torch.nn.GRU(2, 3, num_layers=2)
    return gradviz.draw((gru(torch.ones(3, 1, 2))[0].sum() + gru(torch.zeros(3, 1, 2))[0].sum()).exp())


def transformer(torch: Any) -> Any:
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(4, 2, batch_first=True)
            self.norm1 = nn.LayerNorm(4)
            self.norm2 = nn.LayerNorm(4)
            self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

        def forward(self, x: Any) -> Any:
            y = self.norm1(x)
            x = x + self.attn(y, y, y, need_weights=False)[0]
            return x + self.mlp(self.norm2(x))

    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.zeros(8, 4))
            self.blocks = nn.ModuleList([Block(), Block()])
            self.head = nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            x = x + self.position[:3]
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    tiny = Tiny()
    return gradviz.draw(tiny(torch.ones(2, 3, 4, requires_grad=True)).sum())


def librarys_encoder(torch: Any) -> Any:
    encoder = torch.nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return gradviz.draw(encoder(torch.ones(2, 3, 4)).sum())


def list_of_layers(torch: Any) -> Any:
    layers = [torch.nn.Linear(2, 2) for _ in range(3)]
    x = torch.ones(4, 2)
    for layer in layers:
        x = layer(x).tanh()
    return gradviz.draw(x.sum())


def functional(torch: Any) -> Any:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    decay = sum((parameter**2).sum() for parameter in net.parameters())
    return gradviz.draw(net(torch.ones(4, 2)).sum() + decay)


def only_decay(torch: Any) -> Any:
    net = torch.nn.Linear(2, 3)
    return gradviz.draw(sum((parameter**2).sum() for parameter in net.parameters()))


def partly_frozen(torch: Any) -> Any:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    net[2].weight.requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return gradviz.draw(net(torch.ones(4, 2)).sum())


def only_the_head_is_trained(torch: Any) -> Any:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    net[:4].requires_grad_(False)
    return gradviz.draw(net(torch.ones(4, 2)).sum())


def autoencoder(torch: Any) -> Any:
    nn = torch.nn

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Linear(4, 2)
            self.decoder = nn.Linear(2, 4)
            self.unused = nn.Linear(1, 1)

        def forward(self, x: Any) -> Any:
            return self.decoder(self.encoder(x).tanh())

    return Pair()


def in_two_methods(torch: Any) -> Any:
    nn = torch.nn

    class Coder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.Linear(4, 2)
            self.up = nn.Linear(2, 4)

        def encode(self, x: Any) -> Any:
            return self.down(x)

        def decode(self, x: Any) -> Any:
            return self.up(x)

        def forward(self, x: Any) -> Any:
            return self.decode(self.encode(x))

    coder = Coder()
    return gradviz.draw(coder.decode(coder.encode(torch.ones(3, 4)).tanh()).sum())


def only_a_weight_is_used(torch: Any) -> Any:
    layer = torch.nn.Linear(2, 2)
    return gradviz.draw(torch.nn.functional.linear(torch.ones(1, 2), layer.weight).sum())


def shared_encoder(torch: Any) -> Any:
    nn = torch.nn

    class Siamese(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
            self.head = nn.Linear(4, 1)

        def forward(self, a: Any, b: Any) -> Any:
            return self.head(torch.cat([self.encoder(a), self.encoder(b)], -1))

    siamese = Siamese()
    return gradviz.draw(siamese(torch.ones(3, 2), torch.zeros(3, 2)).sum())


def scaled(torch: Any) -> Any:
    nn = torch.nn

    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))
            self.shift = nn.Parameter(torch.zeros(2))

        def forward(self, x: Any) -> Any:
            return x * self.scale + self.shift

    net = nn.Sequential(nn.Linear(2, 2), Scale(), nn.Linear(2, 2))
    return gradviz.draw(net(torch.ones(3, 2)).sum() + (net[1].scale ** 2).sum())


def with_an_unused_layer(torch: Any) -> Any:
    pair = autoencoder(torch)
    return gradviz.draw(pair(torch.ones(3, 4)).sum())


def a_part_of_a_network(torch: Any) -> Any:
    pair = autoencoder(torch)
    return gradviz.draw(pair.encoder(torch.ones(3, 4)).tanh().sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "calls"),
    [
        (perceptron, {"net": 1, "net.0": 1, "net.2": 1}),
        (with_batch_norm, {"net": 1, "net.conv": 1, "net.norm": 1, "net.out": 1}),
        (adversarial, {"G": 1, "G.0": 1, "G.2": 1, "D": 2, "D.0": 2, "D.2": 2}),
        (tied, {"model": 1, "model.embedding": 1, "model.body": 1, "model.head": 1}),
        (tied_by_hand, {"model": 1, "model.embedding": 1, "model.body": 1}),
        (two_heads_share_a_weight, {}),
        (called_twice, {"tower": 2, "tower.first": 2, "tower.second": 2}),
        (a_layer_called_twice_inside, {"net.layer": 2}),
        (recurrent, {"net": 1, "net.cell": 5, "net.out": 1}),
        (only_a_cell_in_a_loop, {"net.cell": 5}),
        (gated, {"gru": 2}),
        (
            transformer,
            {"tiny": 1, "tiny.head": 1}
            | {
                f"tiny.blocks.{i}{part}": 1
                for i in (0, 1)
                for part in ("", ".attn", ".norm1", ".norm2", ".mlp", ".mlp.0", ".mlp.2")
            },
        ),
        (
            librarys_encoder,
            {f"encoder{part}": 1 for part in ("", ".self_attn", ".norm1", ".linear1", ".linear2", ".norm2")},
        ),
        (list_of_layers, {"layers.0": 1, "layers.1": 1, "layers.2": 1}),
        (functional, {"net": 1, "net.0": 1, "net.2": 1}),
        (only_decay, {}),
        (partly_frozen, {"net": 1, "net.0": 1, "net.2": 1, "net.4": 1}),
        (only_the_head_is_trained, {"net": 1, "net.4": 1}),
        (with_an_unused_layer, {"pair": 1, "pair.encoder": 1, "pair.decoder": 1}),
        (a_part_of_a_network, {"pair.encoder": 1}),
        (in_two_methods, {"coder.down": 1, "coder.up": 1}),
        (only_a_weight_is_used, {}),
        (
            shared_encoder,
            {"siamese": 1, "siamese.encoder": 2, "siamese.encoder.0": 2, "siamese.encoder.2": 2, "siamese.head": 1},
        ),
        (scaled, {"net": 1, "net.0": 1, "net.1": 1, "net.2": 1}),
    ],
)
def test_each_box_is_one_of_the_recorded_picture(
    program: Callable[[Any], Any], calls: dict[str, int], torch: Any, tmp_path: Path
) -> None:
    assert drawn(program, torch, tmp_path) == calls


def test_a_layer_that_two_modules_hold_is_in_neither(torch: Any) -> None:
    nn = torch.nn

    class Holder(nn.Module):
        def __init__(self, layer: Any) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    net = nn.Sequential(Holder(nn.Linear(2, 2)), nn.Tanh())
    net.append(Holder(net[0].layer))
    assert modules(gradviz.draw(net(torch.ones(1, 2)).sum())) == {"net.0.layer": 2}


def by_name(picture: gradviz.Picture) -> dict[str | None, Node]:
    return {node.name: node for node in picture.graph.nodes.values() if node.kind in (LEAF, TENSOR)}


def elements(node: Node) -> list[float]:
    assert node.value is not None
    return np.ravel(node.value.array).tolist()


def test_tensors_that_nodes_saved_have_their_values(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    loss = ((x * 3.0).tanh() * 2.0).exp().log().sum()
    shown = [node for node in gradviz.draw(loss).graph.nodes.values() if node.kind == TENSOR and node.value]
    found = {node.op: elements(node) for node in shown}
    assert found["tanh"] == pytest.approx(np.tanh([3.0, 6.0]))
    assert found["exp"] == pytest.approx(np.exp(2 * np.tanh([3.0, 6.0])))


def test_a_saved_tensor_that_was_written_since_has_no_value(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x.exp()
    loss = y.sum()
    y.detach().mul_(2.0)
    del y
    shown = {node.op: node for node in gradviz.draw(loss).graph.nodes.values() if node.kind == TENSOR}
    assert shown["exp"].value is None or shown["exp"].value.stats is None


def test_what_hooks_packed_is_not_unpacked(torch: Any) -> None:
    unpacked = []
    graph = import_module(f"{torch.__name__}.autograd.graph")
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with graph.saved_tensors_hooks(lambda tensor: tensor * 1.0, lambda kept: unpacked.append(1) or kept):
        loss = x.exp().log().sum()
    gradviz.draw(loss)
    assert not unpacked


def test_data_that_a_layer_saved_is_drawn(torch: Any) -> None:
    net = torch.nn.Linear(2, 1)
    inputs = torch.tensor([[1.0, 2.0]])
    shown = by_name(gradviz.draw(net(inputs).sum()))
    assert elements(shown["inputs"]) == [1.0, 2.0]
    assert not shown["inputs"].requires_grad


def test_a_tensor_that_retains_its_gradient_shows_it(torch: Any) -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    hidden = x * 3.0
    hidden.retain_grad()
    loss = (hidden * hidden).sum()
    loss.backward(retain_graph=True)
    node = by_name(gradviz.draw(loss))["hidden"]
    assert node.grad is not None
    assert np.ravel(node.grad.array).tolist() == [6.0, 12.0]


@pytest.mark.parametrize("gradients", [False, True])
def test_a_leaf_alone_is_drawn_by_its_name(gradients: bool, torch: Any) -> None:
    w = torch.tensor(1.0, requires_grad=True)
    graph = gradviz.draw(w, gradients=gradients).graph
    assert [(node.kind, node.name) for node in graph.nodes.values()] == [(LEAF, "w")]
    assert w.grad is None


def both_losses(torch: Any) -> tuple[Any, Any]:
    generator, critic = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
    x = torch.ones(2, 3)
    return -critic(generator(x)).mean(), critic(generator(x).detach()).mean() - critic(x).mean()


@pytest.mark.parametrize("put", [tuple, list, lambda losses: {"of": losses[0], "more": [losses[1], "text"]}])
def test_several_tensors_are_drawn_together(put: Callable[[Any], Any], torch: Any) -> None:
    first, second = both_losses(torch)
    graph = gradviz.draw(put((first, second))).graph
    assert graph.of == "first, second"
    assert {node.name for node in graph.nodes.values() if node.root} >= {"first", "second"}
    alone = [gradviz.draw(loss).graph for loss in (first, second)]
    assert max(len(one.nodes) for one in alone) < len(graph.nodes) < sum(len(one.nodes) for one in alone)


@pytest.mark.slow
def test_several_tensors_are_drawn_with_the_gradients_of_one_pass(torch: Any) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    graph = gradviz.draw(((w * w).sum(), (3 * w).sum()), gradients=True).graph
    (leaf,) = (node for node in graph.nodes.values() if node.kind == LEAF and node.name == "w")
    assert leaf.reached is not None
    assert leaf.reached.array is not None
    assert leaf.reached.array.tolist() == [5, 7]
    assert w.grad is None


@pytest.mark.slow
def test_several_tensors_that_were_recorded_are_drawn_from_the_trace(torch: Any, tmp_path: Path) -> None:
    autograd = import_module(f"{torch.__name__}.autograd")
    with gradviz.record(tmp_path / "run.gradviz"):
        first, second = both_losses(torch)
    assert gradviz.draw((first, second)).graph.of == "first, second"
    with gradviz.record(tmp_path / "run.gradviz"):
        first, second = both_losses(torch)
        autograd.backward([first, second])
    graph = gradviz.draw([first, second]).graph
    assert graph.pass_number == 1
    assert any(edge.value is not None for edge in graph.edges if edge.kind == GRAD)


@pytest.mark.parametrize("nothing", [(), [], {}, (1, "x"), {"a": None}])
def test_a_collection_without_tensors_is_refused(nothing: Any) -> None:
    with pytest.raises(TypeError, match="takes a Tensor of gradviz or PyTorch"):
        gradviz.draw(nothing)


def test_tensors_of_both_engines_are_not_drawn_together() -> None:
    torch, engine = pytest.importorskip("torch"), import_module("gradviz.engine")
    with pytest.raises(TypeError, match="of one engine"):
        gradviz.draw((torch.ones(1), engine.ones(1)))


AT_THE_END = """
import atexit, sys, threading, time
import gradviz, gradviz.engine as torch

x = torch.tensor(2.0, requires_grad=True)
y = x * x

def draw():
    gradviz.draw(y).save("end.svg")

def draw_after_main():
    while threading.main_thread().is_alive():
        time.sleep(0.01)
    draw()

class Drawing:
    def __del__(self):
        draw()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "when",
    ["atexit.register(draw)", "threading.Thread(target=draw_after_main).start()", "drawing = Drawing(); del drawing"],
)
def test_a_picture_can_be_drawn_at_any_time_of_a_process(when: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [python(), "-c", AT_THE_END + when], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "placed in rows" not in (tmp_path / "end.svg").read_text()
