"""A picture of a run that was not checked says so, since its cuts are grey even where a gradient was due."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gradviz.replaying

CUT = """\
import torch
x = torch.tensor([3.0, 7.0], requires_grad=True)
w = torch.tensor([1.0, 7.0], requires_grad=True)
y = {y}
(y * w).sum().backward()
"""
UNCHECKED = "cuts were not checked: a gradient may be due at some (gradviz check)"


@pytest.mark.parametrize(
    ("y", "options", "is_long", "is_said"),
    [
        ("(x * x).detach()", ["--no-findings"], False, True),
        ("(x * x).detach()", [], True, True),
        ("(x * x).detach()", [], False, False),
        ("x * x", ["--no-findings"], False, False),
    ],
    ids=["without findings", "long run", "checked", "no cut"],
)
def test_a_picture_with_cuts_says_if_they_were_not_checked(
    gradviz_here: Callable[..., CompletedProcess[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    y: str,
    options: list[str],
    is_long: bool,
    is_said: bool,
) -> None:
    (tmp_path / "run.py").write_text(CUT.format(y=y), encoding="utf-8")
    gradviz_here("trace", "-q", "--engine", "numpy", "run.py")
    if is_long:
        monkeypatch.setattr(gradviz.replaying, "MOST_EVENTS", 3)
    done = gradviz_here("graph", "run.gradviz", "-o", "run.dot", *options)
    assert (UNCHECKED in done.stdout + done.stderr) == is_said
    assert (UNCHECKED in (tmp_path / "run.dot").read_text(encoding="utf-8")) == is_said
