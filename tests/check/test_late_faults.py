"""What happens late in a run is found where passes are left out: the same first finding, at the same line, as with all
passes."""

from __future__ import annotations

import contextlib
import runpy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="these programs use PyTorch")

import gradviz  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

BEGINNING = """
import torch
from torch import nn
torch.manual_seed(0)
first, second = nn.Linear(8, 16), nn.Linear(16, 1)
net = nn.Sequential(first, nn.Tanh(), second)
optimizer = torch.optim.SGD(net.parameters(), lr=LR)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=SCALED)
seen, total = [], 0
for step in range(1, 140):
    rows = torch.randn(16, 8)
"""
END = """
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
# The lines that make the loss, and those behind the step. Step 64 is not recorded in detail in any case.
PROGRAMS = {
    "bad row": """
    x = torch.log(rows.abs() * (-1 if step == 64 else 1))  # guilty
    loss = net(x).square().mean()
""",
    "root of 0": """
    apart = net(rows) - (net(rows) if step == 64 else net(rows + 1))
    loss = torch.sqrt(apart.square().sum(1)).mean()  # guilty
""",
    "overflow": """
    scores = first(rows) * (1 if step < 64 else 1e4)
    p = torch.exp(scores) / torch.exp(scores).sum(1, keepdim=True)  # guilty
    loss = -torch.log(p.gather(1, torch.zeros(16, 1, dtype=torch.int64)) + 1e-8).mean()
""",
    "dead unit": """
    h = torch.relu(first(rows.abs()))  # guilty
    goal = rows.abs().mean(1) * (-80 if 30 < step < 60 else 1)
    loss = (4 * torch.tanh(h.mean(1)) - goal).square().mean()
""",
    "leak": """
    loss = net(rows).square().mean()
    if step > 40:
        seen.append(loss)  # guilty
""",
    "sum of losses": """
    loss = net(rows).square().mean()
    total = total + (loss if step > 40 else loss.item())  # guilty
""",
    "cut": """
    h = torch.tanh(first(rows))
    if step >= 64:
        h = h.detach()  # guilty
    loss = second(h).square().mean()
""",
    "write in place": """
    h = torch.tanh(first(rows))
    out = second(h)
    if step == 64:
        h.mul_(2)  # guilty
    loss = out.square().mean()
""",
    "scaler that halves for ever": """
    out = net(rows)
    loss = out.square().mean()
    if step > 64:
        loss = loss + torch.sqrt((out - out.detach()).square()).mean()  # guilty
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_first_finding_is_that_of_all_passes(tmp_path: Path, name: str) -> None:
    beginning = BEGINNING.replace("LR", "0.05" if "dead" in name else "0.001").replace("SCALED", f"{'scaler' in name}")
    script, trace = tmp_path / "program.py", tmp_path / "run.gradviz"
    script.write_text(beginning + PROGRAMS[name] + END)
    found = []
    for passes in ("auto", "all"):
        with contextlib.suppress(RuntimeError), gradviz.record(trace, passes=passes):
            runpy.run_path(str(script))
        found.append(gradviz.check(trace).findings)
    auto, complete = (findings[0] for findings in found)
    assert (auto.rule, auto.line) == (complete.rule, complete.line)
    assert "discarded-gradient" not in [one.rule for findings in found for one in findings]  # steps that a scaler skips
    assert "# guilty" in script.read_text().splitlines()[(auto.line or 0) - 1]


ON_OUR_ENGINE = {name: program for name, program in PROGRAMS.items() if "scaler" not in name}
ON_OUR_ENGINE["bad data"] = """
    x = (rows + 5) / (rows.std() * (0 if step == 64 else 1))  # guilty
    loss = net(x).square().mean()
"""


def traced_on_our_engine(folder: Path, body: str, rate: str, passes: str) -> list[Any]:
    """The findings of a program on gradviz's engine, with the lines that they name."""
    beginning = BEGINNING.replace("LR", rate).replace("torch\n", "gradviz.engine as torch\n", 1)
    lines = [line for line in beginning.splitlines() if "scaler" not in line]
    program = "\n".join(lines).replace("from torch", "from gradviz.engine") + body
    script, trace = folder / "program.py", folder / "run.gradviz"
    script.write_text(program + "    optimizer.zero_grad()\n    loss.backward()\n    optimizer.step()\n")
    with contextlib.suppress(RuntimeError), gradviz.record(trace, passes=passes):
        runpy.run_path(str(script))
    named = script.read_text().splitlines()
    return [(one.rule, one.message, named[(one.line or 1) - 1].strip()) for one in gradviz.check(trace).findings]


@pytest.mark.parametrize("name", ON_OUR_ENGINE)
def test_the_first_finding_is_that_of_all_passes_on_our_engine(tmp_path: Path, name: str) -> None:
    rate = "0.05" if "dead" in name else "0.001"
    auto, complete = (
        traced_on_our_engine(tmp_path, ON_OUR_ENGINE[name], rate, passes)[0] for passes in ("auto", "all")
    )
    assert (auto[0], auto[2]) == (complete[0], complete[2])
    assert auto[2].endswith("# guilty")


def test_of_a_graph_that_no_recorded_pass_had_the_pass_is_named(tmp_path: Path) -> None:
    body = """
    h = first(rows)
    loss = second(torch.tanh(h)).square().mean() + (torch.sqrt(h - h).mean() if step == 64 else 0)
"""
    ((rule, message, line),) = traced_on_our_engine(tmp_path, body, "0.001", "auto")
    assert (rule, line) == ("singular-derivative", "loss.backward()")
    assert "the gradient of sqrt" in message
