"""The cure of a state that is carried from pass to pass: it is detached where its name is bound in each iteration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz.diagnose import Finding, check
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

START = """\
import torch
torch.manual_seed(0)
cell, head = torch.nn.RNNCell(2, 4), torch.nn.Linear(4, 1)
def of_another_function(hidden):
    return hidden * 2
"""
END = """\
        loss = head(hidden).pow(2).mean()
        loss.backward()
train()
"""
NO_STATE_AT_FIRST = """\
def train(hidden=None):
    for batch in range(3):
        hidden = cell(torch.randn(1, 2), hidden)
"""
NONE_ABOVE = """\
def train():
    hidden = None
    for batch in range(3):
        hidden = cell(torch.randn(1, 2), hidden)
"""
UNDER_A_CONDITION = """\
def train(start=None):
    if start is not None:
        hidden = start
    for batch in range(3):
        if start is None and batch == 0:
            hidden = torch.zeros(1, 4)
        for t in range(2):
            hidden = cell(torch.randn(1, 2), hidden)
"""
SECOND_NAME = """\
def train():
    hidden = torch.zeros(1, 4)
    for batch in range(3):
        state = cell(torch.randn(1, 2), hidden)
        hidden = state
"""
ABOVE = """\
def train():
    hidden, batch = torch.zeros(1, 4), 0
    while batch < 3:
        batch += 1
        hidden = cell(torch.randn(1, 2), hidden)
"""
ATTRIBUTE = """\
class Net(torch.nn.Module):
    hidden = None
    def forward(self, x):
        self.hidden = cell(x, self.hidden)
        return self.hidden
net = Net()
def train():
    for batch in range(3):
        hidden = net(torch.randn(1, 2))
"""


def findings(program: str, folder: Path) -> tuple[int, list[Finding], str]:
    """The status of a program, its findings, and the program as the first cure leaves it; empty if there is none."""
    script = folder / "script.py"
    script.write_text(program, encoding="utf-8")
    status = run(Target(str(script), False, ()), folder / "script.gradviz", engine="numpy").status
    with open_trace(folder / "script.gradviz") as trace:
        found = check(trace).findings
        cure = found[0].patch if found else None
        return status, found, cure.after if cure is not None else ""


@pytest.mark.parametrize(
    "loop",
    [NO_STATE_AT_FIRST, NONE_ABOVE, UNDER_A_CONDITION, SECOND_NAME, ABOVE],
    ids=["default of None", "None above the loop", "condition", "second name", "above the loop"],
)
def test_a_carried_state_is_detached_where_its_name_is_bound(loop: str, tmp_path: Path) -> None:
    status, [finding], cured = findings(START + loop + END, tmp_path)
    assert (status, finding.rule) == (1, "backward-twice")
    assert finding.fix.startswith("hidden = hidden.detach()  # between two rounds, ")
    assert findings(cured, tmp_path)[0] == 0


def test_a_state_without_a_name_in_the_loop_of_the_passes_gets_advice_in_words(tmp_path: Path) -> None:
    _, [finding], cured = findings(START + ATTRIBUTE + END, tmp_path)
    assert finding.fix.startswith("detach self.hidden, which is kept from the earlier pass")
    assert cured == ""
