"""An optimizer that steps inside another: the gradients of a pass are counted once where passes are left out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gradviz.query import Query
from gradviz.query.curves import pass_summaries, step_summaries
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace, passes_of

pytest.importorskip("torch", reason="the optimizers that wrap others are PyTorch's")
pytestmark = pytest.mark.torch

PROGRAM = """
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))

class Around(torch.optim.Optimizer):
    def __init__(self, *inner):
        self.inner = inner
        super().__init__([group for one in inner for group in one.param_groups], {})
    def step(self):
        for one in self.inner:
            one.step()

def sgd(part):
    return torch.optim.SGD(part.parameters(), lr=0.01)

optimizer = OPTIMIZER
for step in range(40):
    optimizer.zero_grad()
    net(torch.randn(16, 4)).pow(2).mean().backward()
    optimizer.step()
"""


def summaries(optimizer: str, folder: Path) -> tuple[list[float], list[float]]:
    """The norm of the gradients of each pass, and of what all steps behind it changed, 0 where it was not read."""
    script, trace_file = folder / "script.py", folder / "script.gradviz"
    script.write_text(PROGRAM.replace("OPTIMIZER", optimizer), encoding="utf-8")
    assert run(Target(str(script), False, ()), trace_file, engine="torch", passes=passes_of("auto")).status == 0
    with open_trace(trace_file) as trace:
        query = Query(trace)
        steps = query.of(step_summaries)
        changes = np.sqrt(np.bincount(steps.passes, steps.changes**2))
        return query.of(pass_summaries).norms.tolist(), changes.tolist()


@pytest.mark.parametrize(
    "optimizer", ["Around(sgd(net))", "Around(Around(sgd(net)))", "Around(sgd(net[0]), sgd(net[2]))"]
)
def test_the_gradients_of_a_pass_are_counted_once(optimizer: str, tmp_path: Path) -> None:
    norms, changes = summaries("sgd(net)", tmp_path)
    assert len(norms) == 40
    assert summaries(optimizer, tmp_path) == (pytest.approx(norms), pytest.approx(changes))
