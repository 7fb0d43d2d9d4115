"""Cures of small mistakes, typed in the place of the line that they are about."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz.diagnose import Finding, check
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

NUMBERS = """\
import torch
x = torch.linspace(0.1, 1, 3, requires_grad=True)
y = torch.zeros(3)
for i in range(3):
    y[i] = float(x[i]) ** 2
y.sum().backward()
"""
ITEMS = NUMBERS.replace("float(x[i]) ** 2", "3 * x[i].item()")
COPY = """\
import torch
x = torch.tensor([2.0], requires_grad=True)
y = torch.tensor(x ** 2, requires_grad=True)
y.backward()
"""
PARTS = """\
import torch
x = torch.tensor([1.0, 2.0], requires_grad=True)
y = torch.tensor([x[0] * 2, x[1] * 3], requires_grad=True)
y.sum().backward()
"""
UPDATE = """\
import torch
x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
(x ** 2).mean().backward()
with torch.no_grad():
    x = x - 0.1 * x.grad
(x ** 2).mean().backward()
"""


def first_finding(text: str, folder: Path) -> tuple[int, Finding | None]:
    """The status of a program, and the first finding of its cut path, if there is one."""
    folder.mkdir(exist_ok=True)
    (folder / "script.py").write_text(text)
    status = run(Target(str(folder / "script.py"), False, ()), folder / "script.gradviz").status
    with open_trace(folder / "script.gradviz") as trace:
        return status, next((one for one in check(trace).findings if one.rule == "detached-path"), None)


@pytest.mark.parametrize(
    ("program", "line", "cure"),
    [
        (NUMBERS, 5, "y[i] = x[i] ** 2"),
        (ITEMS, 5, "y[i] = 3 * x[i]"),
        (COPY, 3, "y = x ** 2  # the tensor itself"),
        (PARTS, 3, "y = torch.stack([x[0] * 2, x[1] * 3])  # the tensors themselves"),
        (UPDATE, 5, "x -= 0.1 * x.grad  # in place: it stays the leaf"),
    ],
    ids=["numbers", "items", "copy", "parts", "update"],
)
def test_a_cure_typed_in_the_place_of_its_line_mends_the_program(
    program: str, line: int, cure: str, tmp_path: Path
) -> None:
    _, finding = first_finding(program, tmp_path)
    assert finding is not None
    assert (finding.line, finding.fix) == (line, cure)
    lines = program.splitlines()
    old = lines[line - 1]
    lines[line - 1] = old[: len(old) - len(old.lstrip())] + cure
    assert first_finding("\n".join(lines), tmp_path) == (0, None)


def test_the_line_that_adds_a_number_is_told_with_the_tensor(tmp_path: Path) -> None:
    program = """\
import torch
x = torch.tensor([1.0, 2.0], requires_grad=True)
total = 0
for i in range(2):
    total = total + x[i].item() ** 2
total.backward()
"""
    (tmp_path / "script.py").write_text(program)
    run(Target(str(tmp_path / "script.py"), False, ()), tmp_path / "script.gradviz")
    with open_trace(tmp_path / "script.gradviz") as trace:
        (finding,) = [one for one in check(trace).findings if one.rule == "no-graph"]
    assert finding.fix == "total = total + x[i] ** 2  # at line 5"
    mended = program.replace("total = total + x[i].item() ** 2", "total = total + x[i] ** 2")
    assert first_finding(mended, tmp_path) == (0, None)


@pytest.mark.parametrize(
    ("loss", "flat", "cure"),
    [
        ("((x @ w - y) ** 2).mean()", "y", "y.unsqueeze(-1)"),
        ("(((y * 2) - x @ w) ** 2).mean()", "(y * 2)", "(y * 2).unsqueeze(-1)"),
        ("torch.nn.functional.mse_loss(x @ w, y)", "y", "y.unsqueeze(-1)"),
    ],
)
def test_a_side_of_a_dimension_less_gets_it_as_the_cure_says(loss: str, flat: str, cure: str, tmp_path: Path) -> None:
    def found(loss: str) -> list[str]:
        (tmp_path / "script.py").write_text(
            "import torch\ntorch.manual_seed(0)\nw = torch.randn(3, 1, requires_grad=True)\n"
            f"x, y = torch.randn(8, 3), torch.randn(8)\nloss = {loss}\nloss.backward()\n"
        )
        run(Target(str(tmp_path / "script.py"), False, ()), tmp_path / "script.gradviz")
        with open_trace(tmp_path / "script.gradviz") as trace:
            return [one.fix for one in check(trace).findings if one.rule == "broadcast-surprise"]

    [told] = found(loss)
    assert told.partition("  #")[0] == cure
    assert found(cure.join(loss.rsplit(flat, 1))) == []


LIST = """\
import torch
w = torch.tensor(1.0, requires_grad=True)
losses = []
for x in (1.0, 2.0, 3.0):
    losses.append(((w * x - 2.0) ** 2).item())
loss = torch.tensor(losses).mean()
loss.backward()
"""


def test_a_list_of_numbers_is_stacked_of_tensors_as_the_cure_says(tmp_path: Path) -> None:
    status, found = first_finding(LIST, tmp_path)
    assert (status, found is not None) == (1, True)
    assert found is not None
    here, _, there = found.fix.partition("  # and ")
    assert (found.line, here) == (6, "torch.stack(losses)")
    filling, _, where = there.partition(" at line ")
    assert where.startswith("5,")
    lines = LIST.splitlines()
    lines[4] = f"    {filling}"
    lines[5] = lines[5].replace("torch.tensor(losses)", here)
    assert first_finding("\n".join(lines) + "\n", tmp_path / "cured") == (0, None)
