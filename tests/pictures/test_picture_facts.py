"""What a picture says of the root, and of a gradient that is added to another one."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradviz
import gradviz.engine as torch
from gradviz.graph.build import build
from gradviz.graph.fold import folded
from gradviz.pictures.node_text import OVERVIEW, facts, lines_of
from gradviz.pictures.style import node_classes
from gradviz.pictures.textbook import textbook
from gradviz.tracefile import Trace, open_trace
from gradviz.words.escape import plain_name
from gradviz.words.words import Words


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    with gradviz.record(tmp_path / "p.gradviz"):
        x = torch.tensor(5.0, requires_grad=True)
        z = torch.log(x**3)
        z.backward(retain_graph=True)
        z.backward(retain_graph=True)
        x.grad.zero_()
        z.backward()
    return open_trace(tmp_path / "p.gradviz")


def lines(trace: Trace, number: int, name: str) -> list[str]:
    (node,) = [node for node in build(trace, number).nodes.values() if node.name == name and not node.overwritten]
    return [text for _, text in lines_of(node, "both")]


def test_the_root_is_called_so(trace: Trace) -> None:
    assert "non-leaf · requires_grad · root" in lines(trace, 1, "z")
    assert not any("root" in line for line in lines(trace, 1, "x"))


def test_among_modules_the_look_of_the_root_tells_that_it_is_one(trace: Trace) -> None:
    (root,) = [node for node in build(trace, 1).nodes.values() if node.name == "z"]
    told = [text for _, text in lines_of(root, "both", OVERVIEW)]
    assert "grad_fn=LogBackward0" in told
    assert not [text for text in told if "root" in text]


def test_a_gradient_that_is_added_stands_there_as_two_amounts(trace: Trace) -> None:
    told = lines(trace, 2, "x")
    assert told[told.index(".grad = 1.2") + 1] == "= 0.6 (before) + 0.6"


@pytest.mark.parametrize("number", [1, 3])
def test_nothing_is_added_to_none_or_to_zero(trace: Trace, number: int) -> None:
    told = lines(trace, number, "x")
    assert ".grad = 0.6" in told
    assert not any("before" in line for line in told)


def test_a_gradient_that_was_cleared_stands_there_with_what_cleared_it(trace: Trace) -> None:
    told = lines(trace, 3, "x")
    assert told[told.index(".grad = 0.6") + 1] == "1.2 → zero_ → 0.6"


@pytest.mark.parametrize(
    ("clear", "told"),
    [
        ("x.grad = None", "[2, 4] → None → [2, 4]"), ("x.grad.zero_()", "[2, 4] → zero_ → [2, 4]"),
        ("optimizer.zero_grad()", "[2, 4] → None → [2, 4]"), ("", "= [2, 4] (before) + [2, 4]"),
        ("x.grad.mul_(2)", "= [4, 8] (before) + [2, 4]"),
    ],
)  # fmt: skip
def test_what_happened_to_a_gradient_between_two_passes_is_told(tmp_path: Path, clear: str, told: str) -> None:
    with gradviz.record(tmp_path / "m.gradviz"):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        optimizer = torch.optim.SGD([x], lr=0.0)
        (x * x).sum().backward()
        exec(clear)
        (x * x).sum().backward()
    with gradviz.open(tmp_path / "m.gradviz") as trace:
        shown = lines(trace, 2, "x")
    assert optimizer.param_groups
    assert told in shown


def test_a_textbook_has_both_amounts(trace: Trace) -> None:
    scene = textbook(Words(trace), build(trace, 2))
    assert any(text == ".grad = 0.6 (before) + 0.6" for t in scene.things.values() for _, text in t.lines)


def test_of_a_long_path_a_box_shows_the_end_and_of_an_expression_the_beginning() -> None:
    assert plain_name("model.layers.0.q_proj.weight", 16) == "…0.q_proj.weight"
    assert plain_name("torch.randn(3, 3, requires_grad=True) * scale_of_all", 24) == "torch.randn(3, 3, requi…"
    assert plain_name("w", 24) == "w"
    assert plain_name("a_word_of_one_part", 8) == "a_word_…"


def test_the_infinity_that_fills_a_mask_is_no_fault(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "m.gradviz"):
        w = torch.ones(2, 2, requires_grad=True)
        mask = torch.full((2, 2), float("-inf"))
        ones = torch.log(torch.zeros(2, 2))
        (w + mask.triu(1) + ones).sum().backward()
    roles = {
        node.name: [role for role, text in lines_of(node, "both") if "inf" in text]
        for node in build(open_trace(tmp_path / "m.gradviz")).nodes.values()
    }
    assert (roles["mask"], roles["ones"]) == (["value"], ["odd"])


def test_a_buffer_is_not_called_a_frozen_parameter(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "p.gradviz"):
        net = torch.nn.Linear(2, 2)
        net.bias.requires_grad_(False)
        net.register_buffer("mask", torch.ones(2))
        (net(torch.ones(3, 2)) * net.mask).sum().backward()
    with open_trace(tmp_path / "p.gradviz") as trace:
        named = {node.name: node for node in build(trace, 1).nodes.values() if node.is_leaf}
    mask, bias = named["net.mask"], named["net.bias"]
    assert (facts(mask), facts(bias)) == ("leaf · buffer", "leaf · frozen")
    assert "frozen" in node_classes(bias)
    assert "frozen" not in node_classes(mask)


def test_classes_are_told_by_the_least_and_the_largest(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "p.gradviz"):
        scores = torch.randn(20, 3, requires_grad=True)
        labels = torch.arange(20) % 3
        torch.nn.functional.cross_entropy(scores, labels).backward()
    assert any("int64 from 0 to 2" in line for line in lines(open_trace(tmp_path / "p.gradviz"), 1, "labels"))


def test_truth_values_are_told_by_the_share_of_those_that_are_true(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "p.gradviz"):
        x = torch.arange(20.0, requires_grad=True)
        mask = torch.arange(20) < 15
        torch.where(mask, x * 2, x).sum().backward()
    with open_trace(tmp_path / "p.gradviz") as trace:
        (node,) = (node for node in build(trace).nodes.values() if node.name == "mask")
        assert [text for _, text in lines_of(node, "both") if "bool" in text] == ["[20] bool true in 75 %"]


def test_a_module_whose_result_nothing_reads_tells_its_shape(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.extra = torch.nn.Linear(4, 3), torch.nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.head(x), self.extra(x)

    with gradviz.record(tmp_path / "p.gradviz"):
        net = Net()
        scores, _ = net(torch.randn(5, 4))
        scores.sum().backward()
    with open_trace(tmp_path / "p.gradviz") as trace:
        nodes = folded(build(trace, 1, whole=True), depth=1).nodes.values()
        boxes = [lines_of(node, "both") for node in nodes if (node.name or "").endswith("extra")]
    assert ("value", "[5, 4] → [5, 2]") in boxes[0]


@pytest.mark.parametrize(
    ("optimizer", "step"), [("SGD", "[1, 2] − 0.1 · [3, -1]"), ("Adam", "[1, 2] − 0.1 · [3, -1] / (√[9, 1] + 1e-8)")]
)
def test_a_leaf_tells_the_numbers_of_the_step_that_made_it(tmp_path: Path, optimizer: str, step: str) -> None:
    with gradviz.record(tmp_path / "p.gradviz"):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        (w * torch.tensor([3.0, -1.0])).sum().backward()
        getattr(torch.optim, optimizer)([w], lr=0.1).step()
        (w * w).sum().backward()
    assert f"version 1, after {optimizer}: {step}" in lines(open_trace(tmp_path / "p.gradviz"), 2, "w")
