"""What an optimizer step computed, with the numbers that were recorded."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from gradviz.sources.script import Target, run
from gradviz.step.plain import script
from gradviz.step.state import Session
from gradviz.tracefile import open_trace

PROGRAM = """\
import torch
w = torch.tensor({start}, requires_grad=True)
optimizer = torch.optim.{optimizer}
for _ in range(2):
    optimizer.zero_grad()
    (w**2).sum().backward()
    optimizer.step()
"""
Told = Callable[..., list[str]]


@pytest.fixture(
    params=["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]
)
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Told:
    def steps(optimizer: str, start: str = "3.0") -> list[str]:
        """The rows about both steps."""
        source = tmp_path / "p.py"
        source.write_text(PROGRAM.format(optimizer=optimizer, start=start))
        run(Target(str(source), False, []), tmp_path / "p.gradviz", engine=request.param)
        with open_trace(tmp_path / "p.gradviz") as trace:
            commands = ["until kind == 'mutated'"] * 2
            lines = "\n".join(script(Session(trace), commands)).splitlines()
        return [line.split("step", 1)[1].strip() for line in lines if line.startswith("  step ")]

    return steps


def test_plain_sgd(told: Told) -> None:
    assert told("SGD([w], lr=0.1)")[0] == "w − lr · w.grad = 3 − 0.1 · 6 = 2.4"


def test_sgd_with_momentum_has_the_buffer_of_the_step_before(told: Told) -> None:
    first, second = told("SGD([w], lr=0.1, momentum=0.5)")
    assert first == "w − lr · w.grad = 3 − 0.1 · 6 = 2.4"
    assert second == "w − lr · (momentum · buffer + w.grad) = 2.4 − 0.1 · (0.5 · 6 + 4.8) = 1.62"


def test_sgd_with_weight_decay(told: Told) -> None:
    first = told("SGD([w], lr=0.1, weight_decay=0.5)")[0]
    assert first == "w − lr · (w.grad + weight_decay · w) = 3 − 0.1 · (6 + 0.5 · 3) = 2.25"


def test_adam_has_the_averages_of_all_steps(told: Told) -> None:
    first = told("Adam([w], lr=0.1)", "[3.0, -2.0]")[0]
    assert first == "w − lr · m̂ / (√v̂ + eps) = [3, -2] − 0.1 · [6, -4] / (√[36, 16] + 1e-8) = [2.9, -1.9]"


@pytest.mark.parametrize(
    "optimizer", ["SGD([w], lr=0.1, momentum=0.5, nesterov=True)", "RMSprop([w])", "Adam([w], amsgrad=True)"]
)
def test_a_step_that_is_not_known_has_no_formula(told: Told, optimizer: str) -> None:
    assert told(optimizer) == []
