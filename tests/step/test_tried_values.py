"""`set` and `unset` in the stepper: a pass with other values."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradviz
import gradviz.engine as torch
from tests.invoked import invoked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with gradviz.record(tmp_path / "run.gradviz", values="inputs", with_torch=False) as recording:
        w = torch.tensor([3.0, 1.0], requires_grad=True)
        for _ in range(2):
            loss = (w**2).sum()
            loss.backward()
            w.grad = None
            with torch.no_grad():
                w += 1
    return recording.path


def shown(path: Path, commands: str) -> list[str]:
    result = invoked(["step", str(path), "--commands", commands])
    return [" ".join(line.split()) for line in (result.stdout + result.stderr).splitlines()]


@pytest.mark.slow
def test_a_value_is_set_in_the_pass_of_the_present_event(path: Path) -> None:
    assert "loss 10 26 16" in shown(path, "set w[0] = 5")
    assert "loss 20 29 9" in shown(path, "last; back-backward; set w[0] = 5")


@pytest.mark.slow
def test_values_are_set_beside_those_that_were_set(path: Path) -> None:
    told = shown(path, "set w[0] = 5; set w[1] = 2")
    assert "with w[0]=5, w[1]=2; unset takes it back" in told
    assert "loss 10 29 19" in told


@pytest.mark.slow
def test_one_value_is_taken_back_or_all(path: Path) -> None:
    told = shown(path, "set w[0] = 5; set w[1] = 2; unset w[0]; unset; set w[0] = 1")
    assert "loss 10 13 3" in told
    assert "all values are as they were recorded" in told
    assert "loss 10 2 8" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("commands", "told"),
    [("set w", "set takes NAME = NUMBER"), ("set q = 1", "no tensor is called q"), ("unset w", "w was not set")],
)
def test_what_cannot_be_set_is_said(path: Path, commands: str, told: str) -> None:
    assert any(told in line for line in shown(path, commands))


@pytest.mark.slow
def test_a_value_that_cannot_be_set_leaves_the_others(path: Path) -> None:
    told = shown(path, "set w[0] = 5; set w[7] = 2")
    assert any("w[7] is outside of its shape" in line for line in told)
    assert "loss 10 26 16" in told


def test_a_trace_that_cannot_run_again_says_how_to_record_it(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz", values="none", with_torch=False):
        (torch.tensor(3.0, requires_grad=True) ** 2).backward()
    told = shown(tmp_path / "run.gradviz", "set x = 1")
    assert any("record it with gradviz trace --values inputs" in line for line in told)
