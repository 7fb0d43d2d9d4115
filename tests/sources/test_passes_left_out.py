"""Passes that are not recorded in detail: which `--passes auto` leaves out, and what `check` says of them."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

import gradviz.engine as engine
from gradviz.diagnose import check
from gradviz.query import Query
from gradviz.query.curves import accumulated_norms
from gradviz.sources.record import record
from gradviz.sources.script import Target, run
from gradviz.tracefile import AutoPasses, open_trace, passes_of
from tests.invoked import invoked
from tests.warm import python

PROGRAM = """
import torch
torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(4, 16))
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(1, {steps} + 1):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    out = x @ w
    if step == {bad}:
        out = (out - 100).sqrt()
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
"""


def test_passes_are_chosen_ever_farther_apart() -> None:
    passes = passes_of("auto")
    assert str(passes) == "auto"
    chosen = [number for number in range(1, 5001) if number in passes]
    assert chosen == [*range(1, 11), *range(20, 101, 10), *range(200, 1001, 100), *range(2000, 5001, 1000)]
    longer = passes_of("1-250,auto")
    assert str(longer) == "1-250,auto"
    assert [number for number in range(1, 1001) if number in longer] == [*range(1, 251), *range(300, 1001, 100)]


def seen(passes: AutoPasses, is_bad: bool, passes_begun: int) -> None:
    """A pass has been written, with a NaN or without one, and is looked at."""
    passes.wrote([0] if is_bad else [], [(1, passes_begun)])
    passes.look()


def test_three_passes_behind_each_trouble_are_chosen() -> None:
    passes = AutoPasses()
    seen(passes, False, 40)
    seen(passes, True, 41)
    seen(passes, True, 60)  # the same trouble
    assert [number for number in range(31, 100) if number in passes] == [*range(31, 45), 50, 60, 70, 80, 90]
    seen(passes, False, 101)
    seen(passes, True, 110)
    assert 113 in passes
    assert 114 not in passes


def test_there_is_an_end_to_the_troubles() -> None:
    passes = AutoPasses()
    for begun in range(10, 1000, 10):  # far apart: each is a trouble of its own
        seen(passes, True, begun)
        seen(passes, False, begun)
    assert 83 in passes
    assert 91 not in passes


def test_a_jump_is_more_than_ten_times_the_running_median() -> None:
    passes = AutoPasses()
    assert {passes.summed(1.0, 2.0, number) for number in range(1, 41)} == {""}
    assert passes.summed(9.9, 19.9, 41) == ""
    assert passes.summed(1.0, 20.1, 42) == "jump"
    assert 45 in passes
    assert 46 not in passes
    assert passes.summed(-11.0, 2.0, 44) == ""  # it is looked at closely
    assert passes.summed(-11.0, 2.0, 47) == "jump"


def test_a_nan_in_the_numbers_of_a_pass_is_one_trouble_until_it_is_over() -> None:
    passes = AutoPasses()
    nan = float("nan")
    assert passes.summed(nan, -1, 41) == "nan"
    assert {passes.summed(1.0, nan, number) for number in range(42, 60)} == {""}
    assert [number for number in range(41, 60) if number in passes] == [41, 42, 43, 44, 50]
    seen(passes, False, 60)  # as without a value
    assert passes.summed(nan, nan, 60) == ""
    seen(passes, True, 60)
    assert 61 not in passes
    assert passes.summed(1.0, 1.0, 60) == ""
    assert passes.summed(None, float("inf"), 61) == "nan"


def checked(folder: Path, engine: str, passes: str, steps: int, bad: int) -> str:
    """What `check` says of the program that makes a NaN in one step."""
    (folder / "train.py").write_text(PROGRAM.format(steps=steps, bad=bad))
    gradviz_of = [python(), "-m", "gradviz"]
    traced = [*gradviz_of, "trace", "-q", "--engine", engine, "--passes", passes, "-o", "run.gradviz", "train.py"]
    subprocess.run(traced, cwd=folder, check=True)
    told = subprocess.run([*gradviz_of, "check", "run.gradviz"], cwd=folder, capture_output=True, text=True)
    return " ".join(told.stdout.split())


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_nan_in_a_pass_without_details_is_found(tmp_path: Path, engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    said = checked(tmp_path, engine, "auto", 1520, 1500)
    # the loss is seen as the pass begins, with its graph
    assert "NaN is seen first in the result of sqrt, and not all values of pass 1500 were recorded" in said
    assert "gradviz trace --passes 1500" in said
    assert "lr-too-large" not in said  # the steps that wrote it into w are not at fault


@pytest.mark.parametrize("written_behind", [None, 15, 16])
@pytest.mark.parametrize("is_of_loss", [False, True])
def test_what_a_nan_is_followed_by_is_recorded_in_detail(
    tmp_path: Path, written_behind: int | None, is_of_loss: bool
) -> None:
    recording = record(tmp_path / "run.gradviz", passes="auto")
    with recording:
        w = engine.ones(2, requires_grad=True)
        for step in range(1, 31):
            w.grad = None
            factor = float("nan") if step == 15 else 2.0
            loss = (w * factor).sum() if is_of_loss else w.sum()
            loss.backward(None if is_of_loss else engine.tensor(factor))
            if step == written_behind and recording.recorder is not None:
                recording.recorder.flush()  # as the writer does ten times a second
    behind = [15, 16, 17, 18] if is_of_loss else []  # the loss is seen at once, a gradient where passes are in detail
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert [one.number for one in trace.passes if one.recorded] == [*range(1, 11), *behind, 20, 30]


def test_while_another_program_holds_the_file_a_run_goes_on_and_passes_are_chosen_later(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with record(path, passes="auto") as recording, closing(sqlite3.connect(path, isolation_level=None)) as other:
        recorder = recording.recorder
        assert recorder is not None
        w = engine.ones(2, requires_grad=True)
        for step in range(1, 31):
            if step == 20:
                recorder.flush()
                other.execute("BEGIN EXCLUSIVE")
            if step == 23:
                other.execute("COMMIT")
                recorder.flush()
            w.grad = None
            w.sum().backward(engine.tensor(float("nan") if step == 20 else 2.0))
    with open_trace(path) as trace:
        assert [one.number for one in trace.passes if one.recorded] == [*range(1, 11), 20, 24, 25, 26, 30]


@pytest.mark.slow
def test_the_cure_names_the_line(tmp_path: Path) -> None:
    said = checked(tmp_path, "numpy", "1500", 1520, 1500)
    assert "nonfinite-forward train.py:11" in said


@pytest.mark.slow
def test_a_step_behind_passes_without_values_is_not_at_fault(tmp_path: Path) -> None:
    said = checked(tmp_path, "numpy", "every:50", 100, 70)
    assert "lr-too-large" not in said
    assert "NaN is seen first in the loss, and passes 51-70 were not recorded in detail" in said
    assert "gradviz trace --passes 51-70 train.py: the line is named then" in said


BY_HAND = """
import torch
torch.manual_seed(0)
w = torch.randn(4, requires_grad=True)
for step in range(30):
    loss = (w - 1.0).pow(2).sum()
    loss.backward()
    with torch.no_grad():
        w -= 0.01 * w.grad
        w.grad = None
