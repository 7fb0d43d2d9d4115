"""What tensors are called."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz.engine as torch
from gradviz.engine import nn
from gradviz.errors import nearest
from gradviz.events.kinds import Accumulated, NodeMade, OpRan, TensorMade
from gradviz.graph.build import build
from gradviz.page import views
from gradviz.pictures.node_text import lines_of
from gradviz.pictures.render import svg
from gradviz.query import Query
from gradviz.query.names import LONGEST, short_expression
from gradviz.sources.record import record
from gradviz.tracefile import open_trace
from gradviz.words import Stop, Words
from gradviz.words.sentences import sentence
from gradviz.words.stop import UnknownName, subject


def named(path: Path) -> list[tuple[str, str | None]]:
    """Each op with the name of what it gave."""
    with open_trace(path) as trace:
        names = Query(trace).names
        return [(event.op, names.of(event.outputs[0])) for event in trace if isinstance(event, OpRan)]


def test_only_the_last_op_of_a_library_call_gives_what_is_assigned(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        layer = nn.Linear(2, 3)
        out = layer(torch.ones(4, 2))
        loss = (out * out).mean()
    assert loss.requires_grad
    expected = [("t", None), ("addmm", "out"), ("mul", None), ("mean", "loss")]
    assert named(tmp_path / "run.gradviz") == expected


def test_a_module_of_several_layers_names_its_last_result(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
        for _ in range(2):
            out = model(torch.ones(4, 2))
    assert out.requires_grad
    assert [name for op, name in named(tmp_path / "run.gradviz") if op == "addmm"] == [None, "out", None, "out"]


def test_a_loop_names_the_result_of_every_turn(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        h = torch.ones(1, requires_grad=True)
        for _ in range(3):
            h = h * 2
    assert named(tmp_path / "run.gradviz") == [("mul", "h")] * 3


def test_what_runs_inside_a_backward_pass_is_not_its_result(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        x = torch.tensor(5.0, requires_grad=True)
        (first,) = torch.autograd.grad(torch.log(x**3), x, create_graph=True)
    assert first.requires_grad
    names = [name for _, name in named(tmp_path / "run.gradviz")]
    assert names.count("first") == 1
    assert names[-1] == "first"


def test_parameters_are_called_by_their_path(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        model = nn.Sequential(nn.Linear(2, 3))
        model(torch.ones(4, 2))
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert sorted(trace.parameters.values()) == ["model.0.bias", "model.0.weight"]


def test_a_tensor_that_is_changed_before_it_is_assigned_has_the_name_of_the_variable(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        wanted = (2 * torch.ones(2)).requires_grad_(True)
        clamped = (torch.ones(2) * 3).clamp_(0, 1)
    assert wanted.requires_grad
    assert clamped is not None
    with open_trace(tmp_path / "run.gradviz") as trace:
        names = Query(trace).names
        for name in ("wanted", "clamped"):
            tensor = names.tensor_called(name, trace.count)
            assert names.of(tensor) == name
            assert names.all.labels[names.all.codes_of(np.array([tensor]))[0]] == name


@pytest.mark.parametrize(
    ("typed", "known", "found"),
    [
        ("nxt", ["back", "next"], "next"),
        ("bakc", ["back", "next"], "back"),
        ("encodr/layer", ["decoder/layer", "encoder/layer"], "encoder/layer"),
        ("print", ["into", "next"], ""),
        ("compile", ["complex64"], ""),
        ("x", [], ""),
        ("renorm", ["max", "norm"], "norm"),
        ("lu", ["le"], ""),
        ("§", ["q"], ""),
    ],
)
def test_the_nearest_name_has_few_typing_errors(typed: str, known: list[str], found: str) -> None:
    assert nearest(typed, known) == found


def test_a_tensor_without_a_name_is_called_the_same_in_every_view(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (x**3 + torch.ones(2)).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        words = Words(trace)
        graph = build(trace)
        drawn = {node.number: node.label for node in graph.nodes.values() if node.kind in ("leaf", "tensor")}
        picture = svg(graph)
        page = views.view(graph, trace.passes[0], views.Shared(words))
        asked = [subject(words, name, 0).tensor for name in drawn.values()]
    assert drawn == {tensor: words.called(tensor) for tensor in drawn}
    assert {"x", "x**3", "x**3 + torch.ones(2)"} <= set(drawn.values())
    assert all(f">{name}</text>" in picture for name in ("x**3", "x**3 + torch.ones(2)"))
    assert {"x**3", "x**3 + torch.ones(2)"} <= {node.get("called") for node in page["nodes"]}
    assert asked == list(drawn), "and the stepper finds it by what it is called"


def test_the_gradient_that_a_pass_begins_with_has_not_the_name_of_its_result(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        x = torch.tensor(2.0, requires_grad=True)
        (slope,) = torch.autograd.grad(x**2, x)
    assert float(slope) == 4
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        seeds = [e.tensor for e in trace if isinstance(e, TensorMade) and e.how == "gradient"]
        called = [query.labels.of(seed) for seed in seeds]
    assert called
    assert "slope" not in called


def test_a_tensor_from_before_the_recording_has_not_the_name_of_what_is_made_of_it(tmp_path: Path) -> None:
    data = torch.ones(2)
    with record(tmp_path / "run.gradviz"):
        prediction = data * 2
    assert prediction.tolist() == [2, 2]
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        (made,) = (event for event in trace if isinstance(event, OpRan))
        assert query.names.of(made.inputs[0]) is None
        assert query.names.of(made.outputs[0]) == "prediction"


def test_a_gradient_of_itself_is_called_by_its_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a damaged trace may say."""
    with record(tmp_path / "run.gradviz"):
        x = torch.tensor(2.0, requires_grad=True)
        (x**2).backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        labels = Query(trace).labels
        seed = next(e.tensor for e in trace if isinstance(e, TensorMade) and e.how == "gradient")
        monkeypatch.setattr(labels, "_differentiated", lambda gradient: gradient)
        assert labels.of(seed) == f"gradient of t{seed}"


