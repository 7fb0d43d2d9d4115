"""Passes that are not recorded in detail: what `check` says of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gradviz

PROGRAM = """
import torch
torch.manual_seed(0)
w = torch.nn.Parameter(torch.randn(4, 16))
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(1, {steps} + 1):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    out = x @ w
    if step == {bad}:
        out = (out - 100).sqrt()
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
"""


def checked(folder: Path, engine: str, passes: str, steps: int, bad: int) -> tuple[str, gradviz.RecordedRun]:
    """What `check` says of the program that makes a NaN in one step, and the trace."""
    (folder / "train.py").write_text(PROGRAM.format(steps=steps, bad=bad))
    gradviz_of = [sys.executable, "-m", "gradviz"]
    traced = [
        *gradviz_of,
        "trace",
        "-q",
        "--engine",
        engine,
        "--passes",
        passes,
        "-o",
        "run.gradviz",
        "train.py",
    ]
    subprocess.run(traced, cwd=folder, check=True)
    told = subprocess.run([*gradviz_of, "check", "run.gradviz"], cwd=folder, capture_output=True, text=True)
    return " ".join(told.stdout.split()), gradviz.open(folder / "run.gradviz")


def test_a_step_behind_passes_without_values_is_not_at_fault(tmp_path: Path) -> None:
    said, _ = checked(tmp_path, "numpy", "every:50", 100, 70)
    assert "lr-too-large" not in said
    assert "NaN is seen first in w, and passes 51-100 were not recorded in detail" in said
    assert "gradviz trace --passes 51-100: the line is named then" in said