"""


@pytest.mark.parametrize("passes", ["auto", "every:5"])
@pytest.mark.parametrize("engine", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_a_step_by_hand_behind_a_pass_that_is_left_out_is_not_missed(tmp_path: Path, engine: str, passes: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(BY_HAND)
    run(
        Target(str(tmp_path / "train.py"), False, []), tmp_path / "run.gradviz", engine=engine, passes=passes_of(passes)
    )
    assert [str(found) for found in check(tmp_path / "run.gradviz").at_least("warning")] == []


ASCENT = """
import torch
torch.manual_seed(0)
w = torch.randn(4, requires_grad=True)
for step in range(60):
    loss = (w - 1.0).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        w += 0.001 * w.grad
        w.grad = None
"""
DEAD = """
import torch
w = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
x = -torch.ones(8, 4)
for step in range(60):
    optimizer.zero_grad()
    loss = torch.relu((x * w).sum(1)).mean()
    loss.backward()
    optimizer.step()
"""
FLAT = DEAD.replace("torch.relu", "torch.sign")
OVERSHOOT = """
import torch
w = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=12.0)
for step in range(12):
    optimizer.zero_grad()
    loss = (w - 2.0).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
KINDS_OF_COUNTS = [
    (ASCENT, "auto", "rises from 3.06 to 3.25 in the 15 passes recorded of 60"),
    (DEAD, "auto", "100% zeros in its last 3 recorded calls"),
    (FLAT, "auto", "the gradient of w is 0 in the 15 passes recorded of 60"),
    (OVERSHOOT, "1-2,4-11", "in the 10 passes recorded of 12: the updates overshoot"),
]


@pytest.mark.parametrize(("program", "passes", "sentence"), KINDS_OF_COUNTS, ids=["loss", "calls", "zeros", "norms"])
@pytest.mark.parametrize("engine", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_of_passes_it_is_said_how_many_were_recorded(
    tmp_path: Path, engine: str, program: str, passes: str, sentence: str
) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(program)
    target = Target(str(tmp_path / "train.py"), False, [])
    run(target, tmp_path / "run.gradviz", engine=engine, passes=passes_of(passes))
    told = "\n".join(one.message for one in check(tmp_path / "run.gradviz").findings)
    assert sentence in told


@pytest.mark.torch
def test_the_loss_of_a_pass_that_returns_gradients_is_shown_without_a_course(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install torch==2.13.0")
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([w], lr=0.1)
    with record(tmp_path / "run.gradviz", passes="auto"):
        for _ in range(14):
            (w.grad,) = torch.autograd.grad((w**2).sum(), w)
            optimizer.step()
        (w * 2).backward(torch.ones(3))  # a pass that sets .grad, from no loss
    done = invoked(["info", str(tmp_path / "run.gradviz")])
    assert (done.exit_code, "passes      15" in done.stdout) == (0, True)


@pytest.mark.parametrize("size", [16, 2000])
def test_large_gradients_of_passes_that_are_left_out_are_kept_ever_fewer(tmp_path: Path, size: int) -> None:
    w = engine.nn.Parameter(engine.ones(4, size))
    with record(tmp_path / "run.gradviz", passes="auto"):
        for step in range(1, 1041):
            w.grad = None
            out = w.sum() if step < 1030 else w.sum() * float("inf")
            out.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        norms = Query(trace).of(accumulated_norms)
        read = norms.at[norms.values != -1].tolist()
        message = check(trace).findings[0].message
    assert set(range(11, 65)) <= set(read)
    assert [one for one in read if 901 < one < 925] == ([*range(902, 925)] if size == 16 else [904, 912, 920])
    assert message.startswith("an infinity is seen first in the result of mul, and not all values of pass 1030 were")
