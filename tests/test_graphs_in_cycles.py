"""Graphs in cycles of references are freed when Python collects them: nothing in the program keeps them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradviz import check
from gradviz.sources.script import Target, run

PROGRAM = """
import gc
import gradviz.engine as torch

class Holder:
    pass

gc.disable()
torch.manual_seed(0)
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
for step in range(12):
    holder = Holder()
    holder.loss = model(torch.randn(4, 3)).pow(2).mean()
    optimizer.zero_grad()
    holder.loss.backward()
    optimizer.step()
    {keeping}
    if step == 3 or step == 7:
        gc.collect(0)
gc.enable()
"""


@pytest.mark.parametrize(
    ("keeping", "rules"), [("holder.itself = holder", []), ("kept.append(holder)", ["graph-leak"])]
)
def test_graphs_that_wait_for_a_collection_are_no_leak(
    tmp_path: Path, keeping: str, rules: list[str]
) -> None:
    script, trace = tmp_path / "cycles.py", tmp_path / "cycles.gradviz"
    script.write_text(PROGRAM.format(keeping=keeping), encoding="utf-8")
    assert run(Target(str(script), False, []), trace, engine="numpy").status == 0
    assert [finding.rule for finding in check(trace)] == rules
