"""A model that torch.export copies: the leaves that PyTorch makes for itself are no unused parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz import check
from gradviz.sources.script import Target, run

pytest.importorskip("torch", reason="torch.export is PyTorch's")
pytestmark = pytest.mark.torch

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
x = torch.randn(16, 4)
program = torch.export.export(net, (x,))
module = program.module()
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    module(x).pow(2).mean().backward()
    optimizer.step()
"""
UNUSED = PROGRAM.replace("program = ", "spare = torch.zeros(2, requires_grad=True)\nprogram = ")


@pytest.mark.parametrize(("program", "names"), [(PROGRAM, []), (UNUSED, ["spare"])], ids=["copies", "a leaf"])
def test_only_a_leaf_of_the_program_is_an_unused_parameter(tmp_path: Path, program: str, names: list[str]) -> None:
    script, trace = tmp_path / "export.py", tmp_path / "export.gradviz"
    script.write_text(program, encoding="utf-8")
    assert run(Target(str(script), False, ()), trace, engine="torch").status == 0
    found = [(finding.rule, finding.message.partition(" ")[0]) for finding in check(trace)]
    assert found == [("unused-parameter", name) for name in names]
