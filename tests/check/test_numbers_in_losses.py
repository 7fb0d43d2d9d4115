"""A term of a loss that was read as a plain number, however the program writes it; and healthy uses of numbers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from gradviz.diagnose import check
from gradviz.diagnose.finding import Finding
from gradviz.sources.script import Target, run
from gradviz.tracefile import open_trace

ENGINES = ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]
PROGRAM = """\
import torch
torch.manual_seed(0)
RATE = 0.1
w = torch.randn(3, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
meter, best, history, count = 0.0, 1e9, [], 0
class Model:
    pass
model = Model()
def number_of(tensor):
    return tensor.item()
for _ in range(4):
    optimizer.zero_grad()
    rough = (w ** 2).sum()
    fit = (w - 1).pow(2).sum()
{step}
    loss.backward()
    optimizer.step()
"""
FAULTS = {
    "one line": "loss = fit + 0.1 * rough.item()",
    "two lines": "amount = rough.item()\nloss = fit + 0.1 * amount",
    "dict": "parts = {'fit': fit.item(), 'rough': rough.item()}\nloss = fit + 0.1 * parts['rough']",
    "lambda": "amount = lambda: rough.item()\nloss = fit + 0.1 * amount()",
    "numpy": "amount = float(rough.detach().numpy())\nloss = fit + 0.1 * amount",
    "attribute": "model.rough = rough.item()\nloss = fit + RATE * model.rough",
    "function": "amount = number_of(rough)\nloss = amount / 4 + fit",
    "tuple": "one, other = fit.item(), rough.item()\nloss = torch.add(fit, -other)",
    "a power": "loss = fit + RATE * rough.item() ** 2",
    "in place": "amount = 2 * float(rough)\nloss = fit * 1\nloss += RATE * amount",
}
HEALTHY = {
    "logging": "loss = fit + 0.1 * rough\nprint(rough.item(), f'{loss.item():.3f}')",
    "early stopping": "loss = fit + 0.1 * rough\nif rough.item() > best:\n    break\nbest = rough.item()",
    "scheduler": "loss = fit + 0.1 * rough\nscheduler.step(rough.item())",
    "meter": "loss = fit + 0.1 * rough\ncount += 1\nmeter += (rough.item() - meter) / count",
    "a list": "loss = fit + 0.1 * rough\nhistory.append(rough.item())",
    "another number of the same name": "amount = rough.item()\nprint(amount)\namount = 0.25\nloss = fit + 0.1 * amount",
    "a threshold": "amount = rough.item()\nloss = fit + (0.5 if amount > 1 else 0.25)",
    "the number of the last round": "loss = fit + 0.1 * best\nbest = rough.item()",
}


def findings(step: str, engine: str, folder: Path) -> list[Finding]:
    """The findings about cut-off paths in a loop with this step, on an engine."""
    script, file = folder / "program.py", folder / "run.gradviz"
    script.write_text(PROGRAM.format(step="\n".join(f"    {line}" for line in step.split("\n"))))
    assert run(Target(str(script), False, []), file, engine=engine).status == 0
    with open_trace(file) as trace:
        return [finding for finding in check(trace) if finding.rule == "detached-path"]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("spelling", FAULTS)
def test_a_number_that_is_added_to_the_loss_is_found_where_it_is_read(
    spelling: str, engine: str, tmp_path: Path
) -> None:
    step = FAULTS[spelling]
    (finding,) = findings(step, engine, tmp_path)
    assert finding.site is not None
    lines = (tmp_path / "program.py").read_text().splitlines()
    line = lines[finding.site.place.line - 1]
    assert any(read in line for read in ("rough.item()", "float(rough", "tensor.item()"))
    assert finding.message.endswith("is added to the loss without its graph: w gets no gradient from rough")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("use", HEALTHY)
def test_a_number_that_is_only_looked_at_is_not_reported(use: str, engine: str, tmp_path: Path) -> None:
    assert findings(HEALTHY[use], engine, tmp_path) == []
