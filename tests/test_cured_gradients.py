"""Findings of a run that can run again: what the gradient would have been without the cut."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradviz.sources.pytorch import is_installed
from tests.invoked import invoked

ENGINES = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not is_installed(), reason="no PyTorch"))]
CUT = """
import torch
w = torch.tensor([2.0, 1.0], requires_grad=True)
v = torch.tensor(3.0, requires_grad=True)
optimizer = torch.optim.SGD([w, v], lr=0.1)
h = {cut}
loss = (h * v).sum()
loss.backward()
optimizer.step()
"""
TOLD = "without {call} on line 6: w.grad rms 15 instead of none"


def replayed(folder: Path, engine: str, program: str, values: str = "inputs") -> list[str]:
    """What the findings of a program say of a replay."""
    script, trace = folder / "cut.py", folder / "cut.gradviz"
    script.write_text(program)
    invoked(["trace", "--values", values, "--engine", engine, "-o", str(trace), str(script)])
    found = json.loads(invoked(["check", str(trace), "--format", "json"]).stdout)["findings"]
    assert found
    return [finding["replayed"] for finding in found if "replayed" in finding]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("cut", "call"),
    [("(w * 5).detach()", ".detach()"), ("(w * 5).data", ".data"), ("(w.detach() + 0) * 5", ".detach()")],
)
def test_a_finding_says_what_the_gradient_would_have_been(
    tmp_path: Path, engine: str, cut: str, call: str
) -> None:
    assert replayed(tmp_path, engine, CUT.format(cut=cut)) == [TOLD.format(call=call)]


def test_the_check_the_report_and_the_page_say_the_same(tmp_path: Path) -> None:
    (told,) = replayed(tmp_path, "numpy", CUT.format(cut="(w * 5).detach()"))
    trace, report, page = (str(tmp_path / name) for name in ("cut.gradviz", "cut.html", "page.html"))
    assert told in re.sub(r"\s+", " ", invoked(["check", trace]).stdout)
    invoked(["report", trace, "-o", report])
    assert told in Path(report).read_text()
    invoked(["graph", trace, "-o", page])
    assert told in Path(page).read_text()


def test_nothing_is_said_of_a_trace_that_cannot_run_again(tmp_path: Path) -> None:
    assert replayed(tmp_path, "numpy", CUT.format(cut="(w * 5).detach()"), "full") == []


@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_said_where_a_gradient_could_flow_through_what_cannot_run_again(
    tmp_path: Path, engine: str
) -> None:
    double = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x
    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient
"""
    program = CUT.replace("import torch\n", "import torch\n" + double).replace(
        "(h * v).sum()", "(h * v + Double.apply(h)).sum()"
    )
    assert replayed(tmp_path, engine, program.format(cut="(w * 5).detach()")) == []


def test_nothing_is_said_where_a_second_cut_keeps_the_gradient_away(tmp_path: Path) -> None:
    assert replayed(tmp_path, "numpy", CUT.format(cut="((w * 5).detach() + 1).round().detach()")) == []


def test_the_pass_is_named_where_there_are_several(tmp_path: Path) -> None:
    program = CUT.replace("h =", "for _ in range(2):\n    h =").replace("\nloss", "\n    loss")
    program = program.replace("\noptimizer.step", "\n    optimizer.step").format(cut="(w * 5).detach()")
    (told,) = replayed(tmp_path, "numpy", program)
    assert re.fullmatch(r"without \.detach\(\) on line 7, in pass 1: w\.grad rms 15 instead of none", told)


def test_nothing_is_said_of_a_line_that_has_no_detach(tmp_path: Path) -> None:
    program = CUT.replace("import torch\n", "import torch\ncut = torch.Tensor.detach\n").format(
        cut="cut(w * 5)"
    )
    assert replayed(tmp_path, "numpy", program) == []
