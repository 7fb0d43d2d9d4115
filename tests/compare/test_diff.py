"""`diff`: what two runs have in common is found again, and the first difference is the changed line."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gradviz as package
import gradviz.engine as torch
from gradviz.compare.parting import NoDiff

Command = Callable[..., CompletedProcess[str]]

PROGRAM = """\
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.randn(8, 3)
for step in range(3):
    optimizer.zero_grad()
    h = net(x).squeeze(1)
    h = h * 1.5
    loss = (h.sin() - x.sum(1)).pow(2).mean()
    loss.backward()
    optimizer.step()
"""
SEED, RATE, CONSTANT, OP = 2, 4, 9, 10


@pytest.fixture
def compared(gradviz_here: Command, tmp_path: Path) -> Callable[..., dict]:
    """Traces the program, and the program with one text replaced, and compares them."""

    def run(old: str = "", new: str = "", *options: object) -> dict:
        for name, text in (("good", PROGRAM), ("bad", PROGRAM.replace(old, new, 1))):
            (tmp_path / f"{name}.py").write_text(text)
            gradviz_here("trace", "--engine", "numpy", f"{name}.py")
        done = gradviz_here("diff", "good.gradviz", "bad.gradviz", "--format", "json", *options)
        assert done.returncode == 0
        return json.loads(done.stdout)

    return run


def test_two_runs_of_one_program_are_the_same(compared: Callable[..., dict]) -> None:
    found = compared()
    assert found["same"]
    assert (found["forward"], found["backward"], found["changes"], found["source"]) == (None, None, [], [])
    assert found["compared"] > 50
    assert len(found["norms"]) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("h * 1.5", "h * 1.6", CONSTANT),
        ("h.sin()", "h.cos()", OP),
        ("manual_seed(0)", "manual_seed(1)", SEED),
        ("lr=0.1", "lr=0.2", RATE),
        (".mean()", ".sum()", OP),
        ("    h = h * 1.5\n", "    h = h * 1.5\n    h = h + h.exp()\n", CONSTANT + 1),
    ],
    ids=["constant", "op", "seed", "rate", "reduction", "added"],
)
def test_the_first_difference_is_the_changed_line(compared: Callable[..., dict], old: str, new: str, line: int) -> None:
    found = compared(old, new)
    assert not found["same"]
    assert found["forward"]["changed_line_other"] == line
    if line in (CONSTANT, OP, CONSTANT + 1):
        assert found["forward"]["other"]["line"] == line
        assert found["forward"]["pass"] == 1
    assert found["backward"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, -1])
def test_a_run_without_operations_differs_from_one_with_some(order: int, gradviz_here: Command, tmp_path: Path) -> None:
    for name, text in (("empty", "import torch\n"), ("full", PROGRAM)):
        (tmp_path / f"{name}.py").write_text(text)
        gradviz_here("trace", "--engine", "numpy", f"{name}.py")
    done = gradviz_here("diff", *["empty.gradviz", "full.gradviz"][::order])
    assert done.returncode == 0
    assert "the runs differ" in done.stdout


@pytest.mark.slow
def test_changed_operations_are_told_once_with_what_changed(compared: Callable[..., dict]) -> None:
    (change,) = compared("h.sin()", "h.cos()")["changes"]
    assert (change["kind"], change["count"], change["one"]["line"]) == ("changed", 3, OP)
    assert change["detail"] == "op sin → cos; node SinBackward0 → CosBackward0"
    (change,) = compared("lr=0.1", "lr=0.2")["changes"]
    assert change["detail"] == "lr 0.1 → 0.2"


@pytest.mark.slow
def test_operations_that_one_run_lacks_are_added_or_gone(compared: Callable[..., dict]) -> None:
    kinds = [change["kind"] for change in compared("    h = h * 1.5\n", "")["changes"]]
    assert kinds == ["gone"]
    added = compared("    h = h * 1.5\n", "    h = h * 1.5 + h.exp()\n")["changes"]
    assert [change["kind"] for change in added] == ["added", "added"]
    assert {change["other"]["line"] for change in added} == {CONSTANT}


def test_a_difference_within_the_tolerance_is_none(compared: Callable[..., dict]) -> None:
    found = compared("h * 1.5", "h * 1.50001", "--tolerance", 1e-3)
    assert found["forward"] is None
    assert found["changes"]  # its argument is another one


def test_one_pass_of_two_runs(compared: Callable[..., dict]) -> None:
    found = compared("lr=0.1", "lr=0.2", "--pass", 1)
    assert found["same"]


def test_two_passes_of_one_run(compared: Callable[..., dict], gradviz_here: Command) -> None:
    compared()
    found = json.loads(gradviz_here("diff", "good.gradviz", "--pass", 1, "--pass", 3, "--format", "json").stdout)
    assert found["changes"] == []
    assert found["forward"]["one"]["line"] == 8
    assert found["runs"] == ["good.gradviz pass 1", "good.gradviz pass 3"]


def test_a_run_with_fewer_passes_is_laid_beside_the_first_of_the_other(compared: Callable[..., dict]) -> None:
    found = compared("range(3)", "range(2)")
    assert found["passes"] == [3, 2]
    assert found["backward"] is None or found["backward"]["pass"] == 3
    assert {change["kind"] for change in found["changes"]} == {"gone"}


@pytest.mark.torch
def test_the_two_engines_part_nowhere(gradviz_here: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "same.py").write_text(PROGRAM)
    for engine in ("torch", "numpy"):
        gradviz_here("trace", "--engine", engine, "-o", f"{engine}.gradviz", "same.py")
    found = package.diff(tmp_path / "torch.gradviz", tmp_path / "numpy.gradviz")
    assert (found.forward, found.backward) == (None, None)
    assert found.compared > 50


def test_the_text_shows_both_lines(compared: Callable[..., dict], gradviz_here: Command) -> None:
    compared("h.sin()", "h.cos()")
    done = gradviz_here("diff", "good.gradviz", "bad.gradviz")
    assert f"− good.py:{OP}" in done.stdout
    assert f"+ bad.py:{OP}" in done.stdout
    assert f"changed line {OP}: loss = (h.cos()" in done.stdout
    assert "op sin → cos" in done.stdout
    assert "net.0.weight" in done.stdout
    assert gradviz_here("diff", "good.gradviz", "bad.gradviz", "--exit-code").returncode == 1
    assert gradviz_here("diff", "good.gradviz", "good.gradviz", "--exit-code").returncode == 0


def test_what_cannot_be_compared_is_one_line(compared: Callable[..., dict], gradviz_here: Command) -> None:
    compared()
    for options in (["good.gradviz"], ["good.gradviz", "bad.gradviz", "--pass", 9], ["good.gradviz", "good.py"]):
        done = gradviz_here("diff", *options)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    with pytest.raises(NoDiff):
        package.diff("good.gradviz")


def test_a_long_text_of_a_trace_is_shortened(gradviz_here: Command, tmp_path: Path) -> None:
    one, other = tmp_path / "one.gradviz", tmp_path / "other.gradviz"
    with package.record(one):
        (torch.ones(2, requires_grad=True) * 2).sum().backward()
    shutil.copy(one, other)
    with closing(sqlite3.connect(other)) as connection, connection:
        connection.execute("UPDATE strings SET text = ? WHERE text = 'mul'", ("x\n" * 10_000,))
    printed = gradviz_here("diff", one, other).stdout
    assert "1 changed operation" in printed
    assert len(printed) < 2_000
