"""What is said and marked of findings without `check`: after a run, in the stepper, in pictures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gradviz
import gradviz.engine as torch
from gradviz.errors import DEBUG
from tests.invoked import invoked
from tests.page.page_views import views_of

Command = Callable[..., CompletedProcess[str]]

STALE = """\
import torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.01)
for step in range(3):
    loss = (w ** 2).sum()
    loss.backward()
    optimizer.step()
"""
SOUND = STALE.replace("    loss.backward()", "    optimizer.zero_grad()\n    loss.backward()")
IN_PLACE = """\
import torch
w = torch.tensor([1.0, 2.0], requires_grad=True)
y = w.exp()
z = y * 2
y.add_(1)
(z + y).sum().backward()
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        (tmp_path / "program.py").write_text(text)
        return "program.py"

    return write


def hints(done: CompletedProcess[str]) -> list[str]:
    """The lines after the summary."""
    lines = done.stderr.splitlines()
    after = next(i for i, line in enumerate(lines) if line.startswith("gradviz: next"))
    return lines[after + 1 :]


def test_a_run_ends_with_its_strongest_finding(gradviz_here: Command, written: Callable[[str], str]) -> None:
    done = gradviz_here("trace", "--engine", "numpy", written(STALE))
    finding, more = hints(done)
    assert done.returncode == 0
    assert finding.startswith("gradviz: error stale-gradient  program.py:6  pass 2 adds to gradients")
    assert more == "gradviz: more gradviz check program.gradviz"


def test_a_sound_run_ends_with_its_summary(gradviz_here: Command, written: Callable[[str], str]) -> None:
    assert hints(gradviz_here("trace", "--engine", "numpy", written(SOUND))) == []


def test_a_long_run_is_not_checked_on_the_way(
    gradviz_here: Command, written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradviz.replaying.MOST_EVENTS", 10)
    assert hints(gradviz_here("trace", "--engine", "numpy", written(STALE))) == []


def test_a_rule_that_fails_does_not_change_how_the_run_ends(
    gradviz_here: Command, written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("a rule\nfailed")

    monkeypatch.delenv(DEBUG)  # as for a user
    monkeypatch.setattr("gradviz.replaying.check_by_rules", fail)
    done = gradviz_here("trace", "--engine", "numpy", written(STALE + "raise SystemExit(5)\n"))
    assert done.returncode == 5
    assert hints(done) == ["gradviz: not checked: ValueError('a rule\\nfailed')"]


@pytest.mark.parametrize("engine", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def test_under_a_traceback_stand_the_explanation_and_the_cure(
    gradviz_here: Command, written: Callable[[str], str], engine: str
) -> None:
    if engine == "torch":
        pytest.importorskip("torch")
    done = gradviz_here("trace", "--engine", engine, written(IN_PLACE))
    finding, cure, more = hints(done)
    assert done.returncode == 1
    assert done.stderr.index("RuntimeError: one of the variables") < done.stderr.index(finding)
    assert finding.startswith("gradviz: error inplace-modified  program.py:5")
    assert cure.startswith("gradviz: cure make a new tensor")
    assert more.endswith("gradviz check program.gradviz")


def test_the_stepper_starts_at_a_finding(gradviz_here: Command, written: Callable[[str], str]) -> None:
    gradviz_here("trace", "--engine", "numpy", written(STALE))
    done = gradviz_here("step", "--finding", 1, "--commands", "")
    assert done.stdout.startswith("finding 1 of 1: stale-gradient: pass 2 adds to gradients")
    assert "backward pass 2 begins" in done.stdout
    done = gradviz_here("step", "--finding", 1, "--commands", "where")
    assert done.stdout.startswith("finding 1 of 1: stale-gradient: pass 2 adds to gradients")
    done = gradviz_here("step", "--finding", 2, "--commands", "")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gradviz: there is no finding 2: gradviz check finds 1 in this trace\n"


@pytest.mark.slow
def test_pictures_and_pages_mark_what_findings_are_about(
    gradviz_here: Command, written: Callable[[str], str], tmp_path: Path
) -> None:
    gradviz_here("trace", "--engine", "numpy", written(STALE))
    gradviz_here("graph", "-o", "run.svg")
    assert "finding 1: stale&#45;gradient" in (tmp_path / "run.svg").read_text()
    gradviz_here("graph", "-o", "run.html")
    first, *_ = views_of((tmp_path / "run.html").read_text())
    assert "finding 1: stale-gradient" in first
    gradviz_here("graph", "--no-findings", "-o", "run.svg")
    assert "finding" not in (tmp_path / "run.svg").read_text()
    gradviz_here("graph", "--all", "--depth", 0, "-o", "folded.svg")  # a group shows what is found inside
    assert "finding 1: stale&#45;gradient" in (tmp_path / "folded.svg").read_text()


def test_a_lesson_ends_with_its_first_note_in_one_line(gradviz_here: Command, written: Callable[[str], str]) -> None:
    cut = (
        "import torch\nx, w = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)\n"
        "(x.detach() * w).sum().backward()\n"
    )
    (note,) = hints(gradviz_here("trace", "--engine", "numpy", written(cut)))
    assert note.startswith("gradviz: note detached-path  program.py:3  x never gets a gradient")


def test_text_that_no_terminal_shows_is_not_wrapped(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        net = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(6)))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        scale = torch.ones(1, requires_grad=True)
        (net(torch.ones(1, 2)).detach().sum() * scale).backward()
        optimizer.step()
    said = invoked(["check", str(tmp_path / "run.gradviz")]).output.splitlines()
    assert [line for line in said if "never get a gradient" in line and "detach() cut it off" in line]
    assert not [line for line in said if line != line.rstrip()]
