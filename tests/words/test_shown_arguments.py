"""What a box shows of the arguments of an operation: those that are not PyTorch's defaults."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import gradviz
from gradviz.events.kinds import Kind
from gradviz.graph.build import build
from gradviz.graph.model import OP
from gradviz.pictures.node_text import DEFAULTS, shown_arguments
from gradviz.tracefile import open_trace
from gradviz.words.sentences import call_of
from gradviz.words.stop import Stop
from gradviz.words.words import Words

FUNCTIONS = sorted((op, text) for text, ops in DEFAULTS.items() for op in ops)


@pytest.mark.parametrize(("op", "text"), FUNCTIONS)
def test_each_default_that_a_box_leaves_out_is_pytorchs(op: str, text: str) -> None:
    functional = pytest.importorskip("torch.nn.functional", reason="PyTorch is not installed")
    name, _, value = text.partition("=")
    if not hasattr(functional, op):
        pytest.skip(f"this PyTorch has no {op}")
    assert inspect.signature(getattr(functional, op)).parameters[name].default == ast.literal_eval(value)


@pytest.mark.parametrize(
    ("op", "args", "shown"),
    [
        ("dropout", "p=0.5, training=True", ""),
        ("dropout", "p=0.1, training=True", "p=0.1"),
        ("cross_entropy", "ignore_index=-100, reduction='mean', label_smoothing=0.1", "label_smoothing=0.1"),
        ("mse_loss", "reduction='sum'", "reduction='sum'"),
        ("sum", "dim=1, keepdim=True", "dim=1, keepdim=True"),
        ("getitem", "index=(0, 1)", "index=(0, 1)"),
        ("softmax", "dim=1", "dim=1"),
        ("clamp", "min=-1.0, max=1.0", "min=-1.0, max=1.0"),
    ],
)
def test_a_box_shows_the_arguments_that_are_no_defaults(op: str, args: str, shown: str) -> None:
    assert shown_arguments(op, args) == shown


def test_the_picture_of_a_training_step_says_what_its_program_chose(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import gradviz
    from gradviz.graph.build import build
    from gradviz.pictures.scene import scene_of

    with gradviz.record(tmp_path / "run.gradviz"):
        w = torch.ones(3, 4, requires_grad=True)
        h = torch.nn.functional.dropout(w * 2, 0.25)
        torch.nn.functional.cross_entropy(h, torch.tensor([0, 1, 2])).backward()
    scene = scene_of(build(gradviz.open(tmp_path / "run.gradviz")))
    said = [text for thing in scene.things.values() for role, text in thing.lines if role == "args"]
    assert "p=0.25" in said
    assert not any("training" in text or "reduction" in text for text in said)


@pytest.mark.torch
def test_an_index_says_what_stands_beside_its_tensors(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x, i = torch.ones(3, 4, 2), torch.tensor([0, 1])
    with gradviz.record(tmp_path / "index.gradviz"):
        _ = x[:, i], x[None], x[..., i, 0], x[i], x[i, i]
        x[:, i] = 1.0
    with open_trace(tmp_path / "index.gradviz") as trace:
        ops = map(trace.event, trace.table(Kind.OP).events.tolist())
        texts = [op.args for op in ops if op.op in ("getitem", "setitem")]
    beside = ["index=(:, a tensor)", "index=None", "index=(..., a tensor, 0)"]
    assert texts == [*beside, "", "", "(:, a tensor), 1.0"]


@pytest.mark.torch
def test_an_operator_has_the_name_of_its_function(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with gradviz.record(tmp_path / "operator.gradviz"):
        w = torch.ones(2, requires_grad=True)
        (w * (torch.arange(2) == 0)).sum().backward()
    with open_trace(tmp_path / "operator.gradviz") as trace:
        names = [node.name for node in build(trace).nodes.values() if node.kind == OP]
    assert names == ["eq", "mul", "sum"]


@pytest.mark.torch
def test_an_operator_is_written_between_its_operands_where_the_source_is_not_known(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with gradviz.record(tmp_path / "operators.gradviz", source=False):
        x, y = torch.tensor([5, 7]), torch.tensor([2, 2])
        _ = x // 2, 3 // x, 1 - x, x == y, 5 % x, x << 1, ~x
    with open_trace(tmp_path / "operators.gradviz") as trace:
        words = Words(trace)
        events = trace.table(Kind.OP).events.tolist()
        said = [call_of(Stop(words, event), words.query.tensors.op(event)) for event in events]
    x, y = said[0].split(" // ")[0], said[3].split(" == ")[1]
    assert said == [
        f"{x} // 2", f"3 // {x}", f"1 - {x}", f"{x} == {y}", f"5 % {x}", f"{x} << 1", f"bitwise_not({x})"
    ]  # fmt: skip


CALLS = {
    "F.avg_pool2d(x, 2, 2, 0, False, True)": "2, 2, 0, False, True",
    "F.avg_pool2d(x, 2, count_include_pad=False)": "2, count_include_pad=False",
    "F.max_pool2d(x, 2)": "2, padding=0, dilation=1",
    "x.var(unbiased=False)": "unbiased=False",
    "x.var(0, False)": "dim=0, unbiased=False",
    "x.var(False)": "unbiased=False",
    "x.std(1, False, True)": "dim=1, unbiased=False, keepdim=True",
    "x.topk(2, -1, False)": "k=2, dim=-1, largest=False",
    "x.sum(0, False)": "dim=0",
    "x.clamp(None, 1.0)": "max=1.0",
}


@pytest.mark.torch
@pytest.mark.parametrize("call", CALLS)
def test_what_is_not_usual_is_told_at_its_place(call: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz", source=False):
        eval(call, {"x": x, "F": torch.nn.functional})
    with open_trace(tmp_path / "run.gradviz") as trace:
        op = trace.event(int(trace.indices(Kind.OP)[0]))
    assert op.args == CALLS[call]
