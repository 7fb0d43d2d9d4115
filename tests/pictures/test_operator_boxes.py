"""A box of an operator that PyTorch has no function for says the operator, as the source does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gradviz.query.ops import operator_of

PROGRAM = """\
import torch
x = torch.tensor([3.0, 7.0], requires_grad=True)
y = 1 - x
for step in range(12):
    y = 2 - y * x.exp()
y.sum().backward()
"""


@pytest.mark.parametrize(
    ("op", "args", "words"),
    [
        ("__floordiv__", "2", "… // 2"),
        ("__floordiv__", "", "//"),
        ("__rfloordiv__", "7", "7 // …"),
        ("rsub", "other=1", "1 - …"),
        ("rsub", "5, alpha=2", ""),
        ("rsub", "", ""),
        ("rpow", "2", "2 ** …"),
        ("__ilshift__", "1", "… <<= 1"),
        ("rand", "4", ""),
        ("eq", "3", ""),
        ("sub", "3", ""),
        ("remainder", "2.0", ""),
    ],
)
def test_an_operator_is_written_with_dots_for_its_tensor(op: str, args: str, words: str) -> None:
    assert operator_of(op, args) == words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "boxes"),
    [((), ["1 - … → y [2]", "2 - … ×12 → y [2]"]), (("--style", "textbook"), ["1 - …", *["2 - …"] * 12])],
    ids=["graph", "textbook"],
)
def test_pictures_say_a_subtraction_from_a_number_as_the_source_does(
    gradviz_here: Callable[..., CompletedProcess[str]], tmp_path: Path, options: tuple[str, ...], boxes: list[str]
) -> None:
    (tmp_path / "run.py").write_text(PROGRAM, encoding="utf-8")
    gradviz_here("trace", "--engine", "numpy", "run.py")
    gradviz_here("graph", "run.gradviz", "-o", "run.dot", *options)
    text = (tmp_path / "run.dot").read_text(encoding="utf-8")
    labels = re.findall(r'label="([^"]*)"', text)
    assert "rsub" not in " ".join(labels)
    assert sorted(label.partition("\\n")[0].strip() for label in labels if " - …" in label) == boxes


@pytest.mark.torch
def test_an_operator_of_two_gates_has_the_names_of_their_nodes(
    gradviz_here: Callable[..., CompletedProcess[str]], tmp_path: Path
) -> None:
    pytest.importorskip("torch", reason="our engine has two operations for 2 / x")
    program = "import torch\nx = torch.tensor(3.0, requires_grad=True)\ny = 2 / x\ny.backward()\n"
    (tmp_path / "run.py").write_text(program, encoding="utf-8")
    gradviz_here("trace", "--engine", "torch", "run.py")
    gradviz_here("graph", "run.gradviz", "-o", "run.dot", "--style", "textbook")
    labels = re.findall(r'label="([^"]*)"', (tmp_path / "run.dot").read_text(encoding="utf-8"))
    gates = [name.strip() for label in labels if "Backward0" in (name := label.partition("\\n")[0])]
    assert sorted(gates) == ["MulBackward0", "ReciprocalBackward0"]