TUPLES = """\
import torch
class Coder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    def encode(self, x):
        return self.first(x), self.second(x)
    def forward(self, x):
        mu, logvar = self.encode(x)
        return mu * 1, (logvar * 2), self.first(x) * 3
def pair(x):
    return x * 4, x * 5
def through(x):
    return pair(x)
def choose(x):
    return x.sum() * 6, x.sum() * 7
x = torch.ones(2, 2)
coder = Coder()
out, spread, other = coder(x)
left, right = pair(x)
up, down = through(x)
low, high = max([x, x + 1], key=choose)  # two rows, and not what choose returns
"""


def test_what_a_function_returns_in_a_tuple_has_the_names_that_its_caller_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradviz.sources.script import Target, run

    (tmp_path / "tuples.py").write_text(TUPLES)
    monkeypatch.chdir(tmp_path)
    run(Target("tuples.py", False, ()), "run.gradviz", engine="numpy")
    found: dict[str, str | None] = {}
    with open_trace(tmp_path / "run.gradviz") as trace:
        names = Query(trace).names
        for event in trace:
            if isinstance(event, OpRan) and event.op in ("addmm", "mul"):
                place = trace.sites[event.site].place
                line = TUPLES.splitlines()[place.line - 1]
                found[line[place.col : place.end_col]] = names.of(event.outputs[0])
    assert found == {
        "self.first(x)": None,  # in forward it is a part of an expression
        "self.second(x)": "logvar",
        "mu * 1": "out",
        "logvar * 2": "spread",
        "self.first(x) * 3": "other",
        "x * 4": "up",
        "x * 5": "down",
        "x.sum() * 6": None,
        "x.sum() * 7": None,
    }


def test_what_the_making_of_a_module_computes_is_not_called_as_the_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weight_norm = torch.nn.utils.parametrizations.weight_norm
    with record(tmp_path / "run.gradviz"):
        layer = weight_norm(torch.nn.Linear(2, 3))
        out = layer(torch.ones(4, 2))
        out.sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        names = Query(trace).names
        assert {name.partition(".")[0] for name in trace.parameters.values()} == {"layer"}
        assert names.tensor_called("layer", trace.count) == 0
        assert names.tensor_called("out", trace.count) > 0
        assert "layer" not in names.all.labels


