"""Findings of a run that can run again: what the gradient would have been without the cut."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("cut", "call"),
    [("(w * 5).detach()", ".detach()"), ("(w * 5).data", ".data"), ("(w.detach() + 0) * 5", ".detach()")],
)
def test_a_finding_says_what_the_gradient_would_have_been(tmp_path: Path, engine: str, cut: str, call: str) -> None:
    assert replayed(tmp_path, engine, CUT.format(cut=cut)) == [TOLD.format(call=call)]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_nothing_is_said_where_a_gradient_could_flow_through_what_cannot_run_again(tmp_path: Path, engine: str) -> None:
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


@pytest.mark.slow
def test_nothing_is_said_where_a_second_cut_keeps_the_gradient_away(tmp_path: Path) -> None:
    assert replayed(tmp_path, "numpy", CUT.format(cut="((w * 5).detach() + 1).round().detach()")) == []


@pytest.mark.slow
def test_the_pass_is_named_where_there_are_several(tmp_path: Path) -> None:
    program = CUT.replace("h =", "for _ in range(2):\n    h =").replace("\nloss", "\n    loss")
    program = program.replace("\noptimizer.step", "\n    optimizer.step").format(cut="(w * 5).detach()")
    (told,) = replayed(tmp_path, "numpy", program)
    assert re.fullmatch(r"without \.detach\(\) on line 7, in pass 1: w\.grad rms 15 instead of none", told)


@pytest.mark.slow
def test_nothing_is_said_of_a_line_that_has_no_detach(tmp_path: Path) -> None:
    program = CUT.replace("import torch\n", "import torch\ncut = torch.Tensor.detach\n").format(cut="cut(w * 5)")
    assert replayed(tmp_path, "numpy", program) == []


NO_GRAD = """
import torch
w = torch.tensor([2.0, 1.0], requires_grad=True)
v = torch.tensor(3.0, requires_grad=True)
optimizer = torch.optim.SGD([w, v], lr=0.1)
{before}
with {mode}:
    h = w * 5
    h = {inside}
loss = (h * v).sum()
loss.backward()
optimizer.step()
"""


def without_grad(inside: str = "h.reshape(2)", mode: str = "torch.no_grad()", before: str = "") -> str:
    return NO_GRAD.format(inside=inside, mode=mode, before=before)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("mode", ["torch.no_grad()", "torch.set_grad_enabled(False)"])
def test_a_block_without_grad_mode_says_what_the_gradient_would_have_been(
    tmp_path: Path, engine: str, mode: str
) -> None:
    told = f"without {mode} on line 7: w.grad rms 15 instead of none"
    assert replayed(tmp_path, engine, without_grad(mode=mode)) == [told]


@pytest.mark.slow
def test_of_a_decorated_function_the_decorator_is_named(tmp_path: Path) -> None:
    function = "@torch.no_grad()\ndef five(x):\n    return x * 5\n"
    program = CUT.replace("import torch\n", f"import torch\n{function}").format(cut="five(w)")
    (told,) = replayed(tmp_path, "numpy", program)
    assert told == "without torch.no_grad() on line 3: w.grad rms 15 instead of none"


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inside", ["h.detach()", "h.add_(1)"])
def test_nothing_is_said_where_the_block_does_not_run_again_or_cuts_once_more(
    tmp_path: Path, engine: str, inside: str
) -> None:
    assert replayed(tmp_path, engine, without_grad(inside)) == []


@pytest.mark.slow
def test_another_block_without_grad_mode_stays_as_it_is(tmp_path: Path) -> None:
    before = "with torch.no_grad():\n    scale = v * 2"
    program = without_grad("h * scale", before=before)
    assert replayed(tmp_path, "numpy", program) == ["without torch.no_grad() on line 8: w.grad rms 90 instead of none"]


@pytest.mark.slow
def test_what_calls_without_grad_mode_gave_enters_a_pass_as_it_was(tmp_path: Path) -> None:
    replayed(tmp_path, "numpy", without_grad())
    done = invoked(["what-if", str(tmp_path / "cut.gradviz"), "--set", "v=7", "--json"])
    assert json.loads(done.stdout)["held"] == ["h, line 9"]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_clamp_outside_of_its_range_says_what_the_gradient_would_have_been(tmp_path: Path, engine: str) -> None:
    assert replayed(tmp_path, engine, CUT.format(cut="(w * 5).clamp(0, 1)")) == [
        "without .clamp() on line 6: w.grad rms 15 instead of 0"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reading", ["k.item()", "float(k)"])
def test_a_number_of_a_tensor_says_what_the_gradient_would_have_been(tmp_path: Path, engine: str, reading: str) -> None:
    program = CUT.replace("loss = (h * v).sum()", "k = (w * w).sum()\nloss = (h * v).sum() + {reading}")
    told = "with k in place of {reading} on line 8: w.grad rms 18 instead of rms 15"
    assert replayed(tmp_path, engine, program.format(cut="w * 5", reading=reading)) == [told.format(reading=reading)]


@pytest.mark.slow
def test_nothing_is_said_of_a_number_that_was_computed_with(tmp_path: Path) -> None:
    program = CUT.replace("loss = (h * v).sum()", "k = (w * w).sum()\nloss = (h * v).sum() + 2 * k.item()")
    assert replayed(tmp_path, "numpy", program.format(cut="w * 5")) == []


NETWORK = """
import torch
torch.manual_seed(0)
encoder = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(40, 8))
head = torch.nn.Linear(8, 1)
optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01)
x, y = torch.randn(16, 12), torch.randn(16, 1)
for step in range(3):
    optimizer.zero_grad()
    with {mode}:
        features = encoder(x)
    loss = torch.nn.functional.mse_loss(head(features), y)
    loss.backward()
    if step == 0:
        first = [p.grad for p in encoder.parameters()]
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.torch
def test_the_gradients_of_a_network_are_those_of_autograd(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = NETWORK.format(mode="torch.no_grad()").replace(
        "first = [p.grad for p in encoder.parameters()]", "first = None"
    )
    (told,) = replayed(tmp_path, "torch", program)
    names: dict[str, Any] = {}
    exec(NETWORK.format(mode="torch.enable_grad()"), names)  # the cured program
    sizes = [f"{float(gradient.pow(2).mean().sqrt()):.3g}" for gradient in names["first"]]
    assert told.startswith("without torch.no_grad() on line 10, in pass 1: ")
    assert re.findall(r"rms ([\d.]+) instead of none", told) == sizes[:3]
    assert told.endswith("1 more")
