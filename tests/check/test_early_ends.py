"""What is not said of a program that ended by an exception: that something never happened, if its turn had not come."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz.diagnose import check
from gradviz.sources.script import Target, run

IN_TURN = """\
import torch
torch.manual_seed(0)
first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
of_second = torch.optim.SGD(second.parameters(), lr=0.1)
of_first = torch.optim.SGD(first.parameters(), lr=0.1)
for step in range(2):
    fake = first(torch.randn(4, 3))
    of_second.zero_grad()
    second(fake.detach()).mean().backward()
    of_second.step()
    {fails}
    of_first.zero_grad()
    second(fake).mean().neg().backward()
    of_first.step()
"""


@pytest.mark.parametrize("fails", ["raise RuntimeError('ended')", "fake = fake.detach()"])
def test_a_network_whose_turn_had_not_come_lacks_nothing(fails: str, tmp_path: Path) -> None:
    script, trace = tmp_path / "in_turn.py", tmp_path / "in_turn.gradviz"
    script.write_text(IN_TURN.format(fails=fails))
    run(Target(str(script), False, []), trace)
    found = {(finding.rule, finding.line) for finding in check(trace).at_least("warning")}
    assert found == (set() if "raise" in fails else {("detached-path", 11)})
