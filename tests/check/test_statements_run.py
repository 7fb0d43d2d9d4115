"""A line that sets a misspelt `requires_grad`, or sets it on a module, is named only if it is sure to have run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo_programs import Program, checked

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


def found_in(text: str, folder: Path) -> list[tuple[str, int]]:
    """The rule and the line of each finding in a program."""
    return [(finding.rule, finding.line) for finding in checked(Program("a program", "healthy", text), folder)]


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
        (OF_THE_PROGRAM + "bare = Bare(model)\nfor one in bare.parameters():\n    one.require_grad = False", []),
        ("", []),
    ],
)
def test_a_misspelt_attribute_is_named_where_its_line_has_run(tmp_path: Path, call: str, lines: list[int]) -> None:
    assert found_in(FUNCTIONS + call + TRAINING, tmp_path) == [("frozen-parameter", line) for line in lines]


MODULES = """\
import gradviz.engine as torch
torch.manual_seed(0)
def layers(*sizes):
    return torch.nn.Sequential(*(torch.nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = layers(4, 5, 6), torch.nn.Linear(6, 1)
        self.scale = torch.nn.Parameter(torch.ones(6))
    def forward(self, x):
        return self.head(torch.tanh(self.encoder(x)) * self.scale)
    def freeze_encoder(self):
        self.encoder.requires_grad = False
def freeze(module):
    for layer in module.children():
        layer.requires_grad = False
model = Net()
"""


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("model.encoder.requires_grad = False", [18]),
        ("model.encoder[0].requires_grad = False", [18]),
        ("model.freeze_encoder()", [13]),
        ("freeze(model.encoder)", [16]),
        ("freeze(model.head)", []),
        ("for one in model.encoder:\n    one.requires_grad = False", [19]),
        ("for one in model.encoder.modules():\n    one.requires_grad = False", [19]),
        ("for name, one in model.named_children():\n    one.requires_grad = False", [19]),
        ("model.encoder.requires_grad = True", []),
        ("model.scale.requires_grad = False", []),
        ("for one in model.encoder.parameters():\n    one.requires_grad = False", []),
        ("model.encoder.requires_grad = False\nmodel.encoder.requires_grad_(False)", []),
        ("if model is None:\n    model.encoder.requires_grad = False", []),
    ],
)
def test_requires_grad_of_a_module_is_named_where_its_parameters_are_trained_nevertheless(
    tmp_path: Path, call: str, lines: list[int]
) -> None:
    assert found_in(MODULES + call + TRAINING, tmp_path) == [("frozen-parameter", line) for line in lines]