def labels(folder: Path, program: str) -> list[str]:
    """What the tensors of a program are called that have no name in it, in the order in which they were made."""
    source, path = folder / "p.py", folder / "p.gradviz"
    source.write_text("import gradviz.engine as torch\n" + program)
    with record(path):
        exec(compile(source.read_text(), str(source), "exec"), {"__name__": "p"})
    with open_trace(path) as trace:
        query = Query(trace)
        made = [event for event in trace if isinstance(event, OpRan | TensorMade)]
        tensors = [t for one in made for t in getattr(one, "outputs", None) or (one.tensor,)]
        return [query.labels.of(tensor) for tensor in tensors if query.names.of(tensor) is None]


X = "x = torch.tensor([[1.0, 5.0], [7.0, 0.0]], requires_grad=True)\n"
UNNAMED = [
    ("(x * torch.tensor([2.0, 3.0])).sum()", ["torch.tensor([2.0, 3.0])", "x * torch.tensor([2.0, 3.0])"]),
    ("x.sum() * x.data.sum()", ["x.sum()", "x.data", "x.data.sum()"]),
    ("x[0, 1] * 2", ["x[0]", "x[0, 1]"]),
    ("x[:, 0][1] * 2", ["x[:, 0]", "x[:, 0][1]"]),
    (
        "torch.nn.functional.cross_entropy(x, torch.tensor([0, 1])) * 2",
        ["torch.tensor([0, 1])", "log_softmax(x, dim=1)"],
    ),
]


@pytest.mark.parametrize(("expression", "expected"), UNNAMED, ids=[expression for expression, _ in UNNAMED])
def test_what_has_no_name_is_called_by_what_made_it(tmp_path: Path, expression: str, expected: list[str]) -> None:
    assert labels(tmp_path, f"{X}y = {expression}\n")[: len(expected)] == expected


def test_the_last_op_of_an_expression_gives_its_value(tmp_path: Path) -> None:
    program = f"{X}t = torch.tensor([0, 1])\ny = torch.nn.functional.cross_entropy(x, t) * 2\n"
    assert labels(tmp_path, program) == ["log_softmax(x, dim=1)", "torch.nn.functional.cross_entropy(x, t)"]


def test_what_a_function_computed_last_is_not_called_by_its_call(tmp_path: Path) -> None:
    program = "w = torch.tensor([3.0, 4.0], requires_grad=True)\n(w * 2).sum().backward()\n"
    told = labels(tmp_path, f"{program}print(torch.nn.utils.clip_grad_norm_([w], 1.0))\n")
    assert not [label for label in told if label.startswith("torch.nn.utils")]


@pytest.mark.torch
def test_what_a_function_writes_to_has_not_the_name_of_what_it_returns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source, path = tmp_path / "p.py", tmp_path / "p.gradviz"
    source.write_text(
        "import torch\nw = torch.tensor([3.0, 4.0], requires_grad=True)\n(w * 2).sum().backward()\n"
        "norm = torch.nn.utils.clip_grad_norm_([w], 1.0)\ny = (w * 3).detach().add_(1)\n"
    )
    with record(path):
        exec(compile(source.read_text(), str(source), "exec"), {"__name__": "p"})
    with open_trace(path) as trace:
        query = Query(trace)
        [leaf] = {event.tensor for event in trace if isinstance(event, Accumulated)}
        assert query.labels.of(query.tensors.grad(leaf, trace.count)) == "gradient of w"
        assert query.labels.tensor_called("y", trace.count) > 0
        with pytest.raises(UnknownName, match="known names"):
            subject(Words(trace), "norm", trace.count - 1)


def test_an_op_of_a_derivative_is_called_by_what_it_computes(tmp_path: Path) -> None:
    program = "x = torch.tensor(3.0, requires_grad=True)\ny = x ** 3\n"
    program += "(g,) = torch.autograd.grad(y, x, create_graph=True)\n"
    assert labels(tmp_path, program) == ["gradient of y", "pow(x, exponent=2)", "mul(pow(x, exponent=2), 3.0)"]


def test_what_a_module_gives_is_called_by_it(tmp_path: Path) -> None:
    program = "net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())\n"
    told = labels(tmp_path, f"{program}y = net(torch.ones(1, 2)).sum()\n")
    assert [label for label in told if label.startswith("net")] == ["net.0(…)", "net.1(…)"]


