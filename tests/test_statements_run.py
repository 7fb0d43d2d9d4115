"""A line that sets a misspelt `requires_grad` is named only if it is sure to have run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz import check
from gradviz.sources.script import Target, run

FUNCTIONS = """\
import gradviz.engine as torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 1))
freezes = False
def freeze(module):
    for name, parameter in module.named_parameters():
        parameter.require_grad = False
def prepare():
    freeze(model[0])
def return_early():
    if not freezes:
        return
    model[0].require_grad = False
"""
OF_THE_PROGRAM = """
class Bare:
    def __init__(self, net):
        self.net = net
    def parameters(self):
        return []
"""
TRAINING = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("prepare()", [7]),
        ("model[0].require_grad = False", [14]),
        ("with torch.no_grad():\n    model[0].require_grad = False", [15]),
        ("return_early()", []),
        ("if freezes:\n    freeze(model)\n    model.require_grad = False", []),
        ("for one in []:\n    one.require_grad = False", []),
        ("for one in model.parameters():\n    one.require_grad = False", [15]),
        ("for one in model[1].parameters():\n    one.require_grad = False", []),
        ("freeze(model[1])", []),
        (OF_THE_PROGRAM + "for one in Bare(model).parameters():\n    one.require_grad = False", []),
        (
            OF_THE_PROGRAM
            + "bare = Bare(model)\nfor one in bare.parameters():\n    one.require_grad = False",
            [],
        ),
        ("", []),
    ],
)
def test_a_misspelt_attribute_is_named_where_its_line_has_run(
    tmp_path: Path, call: str, lines: list[int]
) -> None:
    script, trace = tmp_path / "freezing.py", tmp_path / "freezing.gradviz"
    script.write_text(FUNCTIONS + call + TRAINING, encoding="utf-8")
    assert run(Target(str(script), False, []), trace, engine="numpy").status == 0
    found = check(trace)
    assert [(finding.rule, finding.line) for finding in found] == [
        ("frozen-parameter", line) for line in lines
    ]
