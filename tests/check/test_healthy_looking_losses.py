"""Losses that look healthy: a parameter that math reads, a column in a target, gradients that a clip keeps small."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz import check
from gradviz.sources.script import Target, run

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="pip install torch==2.13.0")

BEGIN = """\
import math
import torch
torch.manual_seed(0)
"""
END = """\
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
MATH = """\
w, noise = torch.zeros(3, requires_grad=True), torch.tensor(-2.0, requires_grad=True)
optimizer = torch.optim.SGD([w, noise], lr=0.01)
for step in range(3):
    loss = ((torch.randn(8, 3) @ w).pow(2) + math.exp(noise) * torch.ones(8)).mean()
"""
TARGET = """\
critic, target = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(critic.parameters(), lr=0.1)
for step in range(3):
    with torch.no_grad():
        best = torch.minimum(target(torch.randn(8, 3)), critic(torch.randn(8, 3)))
        goal = torch.randn(8) + 0.9 * best
    loss = (critic(torch.randn(8, 3)) - goal).pow(2).mean()
"""
BIAS = """\
users, items, bias = torch.nn.Embedding(9, 4), torch.nn.Embedding(9, 4), torch.nn.Embedding(9, 1)
optimizer = torch.optim.SGD([*users.parameters(), *items.parameters(), *bias.parameters()], lr=0.1)
for step in range(3):
    i, j, score = torch.randint(0, 9, (8,)), torch.randint(0, 9, (8,)), torch.randn(8)
    guess = (users(i) * items(j)).sum(1) + bias(j)
    loss = (guess - score).pow(2).mean()
"""
PAIRS = """\
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    z = net(torch.randn(8, 3))
    square = z.pow(2).sum(1)
    loss = torch.exp(-(square + square.view(-1, 1) - 2 * z @ z.t())).mean()
"""
CLIPPED = """\
w = torch.zeros(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.05)
for step in range(30):
    loss = ((w - 1.0) * (torch.ones(2) * 2.0**step)).sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([w], 0.01)
    optimizer.step()
"""


def named(text: str, folder: Path) -> list[tuple[str, str]]:
    """The errors and warnings of a program: the rule and the source line of each."""
    lines = (BEGIN + text).splitlines()
    program, trace = folder / "program.py", folder / "run.gradviz"
    program.write_text("\n".join(lines) + "\n", encoding="utf-8")
    run(Target(str(program), False, []), trace, engine="torch")
    return [(found.rule, lines[found.line - 1].strip()) for found in check(trace).at_least("warning")]


def test_a_parameter_that_math_reads_beside_data_is_a_plain_number(tmp_path: Path) -> None:
    [(rule, line)] = named(MATH + END, tmp_path)
    assert (rule, line) == ("detached-path", MATH.splitlines()[-1].strip())


def test_a_column_in_a_target_without_a_graph_is_named(tmp_path: Path) -> None:
    assert named(TARGET + END, tmp_path) == [("broadcast-surprise", "goal = torch.randn(8) + 0.9 * best")]


def test_a_column_beside_a_learnt_row_is_named_if_one_value_for_each_row_follows(tmp_path: Path) -> None:
    line = "guess = (users(i) * items(j)).sum(1) + bias(j)"
    assert named(BIAS + END, tmp_path) == [("broadcast-surprise", line)]


def test_distances_of_all_pairs_are_no_surprise(tmp_path: Path) -> None:
    assert named(PAIRS + END, tmp_path) == []


def test_clipped_gradients_that_grow_are_no_overshoot(tmp_path: Path) -> None:
    assert named(CLIPPED, tmp_path) == []
    assert "lr-too-large" in [rule for rule, _ in named(CLIPPED.replace("0.01)", "1e30)"), tmp_path)]


UPHILL = """\
x, target = torch.tensor([0.3, -0.2, 0.5], requires_grad=True), torch.ones(3)
for scale in {scales}:
    loss = scale * ((x - target) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        x += {step}
    x.grad = None
"""


def test_a_step_uphill_by_the_sign_of_the_gradient_is_no_fault(tmp_path: Path) -> None:
    assert named(UPHILL.format(scales="[1] * 6", step="0.05 * x.grad.sign()"), tmp_path) == []
    assert named(UPHILL.format(scales="[1] * 6", step="0.05 * x.grad"), tmp_path) == [("ascent", "x += 0.05 * x.grad")]


def test_of_a_loss_that_ends_lower_it_is_not_said_that_it_rises(tmp_path: Path) -> None:
    scales = [9, 1, 1, 1, 2, 3, 4, 5, 6]  # the mean of the last third is above that of the first
    assert named(UPHILL.format(scales=scales, step="0.001 * x.grad"), tmp_path) == []