@pytest.mark.parametrize("expression", ["torch.nn.Parameter(start).to(dtype)", "w.to(dtype)"])
def test_the_argument_of_a_method_is_not_the_name_of_its_object(expression: str, tmp_path: Path) -> None:
    program = "start, dtype = torch.ones(2), torch.float64\nlist_of_w = [torch.nn.Parameter(start)]\n"
    program += f"for w in list_of_w:\n    y = {expression}\ny.sum().backward()\n"
    labels(tmp_path, program)
    with open_trace(tmp_path / "p.gradviz") as trace:
        query = Query(trace)
        assert "dtype" not in {Words(trace, query).called(leaf) for leaf in query.at(trace.count - 1).leaves}


def test_a_call_in_a_name_can_be_asked_for(tmp_path: Path) -> None:
    program = "x = torch.tensor(3.0, requires_grad=True)\ny = x ** 3 * torch.tensor(2.0)\n"
    program += "(g,) = torch.autograd.grad(y, x, create_graph=True)\n"
    program += "p = torch.ones(2, 3, requires_grad=True)\nz = p[:, 1][0] * p[1, 0] + p.data.sum()\n"
    program += "c = torch.nn.functional.cross_entropy(p, torch.tensor([0, 1]))\n"
    labels(tmp_path, program)
    with open_trace(tmp_path / "p.gradviz") as trace:
        query = Query(trace)
        for label in ("torch.tensor(2.0)", "pow(x, exponent=2)", "p[1]", "p[:, 1]", "p.data", "log_softmax(p, dim=1)"):
            assert query.labels.of(query.labels.tensor_called(label, trace.count)) == label


LONG = """\
bias = torch.ones(2, requires_grad=True)
y = torch.exp(-torch.linalg.norm(x.reshape(-1) - torch.arange(4.0) * 0.5)) + (
    bias.abs().sum()  # of the absolute values
    - torch.where(x.sum(dim=1) > torch.zeros(2), bias * bias, bias.exp()).sum()
) + torch.nn.functional.max_pool1d(torch.nn.functional.softplus(x.unsqueeze(0)), 2, return_indices=True)[0].sum()
"""


def test_a_long_expression_is_cut_where_its_parts_end(tmp_path: Path) -> None:
    told = labels(tmp_path, X + LONG)
    assert "torch.exp(-torch.linalg.norm(… - …))" in told
    assert "bias.abs().sum() - torch.where(…).sum()" in told
    assert "torch.where(… > …, bias * …, bias.exp())" in told
    assert not [name for name in told if re.fullmatch(r"t\d+", name) or len(name) > LONGEST + len("[0]")]


@pytest.mark.torch
def test_both_libraries_cut_a_long_expression_alike(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = "w = torch.ones(2, 2, requires_grad=True)\nobservations = torch.ones(2, 2)\n"
    program += "loss = (torch.matmul(observations, w.transpose(0, 1)) ** 2).sum()\nloss.backward()\n"
    cut = "torch.matmul(observations, …)"
    for library in ("gradviz.engine as torch", "torch"):
        source, path = tmp_path / "p.py", tmp_path / "p.gradviz"
        source.write_text(f"import {library}\n{program}")
        path.unlink(missing_ok=True)
        with record(path):
            exec(compile(source.read_text(), str(source), "exec"), {"__name__": "p"})
        with open_trace(path) as trace:
            words, end = Words(trace), trace.count - 1
            whole = subject(words, "torch.matmul(observations, w.transpose(0, 1))", end)
            assert whole.called == cut
            assert subject(words, cut, end).tensor == whole.tensor


def test_a_name_that_is_typed_is_not_cut(tmp_path: Path) -> None:
    labels(tmp_path, X + LONG)
    with open_trace(tmp_path / "p.gradviz") as trace:
        words, cut = Words(trace, is_exact=True), Words(trace)
        made = [tensor for event in trace if isinstance(event, OpRan) for tensor in event.outputs]
        [sum_of_parts] = [tensor for tensor in made if cut.called(tensor).startswith("torch.where(… > …, bias * bias")]
        assert words.called(sum_of_parts) == f"t{sum_of_parts}"
        assert not [tensor for tensor in made if "…" in words.called(tensor)]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("x + y", "x + y"),
        ("log_softmax(torch.tanh(x) * torch.sigmoid(x), dim=1)", "log_softmax(torch.tanh(x) * …, dim=1)"),
        ("((pred_of_the_model - target_of_the_model) ** 2).mean()", "((pred_of_the_model - …) ** 2).mean()"),
        ("torch.tensor([1.0, 2.0, 3.0], dtype=torch.float32)", "torch.tensor([1.0, 2.0, 3.0], …)"),
        ("f(가나다라마바 * 카타파하, 가나다라마바사아자차카타) + 가나다라마바사아",
         "f(가나다라마바 * …, 가나다라마바사아자차카타) + 가나다라마바사아"),
        ("relu(net.0(…).exp() + net.1(…), negative=1.0)", "relu(net.0(…).exp() + …, negative=1.0)"),
        ("sub(sub(logits, logsumexp(logits, …)), sub(other, logsumexp(other, dim=-1, …)))",
         "sub(sub(logits, logsumexp(…)), sub(…))"),
        ("first_attribute.second_attribute.third_attribute", "…ribute.second_attribute.third_attribute"),
        ("no code at all, and yet a very long text", "no code at all, and yet a very long text"),
        ("no code at all, and yet a very long text!", "… code at all, and yet a very long text!"),
    ],
)  # fmt: skip
def test_what_is_left_out_of_an_expression_is_a_whole_part(text: str, short: str) -> None:
    assert short_expression(text, LONGEST) == short
    assert len(short) <= LONGEST


