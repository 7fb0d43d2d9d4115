"""A step that makes a parameter NaN: `check` says what the trace proves, and prints the cure that is applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz.diagnose import Finding, check
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

LOOP = """\
import torch
w = torch.tensor([1.0, 0.0], requires_grad=True)
optimizer = {made}
for step in range(4):
    optimizer.zero_grad()
    loss = (w * w).sum()
    loss.backward()
    if step == 1:
        {between}
    optimizer.step()
"""
SGD = "torch.optim.SGD([w], lr=0.1)"


def first(text: str, folder: Path) -> Finding:
    (folder / "script.py").write_text(text)
    run(Target(str(folder / "script.py"), False, ()), folder / "script.gradviz")
    with open_trace(folder / "script.gradviz") as trace:
        return check(trace).findings[0]


@pytest.mark.parametrize(
    ("write", "written"), [("w.grad.mul_(float('inf'))", "gradient of w"), ("w.data[0] = float('nan')", "w")]
)
def test_a_write_by_the_program_is_not_blamed_on_the_rate(write: str, written: str, tmp_path: Path) -> None:
    found = first(LOOP.format(made=SGD, between=write), tmp_path)
    assert (found.rule, found.line) == ("nonfinite-forward", 9)
    assert f"writes NaN into {written}; " in found.message


def test_a_rate_that_is_no_number_is_said(tmp_path: Path) -> None:
    rate = "optimizer.param_groups[0]['lr'] = float('nan')"
    found = first(LOOP.format(made=SGD, between=rate), tmp_path)
    assert (found.rule, found.line) == ("lr-too-large", 10)
    assert found.message == "a step makes w NaN while its gradient is finite: its learning rate is nan"


def test_an_adam_without_eps_is_said(tmp_path: Path) -> None:
    found = first(LOOP.format(made="torch.optim.Adam([w], lr=0.1, eps=0.0)", between="pass"), tmp_path)
    assert found.message.endswith("eps is 0, and elements of the gradient are 0")
    assert "eps=0" in found.fix


DIVERGES = """\
import torch
w = torch.tensor(1.0, requires_grad=True)
optimizer = torch.optim.SGD([w], lr={rate})
for step in range(20):
    loss = (w - 3.0) ** 2
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("rate", "said", "applied"), [(1.5, "a tenth", "0.1"), (15.0, "a hundredth", "0.01")])
def test_the_rate_that_is_said_is_the_one_that_is_applied(rate: float, said: str, applied: str, tmp_path: Path) -> None:
    found = first(DIVERGES.format(rate=rate), tmp_path)
    cure = found.patch
    assert found.fix.startswith(f"use {said} of the learning rate")
    assert cure is not None
    assert f"lr={applied} * {rate}" in cure.after
