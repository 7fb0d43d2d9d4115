"""Passes of small tensors in traces without recorded calls: the calls are rebuilt from the ops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
import gradviz.engine
from gradviz.replay.changed_pass import WhatIf, what_if
from gradviz.replay.plan import ReplayError
from gradviz.sources.torch_replay import runner_of
from gradviz.tracefile import open_trace
from gradviz.words.words import Words

pytorch = pytest.importorskip("torch")
Program = Callable[[Any], object]


def asked(path: Path, program: Program, torch: Any, values: str, sets: tuple[str, ...]) -> WhatIf:
    with gradviz.record(path, values=values, with_torch=torch is pytorch):
        program(torch)
    with open_trace(path) as trace:
        words = Words(trace)
        return what_if(words, runner_of(words.query), None, sets)


def arithmetic(torch: Any) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    b = torch.tensor(0.5, requires_grad=True)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    y = torch.relu(x @ w + b) ** 2
    z = torch.cat([y, 3 * w.detach()], dim=0).sum(dim=0, keepdim=True)
    rest = w[0] * 2 + w[1:].sum() + w.clamp(min=0.5).view(2, 1).mean() + w.reshape(2, 1)[..., 0].prod()
    ((z / 2 - 1).mean() + rest + (1 - w).exp().sum() + (2 / w).sum()).backward()


def in_place(torch: Any) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    y = w * 3
    y.add_(1).mul_(2)
    y.sum().backward()


def layers(torch: Any) -> None:
    w = torch.tensor([[1.0, 2.0], [0.5, -1.0]], requires_grad=True)
    functional = torch.nn.functional
    hidden = functional.layer_norm(functional.linear(torch.ones(3, 2), w), (2,), weight=w[0])
    hidden = torch.where(hidden > 0, hidden, w[1])
    functional.cross_entropy(hidden.softmax(dim=1), torch.tensor([0, 1, 1])).backward()


def trained(torch: Any) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        (w * w).sum().backward()
        optimizer.step()


ENGINE = gradviz.engine


@pytest.mark.parametrize(
    ("torch", "program"),
    [
        *[(pytorch, program) for program in (arithmetic, in_place, layers, trained)],
        *[(ENGINE, program) for program in (arithmetic, in_place, trained)],
    ],
)
@pytest.mark.parametrize("sets", [(), ("w=3",)])
def test_a_default_trace_gives_what_recorded_calls_give(
    tmp_path: Path, program: Program, torch: Any, sets: tuple[str, ...]
) -> None:
    rebuilt, recorded = (
        asked(tmp_path / f"{values}.gradviz", program, torch, values, sets) for values in ("stats", "inputs")
    )
    assert rebuilt.check.is_equal
    assert rebuilt.check.gradients > 0
    expected = {change.called: change for change in recorded.changes}
    assert {change.called for change in rebuilt.changes} == {*expected}
    for change in rebuilt.changes:
        np.testing.assert_array_equal(change.before, expected[change.called].before)
        np.testing.assert_array_equal(change.after, expected[change.called].after)


def dropped(torch: Any) -> None:
    w = torch.ones(4, requires_grad=True)
    torch.nn.functional.dropout(w, 0.5).sum().backward()


def written_over(torch: Any) -> None:
    w = torch.ones(2, requires_grad=True)
    y = w * 2
    y.data.fill_(7.0)
    y.sum().backward()


def large(torch: Any) -> None:
    torch.ones(65, requires_grad=True).sum().backward()


def custom(torch: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return 2 * gradient

    Double.apply(torch.ones(2, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("program", [dropped, written_over, large, custom])
def test_what_cannot_be_rebuilt_is_refused_with_the_command_that_records_it(tmp_path: Path, program: Program) -> None:
    with pytest.raises(ReplayError, match="record it with gradviz trace --values inputs"):
        asked(tmp_path / "run.gradviz", program, pytorch, "stats", ())


def test_arguments_that_give_another_result_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradviz.replay import plan

    true = plan.called
    monkeypatch.setattr(plan, "called", lambda op, inputs: ("Tensor.cos", [[{"tensor": 0}], {}]))

    def program(torch: Any) -> None:
        torch.ones(2, requires_grad=True).sin().sum().backward()

    with pytest.raises(ReplayError):
        asked(tmp_path / "run.gradviz", program, pytorch, "stats", ())
    monkeypatch.setattr(plan, "called", true)
    assert asked(tmp_path / "run.gradviz", program, pytorch, "stats", ()).check.is_equal


def test_without_a_number_the_last_pass_that_the_set_tensor_had_a_part_in_runs(tmp_path: Path) -> None:
    def program(torch: Any) -> None:
        w = torch.ones(2, requires_grad=True)
        (w * w).sum().backward()
        other = torch.ones(2, requires_grad=True)
        other.sum().backward()

    numbers = {
        name: asked(tmp_path / "run.gradviz", program, pytorch, "stats", (f"{name}=3",)).plan.number
        for name in ("w", "w[0]", "other")
    }
    assert numbers == {"w": 1, "w[0]": 1, "other": 2}
