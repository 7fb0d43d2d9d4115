"""Programs whose ops run in the code of a library: the line of the program is one, the ops are many."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., subprocess.CompletedProcess[str]]

LIBRARY = """
import torch


def regularised(fit, w):
    penalty = (w * w).sum()
    matches = (w == w.detach().clone()).to(w.dtype).log().sum()
    return fit + 0.1 * penalty + matches
"""
PROGRAM = """
import torch
from calm import regularised

w = torch.tensor([1.0, -2.0, 3.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    fit = (w - 1).pow(2).sum()
    loss = regularised(fit, w)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.fixture(params=["numpy", "torch"])
def traced(request: pytest.FixtureRequest, gradviz: Run, tmp_path: Path) -> Callable[[str, str], Path]:
    """Record a program that imports a library `calm`; the trace."""
    if request.param == "torch":
        pytest.importorskip("torch")
    folder = tmp_path / "site-packages"
    folder.mkdir()

    def trace(library: str, program: str) -> Path:
        (folder / "calm.py").write_text(library)
        script = tmp_path / "program.py"
        script.write_text(f"import sys\nsys.path.append({str(folder)!r})\n{program}")
        done = gradviz("trace", "--engine", request.param, "-o", tmp_path / "run.gradviz", script)
        assert done.returncode == 0, done.stderr
        return tmp_path / "run.gradviz"

    return trace


def test_each_op_of_a_library_is_called_by_what_it_is(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    trace = traced(LIBRARY, PROGRAM)
    told = gradviz("step", trace, "--commands", "search mul; search add; where").stdout
    assert "mul(w, w) ran (MulBackward0)" in told
    assert "regularised(fit, w) ran" not in told
    assert told.index("calm.py:8 in regularised") < told.index("program.py:11 in <module>")


def test_an_op_that_is_all_that_a_library_does_is_called_as_it_is_written(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    trace = traced(LIBRARY.replace("+ 0.1 * penalty + matches", "* 2").replace("    penalty =", "    # ")
                   .replace("    matches =", "    # "), PROGRAM)  # fmt: skip
    assert (
        "regularised(fit, w) made loss (MulBackward0)"
        in gradviz("step", trace, "--commands", "search mul").stdout
    )


def test_a_part_that_a_library_cuts_off_is_no_fault_of_the_program(
    traced: Callable[[str, str], Path], gradviz: Run
) -> None:
    found = gradviz("check", traced(LIBRARY, PROGRAM))
    assert "no findings" in found.stdout
    own = PROGRAM.replace("from calm import regularised", LIBRARY)
    assert "detached-path" in gradviz("check", traced(LIBRARY, own)).stdout
