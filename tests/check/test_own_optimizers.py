"""New values that never reach their leaf: in the steps of optimizers that a program defines, and outside of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import gradviz
from gradviz.sources.script import Target, run

pytest.importorskip("torch", reason="PyTorch's class of optimizers is the one to derive from")
pytestmark = pytest.mark.torch

PROGRAM = """
import torch
torch.manual_seed(0)

class Own(torch.optim.Optimizer):
    def __init__(self, params):
        self.seen, self.told = set(), []
        super().__init__(params, {})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                BODY

net = torch.nn.Linear(3, 1)
optimizer = Own(net.parameters())
for step in range(4):
    optimizer.zero_grad()
    net(torch.randn(4, 3)).pow(2).mean().backward()
    optimizer.step()
"""


def lost(body: str, folder: Path) -> list[tuple[str, str]]:
    """The changes that a check calls lost, each with the cure."""
    script = folder / "train.py"
    script.write_text(PROGRAM.replace("BODY", body))
    assert run(Target(str(script), False, ()), folder / "train.gradviz", engine="torch").status == 0
    findings = gradviz.check(folder / "train.gradviz").findings
    return [(one.message.partition(" is a new")[0], str(one.fix)) for one in findings if "is a new" in one.message]


@pytest.mark.parametrize(
    ("statement", "in_place"),
    [
        ("p.add(p.grad, alpha=-0.1)", "p.add_(p.grad, alpha=-0.1)"),
        ("p.data.add(p.grad.mul(-0.1))", "p.data.add_(p.grad.mul(-0.1))"),
        ("p.mul(0.9).sub(p.grad)", "p.mul_(0.9).sub_(p.grad)"),
    ],
)
def test_a_result_that_a_step_drops_is_named_with_its_method_in_place(
    statement: str, in_place: str, tmp_path: Path
) -> None:
    assert lost(statement, tmp_path) == [(statement, in_place)]


@pytest.mark.parametrize(
    ("value", "statement", "in_place"),
    [
        ("torch.sub(p, p.grad)", "new = VALUE", "p.copy_(torch.sub(p, p.grad))"),
        ("p - 0.1 * p.grad", "p = VALUE", "p.copy_(p - 0.1 * p.grad)"),
        ("torch.add(p, p.grad)", "VALUE", "p.copy_(torch.add(p, p.grad))"),
    ],
)
def test_a_value_that_no_line_of_a_step_reads_is_named(
    value: str, statement: str, in_place: str, tmp_path: Path
) -> None:
    assert lost(statement.replace("VALUE", value), tmp_path) == [(value, in_place)]


@pytest.mark.parametrize("use", ["p.copy_(new)", "p.data = new", "p.set_(new)"])
def test_a_value_that_a_step_writes_to_its_parameter_is_not_lost(use: str, tmp_path: Path) -> None:
    assert lost(f"new = p - 0.1 * p.grad; {use}", tmp_path) == []


@pytest.mark.parametrize("statement", ["self.seen.add(p)", "self.told.append(p.mul(2))"])
def test_what_a_step_gives_to_a_collection_is_no_lost_change(statement: str, tmp_path: Path) -> None:
    assert lost(statement, tmp_path) == []


SUMMED = """
import torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
total = torch.zeros(())
for step in range(3):
    loss = (w * 2).sum()
    loss = loss + torch.log(w).sum()
    total = total + loss
    w.grad = None
    loss.backward()
print(AT_THE_END)
"""


@pytest.mark.parametrize("at_the_end", ["total", "total.item()", "float(total)", "'nothing'"])
def test_a_sum_of_losses_is_no_new_value_of_a_leaf(at_the_end: str, tmp_path: Path) -> None:
    script = tmp_path / "sums.py"
    script.write_text(SUMMED.replace("AT_THE_END", at_the_end))
    assert run(Target(str(script), False, ()), tmp_path / "sums.gradviz", engine="torch").status == 0
    findings = gradviz.check(tmp_path / "sums.gradviz").findings
    assert [one.message for one in findings if "is a new tensor" in one.message] == []