def test_a_picture_shows_the_beginning_of_a_call_that_is_too_long_for_a_name(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        w = torch.ones(3, requires_grad=True)
        (w * torch.tensor([1.0, 2.0, 3.0], dtype=torch.float32, requires_grad=False)).sum().backward()
    query = Query(open_trace(tmp_path / "run.gradviz"))
    graph = build(query)
    [made] = [node for node in graph.nodes.values() if node.label.startswith("torch.tensor(")]
    assert lines_of(made, "both")[0] == ("unnamed", "torch.tensor([1.0, 2.0, 3.0], …)")
    assert made.called == query.labels.of(made.number)


TWICE = """\
x = torch.tensor([1.0, 2.0], requires_grad=True)
w = torch.tensor([3.0, -1.0], requires_grad=True)
y = torch.sigmoid(x * w)
loss = (y / (1 + x**2)).sum()
(gx,) = torch.autograd.grad(loss, x, create_graph=True)
(gx**2).sum().backward()
"""


def recorded(folder: Path, library: str, program: str) -> Path:
    """The trace of a program that imports a library as torch."""
    source, path = folder / "p.py", folder / "p.gradviz"
    source.write_text(f"import {library}\n{program}")
    with record(path):
        exec(compile(source.read_text(), str(source), "exec"), {"__name__": "p"})
    return path


@pytest.mark.torch
def test_what_a_function_of_pytorch_makes_on_its_way_has_not_the_name_of_its_result(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = "rows = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)\n"
    program += "doubled = (rows * 2).values()\n"
    with open_trace(recorded(tmp_path, "torch", program)) as trace:
        names = Words(trace).query.names
        [doubling] = [event for event in trace if isinstance(event, OpRan) and event.op == "mul"]
        made = [event.tensor for event in trace if isinstance(event, TensorMade)]
        assert names.of(doubling.inputs[0]) == "rows"
        assert [names.of(tensor) for tensor in made if names.of(tensor)] == []
        assert names.all.codes_of(names.all.tensors).tolist().count(names.all.labels.index("rows")) == 1


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("result_of(x)", "result"),
        ("max([x, 2 * x], key=result_of)", "(y * y).sum()"),
        ("min([x, 2 * x], key=lambda x: (x * x).sum())", "(x * x).sum()"),
        ("torch.func.grad(result_of)(x)", "(y * y).sum()"),
        ("slope_of(x)", "(y * y).sum()"),
    ],
)
def test_a_value_has_the_name_that_a_caller_gives_it_unless_another_function_called_for_it(
    tmp_path: Path, call: str, name: str
) -> None:
    program = "def result_of(y):\n    return (y * y).sum()\n\nslope_of = torch.func.grad(result_of)\n"
    program += f"x = torch.ones(2)\nresult = {call}\n"
    with open_trace(recorded(tmp_path, "gradviz.engine as torch", program)) as trace:
        sums = [event for event in trace if isinstance(event, OpRan) and event.op == "sum"]
        assert Words(trace).called(sums[0].outputs[0]) == name


