"""The chain rule on PyTorch recordings: each node has its formula, whatever the call behind it is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gradviz
from gradviz.events.kinds import OpRan, Produced, Received
from gradviz.query import Query
from gradviz.query.names import Labels
from gradviz.tracefile import open_trace
from gradviz.words.rows import rows
from gradviz.words.stop import Stop
from gradviz.words.words import Words

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def stops_of(folder: Path, program: str) -> list[Stop]:
    source, path = folder / "p.py", folder / "p.gradviz"
    source.write_text("import torch\nimport torch.nn.functional as F\n" + program)
    with gradviz.record(path):
        exec(compile(source.read_text(), str(source), "exec"), {"__name__": "p"})
    words = Words(open_trace(path))
    return [Stop(words, k) for k in range(words.trace.count)]


def local_of(stops: list[Stop], node: str) -> list[str]:
    """The local lines where a node of this name has run."""
    at = [stop for stop in stops if isinstance(stop.event, Produced) and stop.node_name == node]
    return [row.text for stop in at for row in rows(stop) if row.label == "local"]


LEAF = "x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)\n"
LAYERS = [
    ("y = x[0]", "SelectBackward0", "∂y/∂x = 1 where taken, else 0"),
    ("y = x[:, 1:]", "SliceBackward0", "∂y/∂x = 1 where taken, else 0"),
    ("y = x.T", "PermuteBackward0", "∂y/∂x = 1, permuted back"),
    ("y = torch.where(x > 2, x, 0)", "WhereBackward0", "∂y/∂x = 1 where condition = [[0, 0], [1, 1]]"),
    ("y = x.norm()", "LinalgVectorNormBackward0", "∂y/∂x = x / norm, spread"),
    (
        "y = F.layer_norm(x, (2,))",
        "NativeLayerNormBackward0",
        "VJP for x = (h − mean(h) − x̂ · mean(h x̂)) / σ with h = upstream · weight",
    ),
    ("y = x.clamp(min=2)", "ClampBackward1", "∂y/∂x = x ≥ 2 = [[0, 1], [1, 1]]"),
    ("y = x.clip(max=2)", "ClampBackward1", "∂y/∂x = x ≤ 2 = [[1, 1], [0, 0]]"),
    ("y = torch.clamp(x, 2, 3)", "ClampBackward1", "∂y/∂x = 2 ≤ x ≤ 3 = [[0, 1], [1, 0]]"),
    ("y = F.soft_margin_loss(x, torch.ones(2, 2))", "SoftMarginLossBackward0", "∂y/∂x = −target · σ(−target · x) / n"),
    ("y = 2 ** x", "PowBackward2", "∂y/∂x = 2^x · ln 2 = [[1.386, 2.773], [5.545, 11.09]]"),
    ("y = torch.softmax(x, 1)", "SoftmaxBackward0", "VJP for x = y (upstream − Σ upstream y)"),
    ("y = F.linear(x, x.detach())", "MmBackward0", "VJP for x = upstream (x.detach())ᵀ"),
]


@pytest.mark.parametrize(("line", "node", "expected"), LAYERS)
def test_a_node_has_its_formula(tmp_path: Path, line: str, node: str, expected: str) -> None:
    assert local_of(stops_of(tmp_path, f"{LEAF}{line}\ny.sum().backward()\n"), node)[0] == expected


CONVOLVED = """
x = torch.arange(9.0).reshape(1, 1, 3, 3).requires_grad_()
k = torch.ones(1, 1, 2, 2, requires_grad=True)
F.conv2d(x, k).sum().backward()
"""


def test_a_convolution_says_in_words_what_it_does(tmp_path: Path) -> None:
    assert local_of(stops_of(tmp_path, CONVOLVED), "ConvolutionBackward0") == [
        "VJP for x = kᵀ upstream, added where windows overlap",
        "VJP for k = upstream xᵀ over windows",
    ]


LOSS = "t = torch.tensor([1, 0])\nloss = F.cross_entropy(x, t{options})\nloss.backward()\n"


def test_cross_entropy_gives_softmax_minus_one_hot_over_n(tmp_path: Path) -> None:
    stops = stops_of(tmp_path, LEAF + LOSS.format(options=""))
    told = local_of(stops, "LogSoftmaxBackward0")
    whole = "∂loss/∂x = (softmax(x) − one-hot) / N, by the 2 nodes of F.cross_entropy(x, t) together"
    assert told == ["VJP for x = upstream − exp(out) Σ upstream", whole]
    [given] = [
        stop.moment.value(stop.event.flows[0].gradient)
        for stop in stops
        if isinstance(stop.event, Produced) and stop.node_name == "LogSoftmaxBackward0"
    ]
    x = np.array([[1.0, 2.0], [3.0, 4.0]])
    softmax = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    assert given is not None
    np.testing.assert_allclose(given.array, (softmax - [[0, 1], [1, 0]]) / 2, rtol=1e-6)


@pytest.mark.parametrize("options", [", reduction='sum'", ", label_smoothing=0.1", ", weight=torch.ones(2)"])
def test_another_cross_entropy_has_no_such_formula(tmp_path: Path, options: str) -> None:
    stops = stops_of(tmp_path, LEAF + LOSS.format(options=options))
    assert not [line for line in local_of(stops, "LogSoftmaxBackward0") if "one-hot" in line]


def test_nothing_is_said_of_the_gradient_of_indices(tmp_path: Path) -> None:
    stops = stops_of(tmp_path, f"{LEAF}m, i = x.max(dim=1)\nm.sum().backward()\n")
    [at] = [stop for stop in stops if isinstance(stop.event, Received) and stop.node_name == "MaxBackward0"]
    upstream = [row.text for row in rows(at) if row.label == "upstream"]
    assert len(upstream) == 1
    assert upstream[0].endswith("/∂m = [1, 1]  ← SumBackward0")


def test_a_tensor_that_the_program_does_not_see_is_named_by_its_node(tmp_path: Path) -> None:
    stops = stops_of(tmp_path, LEAF + LOSS.format(options=""))
    told = [row.text for stop in stops if isinstance(stop.event, Produced) for row in rows(stop)]
    assert not [text for text in told if "?" in text]
    assert "gradient of the output of LogSoftmaxBackward0 = [[0, -0.5], [-0.5, 0]]  → LogSoftmaxBackward0" in told


def test_a_derivative_names_what_the_program_does_not_see(tmp_path: Path) -> None:
    stops = stops_of(tmp_path, LEAF + LOSS.format(options="") + "x[0, 1].backward()\n")
    assert local_of(stops, "NllLossBackward0") == ["∂loss/∂(the output of LogSoftmaxBackward0) = −1/N at the target"]
    assert local_of(stops, "SelectBackward0") == [
        "∂(x[0, 1])/∂(the output of SelectBackward0) = 1 where taken, else 0",
        "∂(the output of SelectBackward0)/∂x = 1 where taken, else 0",
    ]


def test_the_ops_of_a_derivative_have_their_formulas(tmp_path: Path) -> None:
    program = "x = torch.tensor(3.0, requires_grad=True)\ny = x ** 3\n"
    program += "g, = torch.autograd.grad(y, x, create_graph=True)\ng.backward()\n"
    stops = stops_of(tmp_path, program)
    assert local_of(stops, "MulBackward1") == ["∂(mul(pow(x, 2.0), 3.0))/∂(pow(x, 2.0)) = 3"]
    assert local_of(stops, "PowBackward0")[1:] == ["∂(pow(x, 2.0))/∂x = 2 · x = 6"]


def test_what_many_calls_have_inside_is_named_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm of all gradients is inside of the name of each gradient that is clipped."""
    count = 40
    with gradviz.record(tmp_path / "p.gradviz"):
        parameters = [torch.ones(2, requires_grad=True) for _ in range(count)]
        torch.stack([(one * one).sum() for one in parameters]).sum().backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    asked = []
    given = Labels._given
    monkeypatch.setattr(Labels, "_given", lambda *what: asked.append(what) or given(*what))  # type: ignore[func-returns-value]
    with open_trace(tmp_path / "p.gradviz") as trace:
        labels = Query(trace).labels
        made = [tensor for event in trace if isinstance(event, OpRan) for tensor in event.outputs]
        assert len([labels.of(tensor) for tensor in made]) > 3 * count
    assert count < len(asked) < 20 * count


def test_what_an_op_computes_between_its_nodes_is_not_called_by_an_input(tmp_path: Path) -> None:
    program = LEAF + "t = torch.tensor([0, 1])\nloss = F.cross_entropy(x, t, label_smoothing=0.1)\nloss.backward()\n"
    stops = stops_of(tmp_path, program)
    assert local_of(stops, "AddBackward0") == ["∂loss/∂(the output of MulBackward1) = 1"] * 2
    (quotient,) = local_of(stops, "DivBackward0")
    assert quotient.endswith("= 1 / (the other input) = 0.5")
