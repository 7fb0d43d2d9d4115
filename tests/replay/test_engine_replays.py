"""Passes that gradviz's own engine ran, recorded with `--values inputs`, run again on it: without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
import gradviz.engine as torch
import gradviz.engine.nn.functional as F
from gradviz.engine import nn
from gradviz.engine.core.tensor import Tensor
from gradviz.events.kinds import CallMade
from gradviz.query.query import Query
from gradviz.replay.changed_pass import WhatIf, what_if
from gradviz.replay.outcome import Check, Edits, checked
from gradviz.replay.plan import plan_of
from gradviz.sources.torch_replay import runner_of
from gradviz.tracefile import open_trace
from gradviz.words.words import Words
from tests.invoked import invoked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gradviz"


def recorded(path: Path, program: Callable[[], object]) -> Path:
    with gradviz.record(path, values="inputs", with_torch=False):
        program()
    return path


def checks(path: Path) -> list[Check]:
    with open_trace(path) as trace:
        query = Query(trace)
        plans = [plan_of(query, run.number) for run in trace.passes]
        return [checked(query, plan, runner_of(query).run(plan, Edits())) for plan in plans]


def asked(path: Path, *sets: str, without: tuple[str, ...] = (), dtype: str = "") -> WhatIf:
    with open_trace(path) as trace:
        words = Words(trace)
        return what_if(words, runner_of(words.query), None, sets, dtype, without)


def after(found: WhatIf) -> dict[str, object]:
    return {change.called: None if change.after is None else change.after.tolist() for change in found.changes}


# --- programs, each hard for a replay in a way of its own


def views_and_writes() -> None:
    w = torch.arange(6.0, requires_grad=True)
    b = (w * 2).view(2, 3)
    row = b[0]
    row.mul_(3)
    b[1, 2] = 7.0
    b.t().add_(1)
    loss = (b * row.sum()).sum()
    loss.backward()


def layers_with_random_numbers() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    x, y = torch.randn(5, 4), torch.randn(5, 1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()


def hidden_state() -> None:
    torch.manual_seed(0)
    cell, h = nn.GRUCell(4, 5), torch.zeros(2, 5)
    for _ in range(3):
        h = cell(torch.randn(2, 4), h.detach())
        h.sum().backward()


def two_losses_of_one_trunk() -> None:
    torch.manual_seed(0)
    trunk = nn.Linear(4, 4)
    h = trunk(torch.randn(2, 4)).tanh()
    h.sum().backward(retain_graph=True)
    (h**2).sum().backward()


def written_through_data() -> None:
    torch.manual_seed(0)
    w = torch.ones(3, requires_grad=True)
    for _ in range(3):
        (w**2).sum().backward()
        w.data.sub_(w.grad * 0.1)
        w.data.clamp_(-1, 0.7)
        w.grad = None


def filled_through_data() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 2)
    (net(torch.ones(4, 3))).sum().backward()
    net.weight.data.normal_(0.0, 0.1)
    net.bias.data.uniform_(-1, 1)
    net(torch.ones(4, 3)).square().sum().backward()


def data_that_becomes_a_leaf() -> None:
    x = torch.tensor([1.0, 2.0])
    w = torch.tensor(3.0, requires_grad=True)
    (x * w).sum().backward()
    x.requires_grad_()
    (x * w).sum().backward()


def gradient_penalty() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    x = torch.randn(5, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    ((slope.norm(dim=1) - 1) ** 2).mean().backward()


def reflected_operators() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = (2 / x + (1 - x) ** 2 - 2**x + (-x).abs() @ x).mT[0].sum() + x.T.max()
    loss.backward()


def images() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    F.cross_entropy(net(torch.randn(4, 1, 10, 10)), torch.tensor([0, 1, 1, 0])).backward()


def functions_of_numpy() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (np.exp(x) + np.sum(x) + np.stack([x, np.tanh(x)])).sum().backward()


PROGRAMS: dict[Callable[[], None], int] = {
    views_and_writes: 1, layers_with_random_numbers: 3, hidden_state: 3, two_losses_of_one_trunk: 2,
    written_through_data: 3, filled_through_data: 2, data_that_becomes_a_leaf: 2, gradient_penalty: 2,
    reflected_operators: 1, images: 1, functions_of_numpy: 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_pass_gives_what_was_recorded(path: Path, program: Callable[[], None]) -> None:
    recorded(path, program)
    found = checks(path)
    assert len(found) == PROGRAMS[program]
    assert all(check.roots or check.gradients for check in found)
    assert [check.differences for check in found if check.differences] == []


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_that_has_a_gradient_enters_a_pass_as_it_was(path: Path, program: Callable[[], None]) -> None:
    recorded(path, program)
    with open_trace(path) as trace:
        query = Query(trace)
        inputs = [step for run in trace.passes for step in plan_of(query, run.number).inputs]
    assert inputs
    assert {step.how for step in inputs} <= {"leaf", "data", "carried"}


@pytest.mark.slow
def test_every_pass_gives_what_was_recorded_where_some_are_left_out(path: Path) -> None:
    with gradviz.record(path, values="inputs", passes={1, 3}, with_torch=False):
        written_through_data()
    with open_trace(path) as trace:
        query = Query(trace)
        plan = plan_of(query, 3)
        check = checked(query, plan, runner_of(query).run(plan, Edits()))
    assert check.roots == 1
    assert check.is_equal


# --- what is known by hand


def a_square() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    loss = x**2 * 5
    loss.backward()


@pytest.mark.slow
def test_another_value_gives_another_loss_and_another_gradient(path: Path) -> None:
    found = asked(recorded(path, a_square), "x=4")
    assert after(found) == {"loss": 80.0, "x.grad": 40.0}
    assert found.runner == "gradviz's engine"


@pytest.mark.slow
def test_without_a_detach_its_gradient_is_there(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(2.0, requires_grad=True)
        v = torch.tensor(3.0, requires_grad=True)
        h = (w * 5).detach()
        loss = h * v
        loss.backward()

    line = program.__code__.co_firstlineno + 3
    found = asked(recorded(path, program), without=(f"detach@{line}",))
    assert after(found) == {"loss": 30.0, "v.grad": 10.0, "w.grad": 15.0}


@pytest.mark.slow
def test_a_gradient_that_underflows_is_there_in_float64(path: Path) -> None:
    def program() -> None:
        x = torch.tensor(1e-30, requires_grad=True)
        loss = x**2
        (loss * 1e-20).backward()

    found = asked(recorded(path, program), dtype="float64")
    assert found.changes[-1].before == 0.0
    assert found.changes[-1].after == pytest.approx(2e-50, rel=1e-5)


@pytest.mark.slow
def test_what_is_computed_without_grad_mode_is_held(path: Path) -> None:
    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        with torch.no_grad():
            target = x * 2
        loss = (x - target) ** 2
        loss.backward()

    found = asked(recorded(path, program), "x=4")
    assert after(found)["loss"] == 4.0  # (4 − 6)²: the target stays
    assert [name.partition(",")[0] for _, name in found.held] == ["target"]


@pytest.mark.slow
def test_what_cannot_run_again_is_named_where_it_ends_a_gradient(path: Path) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return 2 * gradient

    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        doubled = Double.apply(x)
        (doubled * x).backward()

    line = program.__code__.co_firstlineno + 2
    assert asked(recorded(path, program)).cut == (f"doubled, line {line}",)
    told = f"no gradient goes on behind doubled, line {line}: what made it cannot run again"
    assert told in " ".join(invoked(["what-if", str(path)]).stdout.split())
    assert "no gradient goes on" not in invoked(["what-if", str(recorded(path, a_square))]).stdout


@pytest.mark.slow
def test_only_the_outermost_call_is_told(path: Path) -> None:
    def program() -> None:
        x = torch.ones(2, 3, requires_grad=True)
        F.layer_norm(x, (3,)).sum().backward()

    with open_trace(recorded(path, program)) as trace:
        assert [event.op for event in plan_of(Query(trace)).calls] == ["layer_norm", "sum"]
        assert next(event.function for event in trace if isinstance(event, CallMade)) == "F.layer_norm"


@pytest.mark.slow
def test_a_program_finds_the_functions_of_the_engine_again(path: Path) -> None:
    names = ("exp", "add", "__add__", "T", "normal_")
    before = [torch.exp, F.relu, torch.autograd.grad, *(vars(Tensor)[name] for name in names)]
    during = []
    recorded(path, lambda: during.extend([torch.exp, vars(Tensor)["T"]]))
    assert during[0] is not before[0]
    assert during[1] is not before[6]
    now = [torch.exp, F.relu, torch.autograd.grad, *(vars(Tensor)[name] for name in names)]
    assert all(one is other for one, other in zip(now, before, strict=True))


def test_a_recording_of_another_grade_replaces_no_function(path: Path) -> None:
    before = torch.exp
    with gradviz.record(path, values="stats", with_torch=False):
        assert torch.exp is before


# --- commands


@pytest.mark.slow
def test_an_element_is_known_though_it_was_not_kept(path: Path) -> None:
    def program() -> None:
        w = torch.linspace(0, 1, 100).requires_grad_()
        loss = (w**2).sum()
        loss.backward()

    recorded(path, program)
    shown = invoked(["why", str(path), "w[50]"]).stdout
    assert f"{2 * np.linspace(0, 1, 100)[50]:.4f}"[:5] in shown


@pytest.mark.slow
def test_a_capsule_of_a_pass_runs_again(path: Path, tmp_path: Path) -> None:
    recorded(path, layers_with_random_numbers)
    capsule = tmp_path / "bad.gradviz"
    assert invoked(["capsule", str(path), "--pass", "2", "-o", str(capsule)]).exit_code == 0
    shown = invoked(["what-if", str(capsule)]).stdout
    assert "it gives the recorded loss to the last bit and 6 of 6 recorded gradients" in shown


@pytest.mark.slow
def test_the_parts_of_samples_are_those_of_the_loss(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(2.0, requires_grad=True)
        x = torch.tensor([1.0, 10.0, 2.0])
        loss = (w * x).square().mean()
        loss.backward()

    shown = invoked(["what-if", str(recorded(path, program)), "--samples"]).stdout
    worst = next(line for line in shown.splitlines() if line.startswith("1 "))
    assert worst.split()[1:3] == ["133.333", "133.3"]  # (2·10)²/3, and 2·2·10²/3


@pytest.mark.slow
@pytest.mark.parametrize(("version", "expected"), [("2.15.0", ("w.clamp(min=0.0)",)), ("2.13.0", ())])
def test_a_run_on_another_version_names_the_ops_that_it_defines_otherwise(
    path: Path, monkeypatch: pytest.MonkeyPatch, version: str, expected: tuple[str, ...]
) -> None:
    def program() -> None:
        w = torch.tensor([0.0, 1.0], requires_grad=True)
        (w.clamp(min=0.0) + w.clamp(min=-1.0)).sum().backward()

    monkeypatch.setattr("gradviz.replay.changed_pass.version_of", lambda trace: version)
    assert asked(recorded(path, program)).redefined == expected
