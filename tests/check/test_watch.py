"""`--watch` says a finding while the script runs, `--stop-on` ends the script there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from gradviz.diagnose import RULES, Finding, Report
from gradviz.diagnose.run_rules import AT_ONCE, Sure

Command = Callable[..., CompletedProcess[str]]

LONG = """\
import sys, time, torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
try:
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        loss = ((w * 0 if step == 20 else w) / (w * 0 if step == 20 else w)).sum()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
except Exception:
    print("caught")
finally:
    print("ended at", step, file=sys.stderr)
"""
LINE = 7


def finding(rule: str, severity: str = "error") -> Finding:
    return Finding(rule, severity, "message", "fix", None)


def report(*findings: Finding) -> Report:
    return Report(findings, (), ())


def test_what_has_happened_is_sure_at_once_and_said_once() -> None:
    sure, found = Sure(), finding("stale-gradient")
    assert list(sure.new(report(found), 2)) == [found]
    assert list(sure.new(report(found), 4)) == []


def test_what_has_not_happened_is_sure_when_the_run_is_twice_as_long() -> None:
    sure, found = Sure(), finding("unused-parameter", "warning")
    assert list(sure.new(report(found), 1)) == []
    assert list(sure.new(report(found), 3)) == []
    assert list(sure.new(report(), 6)) == []  # it was no fault after all
    assert list(sure.new(report(found), 10)) == []
    assert list(sure.new(report(found), 19)) == []
    assert list(sure.new(report(found), 20)) == [found]


def test_notes_are_not_said() -> None:
    assert list(Sure().new(report(finding("stale-gradient", "note")), 50)) == []


def test_the_rules_that_are_sure_at_once_are_rules() -> None:
    assert {rule.id for rule in RULES} >= AT_ONCE


ENGINES = ["numpy", pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.slow])]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_script_is_ended_where_it_goes_wrong(gradviz: Command, tmp_path: Path, engine: str) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    (tmp_path / "long.py").write_text(LONG)
    done = gradviz("trace", "--engine", engine, "--stop-on", "error", "long.py", 20_000)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("gradviz", "ended"))]
    assert done.returncode == 3
    assert done.stdout == ""  # `except Exception` does not catch it
    said, stopped, ended, recorded, *_ = lines
    assert said.startswith(f"gradviz: error nonfinite-forward  long.py:{LINE}")
    assert stopped == "gradviz: stop because of nonfinite-forward: the run ends with status 3"
    assert ended == "ended at 20"
    assert recorded.startswith("gradviz: recorded")
    assert sum("nonfinite-forward  long.py" in line for line in lines) == 1  # not a second time at the end
    info = gradviz("info", "long.gradviz")
    assert info.returncode == 0


FORGETS = """\
import sys, torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(300):
    print(step, file=sys.stderr)
    if step != int(sys.argv[1]):
        optimizer.zero_grad()
    (w ** 2).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", [5, 37])
def test_a_run_ends_with_the_pass_behind_a_wrong_step(gradviz: Command, tmp_path: Path, step: int) -> None:
    """Also where a pass has nothing that earlier ones do not have, but lacks something. The fault is complete when the
    step has used the gradient."""
    (tmp_path / "forgets.py").write_text(FORGETS)
    done = gradviz("trace", "-q", "--engine", "numpy", "--stop-on", "error", "forgets.py", step)
    assert done.returncode == 3
    assert "gradviz: stop because of stale-gradient" in done.stderr
    assert [line for line in done.stderr.splitlines() if line.isdigit()][-1] == str(step + 1)


def scaled(clears: bool) -> str:
    """Half precision by hand: the gradient overflows in step 3, which is left out, or not."""
    return f"""\
import sys, torch
w = torch.tensor([1e-3, 2e-3], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=1e-6)
for step in range(30):
    print(step, file=sys.stderr)
    factor = torch.full((2,), 1e38 if step == 3 else 1.0)
    loss = (w * factor).sum()
    optimizer.zero_grad()
    (loss * 1024.0).backward()
    w.grad.div_(1024.0)
    if {clears} and not torch.isfinite(w.grad).all():
        continue
    optimizer.step()
"""


