"""A NaN in a run with `--values inputs`: `check` names the op that made it, or no line, and `what-if` the call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradviz.sources.pytorch import is_installed
from tests.invoked import invoked

ENGINES = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not is_installed(), reason="no PyTorch"))]
# The scores of the second row are all masked: the NaN of its softmax is seen first in what is small, the last layer.
FORWARD = """
import torch
torch.manual_seed(0)
w = torch.randn(12, 12, requires_grad=True)
mask = torch.zeros(8, 12, dtype=torch.bool)
mask[1] = True
scores = (torch.randn(8, 12) @ w).masked_fill(mask, float("-inf"))
shares = torch.softmax(scores, 1)
hidden = shares @ w
out = hidden.mean(1)
out.sum().backward()
"""
# The square root is at 0 for a row of many elements; what has NaN is seen first in the gradient of w.
BACKWARD = """
import torch
torch.manual_seed(0)
w = torch.randn(12, 12, requires_grad=True)
kept = torch.ones(8, 12)
kept[1] = 0
roots = ((torch.randn(8, 12) @ w).abs() * kept).sqrt()
roots.sum().backward()
"""


def findings(folder: Path, engine: str, program: str) -> list[dict[str, Any]]:
    script, trace = folder / "bad.py", folder / "bad.gradviz"
    script.write_text(program)
    invoked(["trace", "--values", "inputs", "--engine", engine, "-o", str(trace), str(script)])
    return checked(trace)


def checked(trace: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(invoked(["check", str(trace), "--format", "json"]).stdout)["findings"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_nan_is_named_at_the_op_that_made_it_though_its_values_were_not_kept(tmp_path: Path, engine: str) -> None:
    (found,) = findings(tmp_path, engine, FORWARD)
    assert (found["rule"], found["line"]) == ("nonfinite-forward", 8)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_is_named_at_the_node_that_made_it_infinite(tmp_path: Path, engine: str) -> None:
    (found,) = findings(tmp_path, engine, BACKWARD)
    assert (found["rule"], found["line"]) == ("singular-derivative", 7)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_no_line_of_the_forward_is_named_where_the_pass_does_not_give_what_was_recorded(
    tmp_path: Path, engine: str
) -> None:
    program = FORWARD.replace(
        "out.sum().backward()", "w.register_hook(lambda gradient: gradient * 3)\nout.sum().backward()"
    )
    (found,) = findings(tmp_path, engine, program)
    assert (found["rule"], found["line"]) == ("nonfinite-forward", 12)
    assert "where it comes from was not recorded (--values inputs)" in found["message"]


@pytest.mark.slow
def test_a_capsule_says_the_same(tmp_path: Path) -> None:
    (whole,) = findings(tmp_path, "numpy", BACKWARD)
    capsule = tmp_path / "capsule.gradviz"
    invoked(["capsule", str(tmp_path / "bad.gradviz"), "-o", str(capsule)])
    (found,) = checked(capsule)
    assert (found["message"], found["line"]) == (whole["message"], whole["line"])


def origins(folder: Path, program: str, *options: str, engine: str = "numpy") -> list[str | None]:
    """Where `what-if` says that NaN or infinities come from, before and after."""
    findings(folder, engine, program)
    done = invoked(["what-if", str(folder / "bad.gradviz"), "--json", *options])
    found: list[str | None] = json.loads(done.stdout)["bad"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_call_and_the_sample_that_a_nan_comes_from_are_told(tmp_path: Path, engine: str) -> None:
    place = "Tensor" if engine == "numpy" else "torch"
    told = f"NaN comes first from {place}.softmax, line 8, at index 1 of the first dimension"
    assert origins(tmp_path, FORWARD, engine=engine) == [told, None]
    assert told in invoked(["what-if", str(tmp_path / "bad.gradviz")], env={"COLUMNS": "200"}).stdout


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_node_and_the_sample_that_make_a_gradient_infinite_are_told(tmp_path: Path, engine: str) -> None:
    told = "a finite gradient becomes infinite in SqrtBackward0, line 7, at index 1 of the first dimension"
    assert origins(tmp_path, BACKWARD, engine=engine) == [told, None]


@pytest.mark.slow
def test_data_with_a_nan_are_told(tmp_path: Path) -> None:
    rows = "[[float('nan') if row in (2, 5) else 1.0] * 12 for row in range(8)]"
    program = BACKWARD.replace("torch.ones(8, 12)\nkept[1] = 0", f"torch.tensor({rows})")
    told = "NaN enters the pass with kept, at indices 2 and 5 of the first dimension"
    assert origins(tmp_path, program) == [told, None]


@pytest.mark.slow
def test_an_overflow_that_another_dtype_does_not_have_is_told_of_the_one_alone(tmp_path: Path) -> None:
    program = "import torch\nw = torch.tensor([1.0, 90.0], requires_grad=True)\nw.exp().sum().backward()\n"
    told = "an infinity comes first from Tensor.exp, line 3, at index 1 of the first dimension"
    assert origins(tmp_path, program, "--dtype", "float64") == [told, None]


def test_an_infinity_that_was_written_down_is_not_told(tmp_path: Path) -> None:
    program = FORWARD.replace("mask[1] = True", "mask[1, 2:] = True")
    assert origins(tmp_path, program) == [None, None]
