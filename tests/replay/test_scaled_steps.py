"""`what-if --scale lr=…`: the step behind a pass with another learning rate, equal to a run that takes it; and
`--without-sample`: a loss without one of its samples."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gradviz
import gradviz.engine as torch
import gradviz.engine.nn.functional as F
from gradviz.engine import nn
from gradviz.query.query import Query
from gradviz.replay.changed_pass import ScaledStep, scaled_step
from gradviz.replay.plan import ReplayError
from gradviz.sources.torch_replay import runner_of
from gradviz.tracefile import open_trace
from gradviz.words.words import Words
from tests.invoked import invoked

OPTIMIZERS: list[Callable[..., torch.optim.Optimizer]] = [
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    lambda parameters: torch.optim.Adam(parameters, lr=0.1, weight_decay=0.1),
    lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    lambda parameters: torch.optim.RMSprop(parameters, lr=0.1, momentum=0.5),
    lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, lr_decay=0.1),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.gradviz"


def recorded(path: Path, program: Callable[[], object]) -> Path:
    with gradviz.record(path, values="inputs", with_torch=False):
        program()
    return path


def training(make: Callable[..., torch.optim.Optimizer], factor: float = 1.0, size: int = 2) -> list[float]:
    """Four passes, of which the step behind the second has a learning rate that is scaled; the losses."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, size), nn.Tanh(), nn.Linear(size, 1))
    optimizer = make(net.parameters())
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    losses = []
    for number in range(4):
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        rate = optimizer.param_groups[0]["lr"]
        optimizer.param_groups[0]["lr"] = rate * factor if number == 1 else rate
        optimizer.step()
        optimizer.param_groups[0]["lr"] = rate
        losses.append(loss.item())
    return losses


def scaled(path: Path, text: str = "lr=0.1", number: int | None = 2) -> ScaledStep:
    with open_trace(path) as trace:
        words = Words(trace)
        return scaled_step(words, runner_of(words.query), number, text)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 40], ids=["small", "large"])
@pytest.mark.parametrize("place", range(len(OPTIMIZERS)))
def test_the_loss_is_that_of_a_run_with_the_other_rate(path: Path, place: int, size: int) -> None:
    make = OPTIMIZERS[place]
    recorded(path, lambda: training(make, size=size))
    for factor in (0.1, 10.0):
        ((_, before, after, other),) = scaled(path, f"lr={factor}").losses
        usual, changed = training(make, size=size), training(make, factor, size)
        assert before == pytest.approx(usual[1])
        assert after == pytest.approx(usual[2])
        assert other == pytest.approx(changed[2], rel=1e-4)
        assert changed[2] != pytest.approx(usual[2], rel=1e-3)


@pytest.mark.slow
def test_the_step_behind_the_last_pass_is_known_of_small_parameters(path: Path) -> None:
    recorded(path, lambda: training(OPTIMIZERS[2]))
    assert scaled(path, number=None).plan.number == 4


def test_what_the_trace_does_not_have_is_said_in_one_line(path: Path) -> None:
    recorded(path, lambda: training(OPTIMIZERS[2], size=40))
    with pytest.raises(ReplayError, match=r"what the step made of \S+ is not in the trace"):
        scaled(path, number=4)


@pytest.mark.slow
def test_a_parameter_that_was_written_to_behind_its_step_is_not_taken_for_what_the_step_made(path: Path) -> None:
    def program() -> None:
        w = torch.linspace(0, 1, 100).requires_grad_()
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            (w**2).sum().backward()
            optimizer.step()
            with torch.no_grad():
                w.clamp_(0, 0.5)

    with pytest.raises(ReplayError, match="is not in the trace"):
        scaled(recorded(path, program), number=1)


@pytest.mark.slow
def test_a_pass_without_a_step_of_its_own_is_refused(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(2.0, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        (w**2).backward()
        (w**2).backward()
        optimizer.step()

    recorded(path, program)
    with pytest.raises(ReplayError, match="no optimizer steps between pass 1 and the next one"):
        scaled(path, number=1)
    assert scaled(path, number=2).steps[0].after == pytest.approx(2 - 0.8)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["0.1", "momentum=0.1", "lr=", "lr=nan"])
def test_what_is_no_factor_is_refused(path: Path, text: str) -> None:
    recorded(path, lambda: training(OPTIMIZERS[0]))
    with pytest.raises(ReplayError, match="--scale takes lr=FACTOR"):
        scaled(path, text)


@pytest.mark.slow
def test_the_command_shows_the_loss_beside_both_steps(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(3.0, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=1.0)
        loss = w**2
        loss.backward()
        optimizer.step()

    recorded(path, program)
    shown = invoked(["what-if", str(path), "--scale", "lr=0.5"]).stdout
    row = next(line for line in shown.splitlines() if line.startswith("loss"))
    assert row.split() == ["loss", "9", "9", "0"]  # 3 − 6 = −3; 3 − 3 = 0
    told = json.loads(invoked(["what-if", str(path), "--scale", "lr=0.5", "--json"]).stdout)
    assert told["losses"] == [{"of": "loss", "before": 9.0, "after": 9.0, "scaled": 0.0}]


# --- without a sample


def without(path: Path, index: int) -> dict[str, float]:
    told = json.loads(invoked(["what-if", str(path), "--without-sample", str(index), "--json"]).stdout)
    return {change["of"]: change["after"] for change in told["changes"]}


@pytest.mark.slow
def test_the_loss_of_the_others_is_their_mean(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(2.0, requires_grad=True)
        x = torch.tensor([1.0, 10.0, 2.0])
        loss = (w * x).square().mean()
        loss.backward()

    recorded(path, program)
    assert without(path, 1) == {"loss": 10.0, "w.grad": 10.0}  # (4 + 16) / 2, 2·2·(1 + 4) / 2


@pytest.mark.slow
def test_the_loss_of_the_others_is_their_sum(path: Path) -> None:
    def program() -> None:
        w = torch.tensor(2.0, requires_grad=True)
        loss = F.mse_loss(w * torch.tensor([1.0, 10.0, 2.0]), torch.zeros(3), reduction="sum")
        loss.backward()

    assert without(recorded(path, program), -2) == {"loss": 20.0, "w.grad": 20.0}


@pytest.mark.slow
@pytest.mark.parametrize("index", [0, 1, 3])
def test_a_mean_over_classes_is_that_of_a_run_without_the_sample(path: Path, index: int) -> None:
    target = torch.tensor([0, 2, -100, 1])

    def loss_of(w: torch.Tensor, chosen: list[int]) -> torch.Tensor:
        x = torch.arange(12.0).reshape(4, 3)
        return F.cross_entropy((x * w)[chosen], target[chosen], ignore_index=-100)

    def program() -> None:
        w = torch.tensor([0.1, -0.2, 0.3], requires_grad=True)
        loss = loss_of(w, [0, 1, 2, 3])
        loss.backward()

    found = without(recorded(path, program), index)
    w = torch.tensor([0.1, -0.2, 0.3], requires_grad=True)
    loss = loss_of(w, [at for at in range(4) if at != index])
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert np.allclose(found["w.grad"], w.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_samples_that_depend_on_one_another_are_not_left_out(path: Path) -> None:
    def program() -> None:
        net = nn.BatchNorm1d(2)
        net(torch.randn(4, 2)).square().mean().backward()

    recorded(path, program)
    with open_trace(path) as trace:
        assert len(Query(trace).trace.passes) == 1
    result = invoked(["what-if", str(path), "--without-sample", "0"])
    assert result.exit_code == 2
    assert "samples depend on one another" in result.stderr