@pytest.mark.slow
def test_a_gradient_of_a_scaled_loss_ends_the_run_when_a_step_has_used_it(gradviz: Command, tmp_path: Path) -> None:
    ended = {}
    for clears in (True, False):
        (tmp_path / "scaled.py").write_text(scaled(clears))
        done = gradviz("trace", "-q", "--engine", "numpy", "--stop-on", "error", "scaled.py")
        last = [line for line in done.stderr.splitlines() if line.isdigit()][-1]
        ended[clears] = done.returncode, last
    assert ended == {True: (0, "29"), False: (3, "4")}


@pytest.mark.slow
def test_a_watched_script_goes_on(gradviz: Command, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    done = gradviz("trace", "--engine", "numpy", "--watch", "long.py", 500)
    assert done.returncode == 0
    said = done.stderr.index(f"gradviz: error nonfinite-forward  long.py:{LINE}")
    assert said < done.stderr.index("ended at 499")


@pytest.mark.slow
def test_check_watches_as_trace_does(gradviz: Command, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    done = gradviz("check", "--engine", "numpy", "--watch", "long.py", 500)
    assert done.returncode == 1
    said = done.stderr.index(f"gradviz: error nonfinite-forward  long.py:{LINE}")
    assert said < done.stderr.index("ended at 499")
    assert "nonfinite-forward" in done.stdout


@pytest.mark.slow
def test_the_origin_of_a_nan_in_a_run_of_inputs_is_told_at_the_end(gradviz: Command, tmp_path: Path) -> None:
    """While the program runs the pass does not run again: it would share the program's random numbers."""
    long = LONG.replace("[1.0, 2.0]", "[1.0] * 100").replace(".sum()", ".abs().sum()")
    (tmp_path / "long.py").write_text(long)
    done = gradviz("check", "--engine", "numpy", "--values", "inputs", "--watch", "long.py", 150)
    said = "NaN is seen first in loss, and where it comes from is looked for at the end: gradviz check runs pass 21"
    assert f"gradviz: error nonfinite-forward  long.py:8  {said} again then" in done.stderr
    assert "not recorded" not in done.stderr
    assert f"1. error nonfinite-forward  long.py:{LINE}" in done.stdout


@pytest.mark.slow
def test_check_ends_a_script_where_it_goes_wrong(gradviz: Command, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    done = gradviz("check", "--engine", "numpy", "--stop-on", "error", "long.py", 20_000)
    assert done.returncode == 3
    assert "stop because of nonfinite-forward" in done.stderr
    assert "ended at 19999" not in done.stderr
    assert "nonfinite-forward" in done.stdout


@pytest.mark.slow
def test_check_watches_for_the_selected_rules_alone(gradviz: Command, tmp_path: Path) -> None:
    (tmp_path / "long.py").write_text(LONG)
    options = ("--engine", "numpy", "--stop-on", "error", "--ignore", "nonfinite-forward")
    done = gradviz("check", *options, "long.py", 150)
    assert "ended at 149" in done.stderr
    assert "nonfinite-forward" not in done.stderr


@pytest.mark.slow
def test_check_watches_no_trace(gradviz: Command, tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text("import torch\ntorch.ones(2, requires_grad=True).sum().backward()\n")
    gradviz("trace", "--engine", "numpy", "short.py")
    done = gradviz("check", "--watch", "short.gradviz")
    assert done.returncode == 2
    assert done.stderr == (
        "gradviz: --watch and --stop-on check while a program runs, so they need SCRIPT: a trace is only read\n"
    )


SLOW = """\
import time, torch
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=1e-12)
for step in range(300):
    optimizer.zero_grad()
    net(torch.randn(3, 4)).pow(2).mean().backward()
    optimizer.step()
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_file_of_the_last_passes_is_watched_for_the_passes_of_the_run(gradviz: Command, tmp_path: Path) -> None:
    """With --last the file never has twice as many passes as at the first check; the run has."""
    (tmp_path / "slow.py").write_text(SLOW)
    done = gradviz("trace", "--engine", "numpy", "--stop-on", "warning", "--last", 4, "slow.py")
    assert "stop because of update-ratio" in done.stderr
    assert done.returncode == 3


@pytest.mark.slow
def test_warnings_do_not_end_a_run_that_is_to_end_on_errors(gradviz: Command, tmp_path: Path) -> None:
    (tmp_path / "sound.py").write_text(LONG.replace("w * 0 if step == 20 else w", "w"))
    done = gradviz("trace", "--engine", "numpy", "--stop-on", "error", "sound.py", 80)
    assert (done.returncode, "stop because" in done.stderr) == (0, False)