def test_what_a_node_saved_has_the_name_of_the_result_when_it_is_differentiated_again(tmp_path: Path) -> None:
    with open_trace(recorded(tmp_path, "gradviz.engine as torch", TWICE)) as trace:
        words = Words(trace)
        [read] = [event for event in trace if isinstance(event, TensorMade) and event.how == "earlier"]
        assert words.called(read.tensor) == "y"
        assert sentence(Stop(words, read.index)) == "y is read as its node saved it"
        ops = [event for event in trace if isinstance(event, OpRan)]
        assert not [name for op in ops for name in map(words.called, op.outputs) if re.fullmatch(r"t\d+", name)]


@pytest.mark.torch
def test_a_part_of_a_gradient_has_not_the_name_of_the_whole(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with open_trace(recorded(tmp_path, "torch", TWICE)) as trace:
        words = Words(trace)
        ops = [event for event in trace if isinstance(event, OpRan)]
        assert "gx" not in [words.called(op.outputs[0]) for op in ops if op.in_pass]
        names = words.query.names
        assert [names.all.labels[code] or None for code in names.all.codes_of(names.all.tensors)] == [
            names.of(tensor) for tensor in names.all.tensors.tolist()
        ]
        [square] = [op for op in ops if words.called(op.outputs[0]) == "gx**2"]
        [node] = [event for event in trace if isinstance(event, NodeMade) and event.outputs == square.outputs]
        assert words.edges_called(node) == ["gradient of x"]
        divisions = [event for event in trace if isinstance(event, NodeMade) and event.grad_fn == "DivBackward0"]
        assert "the other input" not in [name for made in divisions for name in words.edges_called(made)]


def test_a_grad_with_a_graph_is_called_by_what_it_is_of(tmp_path: Path) -> None:
    program = "x = torch.tensor(5.0, requires_grad=True)\n(x**3).backward(create_graph=True)\n"
    program += "g = x.grad\nx.grad = None\ng.backward()\n"
    with open_trace(recorded(tmp_path, "gradviz.engine as torch", program)) as trace:
        words = Words(trace)
        [root] = words.query.passes.began(2).roots
        assert words.called(root.tensor) == "x.grad"


@pytest.mark.torch
def test_an_element_of_a_row_is_not_taken_from_the_whole(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = "x = torch.ones(2, 2, requires_grad=True)\ny = x * 2\ny[0, 1].backward()\n"
    with open_trace(recorded(tmp_path, "torch", program)) as trace:
        words = Words(trace)
        taken = [event for event in trace if isinstance(event, NodeMade) and event.grad_fn == "SelectBackward0"]
        assert [words.edges_called(made) for made in taken] == [["y"], ["the output of SelectBackward0"]]


LOADER = """\
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(x)

model = Net()
for inputs, wanted in DataLoader(TensorDataset(torch.randn(4, 3), torch.randn(4, 1)), batch_size=2):
    ((model(inputs) - wanted) ** 2).mean().backward()
"""


@pytest.mark.torch
def test_a_batch_has_the_name_that_the_loop_unpacks_it_to(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with open_trace(recorded(tmp_path, "torch", LOADER)) as trace:
        words = Words(trace)
        ops = [event for event in trace if isinstance(event, OpRan) and event.op in ("linear", "addmm")]
        read = [tensor for op in ops for tensor in op.inputs if trace.shape(tensor) == ((2, 3), "float32")]
        assert [words.called(tensor) for tensor in read] == ["inputs", "inputs"]


def test_a_tensor_from_before_the_recording_has_the_name_of_what_is_indexed(tmp_path: Path) -> None:
    program = "x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])\nw = torch.ones(2, requires_grad=True)\n"
    scope: dict[str, Any] = {}
    exec(f"import gradviz.engine as torch\n{program}", scope)
    source = tmp_path / "p.py"
    source.write_text("(x[:, 0] * w).sum().backward()\n")
    with record(tmp_path / "p.gradviz"):
        exec(compile(source.read_text(), str(source), "exec"), scope)
    with open_trace(tmp_path / "p.gradviz") as trace:
        words = Words(trace)
        earlier = [event.tensor for event in trace if isinstance(event, TensorMade) and event.how == "earlier"]
        assert [words.called(tensor) for tensor in earlier] == ["x", "w"]
