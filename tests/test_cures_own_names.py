"""What a finding says of a program is true, and its cure has the program's own names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from zoo_programs import ALL, Program, checked

BROKEN = [program for program in ALL if program.state == "broken" and not program.needs_torch]

PLAIN = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.01)
for i in range(4):
    cost = model(torch.randn(5, 3)).pow(2).mean()
    cost.backward()
    opt.step()
"""


def told(text: str, folder: Path) -> dict[str, tuple[str, str]]:
    """The message and the cure of each rule that reports something of a program."""
    report = checked(Program("a program", "broken", text), folder)
    return {finding.rule: (finding.message, finding.fix) for finding in report}


def test_relu_of_negative_weights_is_flat_there_and_not_everywhere(tmp_path: Path) -> None:
    text = (
        "import torch\nw = torch.tensor([-1.0, -4.0], requires_grad=True)\n"
        "b = torch.tensor(1.0, requires_grad=True)\nopt = torch.optim.SGD([w, b], lr=0.1)\n"
        "for i in range(4):\n    opt.zero_grad()\n    ((torch.relu(w).sum() - b) ** 2).backward()\n    opt.step()\n"
    )
    message, cure = told(text, tmp_path)["zero-gradient"]
    assert "all elements of w are below 0, where torch.relu(w) is flat" in message
    assert cure == "start w above 0, or use torch.nn.functional.leaky_relu(w)"


@pytest.mark.parametrize("loop", ["sum(math.sqrt(v) for v in w)", "[math.sqrt(v) for v in w][0]"])
def test_elements_that_are_read_as_numbers_are_no_unused_leaf(loop: str, tmp_path: Path) -> None:
    text = (
        "import math\nimport torch\nw = torch.tensor([1.0, 4.0], requires_grad=True)\n"
        "b = torch.tensor(1.0, requires_grad=True)\nopt = torch.optim.SGD([w, b], lr=0.1)\n"
        f"for i in range(4):\n    opt.zero_grad()\n    ((b - {loop}) ** 2).backward()\n    opt.step()\n"
    )
    message, cure = told(text, tmp_path)["detached-path"]
    assert message.startswith("w never gets a gradient: math.sqrt(v) is a plain number")
    assert cure == "torch.sqrt(v)  # not math.sqrt(v)"


def test_the_cure_has_the_name_of_the_optimizer(tmp_path: Path) -> None:
    assert told(PLAIN, tmp_path)["stale-gradient"][1] == "opt.zero_grad()  # before backward()"


def test_the_cure_has_the_name_of_an_attribute_that_holds_the_optimizer(tmp_path: Path) -> None:
    text = PLAIN.replace("opt = ", "class Trainer: pass\nself = Trainer()\nself.opt = ").replace(
        "opt.step", "self.opt.step"
    )
    assert told(text, tmp_path)["stale-gradient"][1] == "self.opt.zero_grad()  # before backward()"


PLACEHOLDER = re.compile(r"(?<!\[)\.\.\.(?!\])")


@pytest.mark.parametrize("program", BROKEN, ids=lambda program: program.name)
def test_a_cure_names_no_optimizer_that_the_program_does_not_have(program: Program, tmp_path: Path) -> None:
    for finding in checked(program, tmp_path):
        for role in re.findall(r"(?<![\w.])(optimizer|scheduler|scaler|mask|loss)(?=\.\w|\))", finding.fix):
            assert re.search(rf"\b{role}\b", program.text), finding.fix
        assert not PLACEHOLDER.search(finding.fix), finding.fix


def test_grad_of_what_does_not_require_grad_is_not_called_backward(tmp_path: Path) -> None:
    text = "import torch\nx = torch.tensor(2.0)\ny = x ** 2\ntorch.autograd.grad(y, y)\n"
    findings = told(text, tmp_path)
    assert not any(message.startswith("backward()") for message, _ in findings.values())
    assert findings
