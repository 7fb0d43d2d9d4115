"""`graph --what-if x=4`: the picture of a pass, with values and gradients before and after at its boxes."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import gradviz
import gradviz.engine as torch
from tests.invoked import invoked


def a_product() -> None:
    x = torch.tensor(3.0, requires_grad=True)
    w = torch.tensor(2.0, requires_grad=True)
    h = (x * w).detach()
    loss = x**2 * 5 + h * x
    loss.backward()


DETACHED = a_product.__code__.co_firstlineno + 3


def texts(folder: Path, program: Callable[[], object], *edits: str, values: str = "inputs") -> str:
    """The texts of the picture of a program's last pass, one line each; or the error."""
    trace, picture = folder / "run.gradviz", folder / "run.svg"
    with gradviz.record(trace, values=values, with_torch=False):
        program()
    options = [part for edit in edits for part in ("--what-if", edit)]
    result = invoked(["graph", str(trace), "-o", str(picture), *options])
    if result.exit_code:
        return result.stderr
    shown = html.unescape("\n".join(re.findall(r">([^<>]+)</text>", picture.read_text())))
    return "\n".join(line.strip() for line in shown.replace("\N{NO-BREAK SPACE}", "").splitlines())


@pytest.mark.slow
def test_values_and_gradients_stand_before_and_after(tmp_path: Path) -> None:
    shown = texts(tmp_path, a_product, "x=4")
    assert "scalar = 3 → 4" in shown
    assert ".grad = 36 → 48" in shown  # 10 x + h: 30 + 6, 40 + 8
    assert "scalar = 63 → 112" in shown  # 5 x² + h x
    assert "30 → 40" in shown.splitlines()  # along the edge to the leaf
    assert "scalar = 2" in shown.splitlines()
    assert "what if x=4: as it was → as it would be" in shown


@pytest.mark.slow
def test_a_gradient_that_was_none_is_there_without_a_detach(tmp_path: Path) -> None:
    shown = texts(tmp_path, a_product, f"detach@{DETACHED}")
    assert ".grad = None → 9" in shown  # x²
    assert ".grad = 36 → 42" in shown
    assert f"what if without detach@{DETACHED}: as it was → as it would be" in shown


@pytest.mark.slow
def test_what_stays_as_it_was_is_named(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        with torch.no_grad():
            target = x * 2
        ((x - target) ** 2).backward()

    assert "held as recorded: target, line" in texts(tmp_path, program, "x=4")


@pytest.mark.slow
def test_several_edits_are_made_together(tmp_path: Path) -> None:
    assert ".grad = 36 → 60" in texts(tmp_path, a_product, "x=4", "w=5")  # 10 x + 5 x


@pytest.mark.slow
def test_a_tensor_that_was_written_to_has_the_value_of_its_version(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        y = x * 2
        y.add_(1)
        y.backward()

    shown = texts(tmp_path, program, "x=4").splitlines()
    assert "scalar = 6 → 8" in shown
    assert "scalar = 7 → 9" in shown


@pytest.mark.slow
def test_a_value_that_was_not_kept_is_drawn_before_and_after(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(100, requires_grad=True)
        (x * 2).sum().backward()

    assert "[100] rms 2 → rms 6" in texts(tmp_path, program, "x=3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "told"),
    [("q=1", "no tensor is called q"), ("x=", "--set takes NAME=NUMBER"), ("relu@1", "has no relu on line 1")],
)
def test_an_edit_of_what_is_not_there_is_refused(tmp_path: Path, edit: str, told: str) -> None:
    assert told in texts(tmp_path, a_product, edit)


def test_a_trace_that_cannot_run_again_is_refused(tmp_path: Path) -> None:
    assert "record it with gradviz trace --values inputs" in texts(tmp_path, a_product, "x=4", values="none")


@pytest.mark.slow
def test_a_page_is_refused(tmp_path: Path) -> None:
    texts(tmp_path, a_product)
    result = invoked(["graph", str(tmp_path / "run.gradviz"), "-o", str(tmp_path / "run.html"), "--what-if", "x=4"])
    assert result.exit_code == 2
    assert "--what-if is for pictures" in result.stderr


@pytest.mark.slow
def test_a_pass_whose_hooks_do_not_run_again_is_refused(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.tensor(3.0, requires_grad=True)
        x.register_hook(lambda gradient: gradient * 2)
        (x**2).backward()

    assert "does not give what was recorded" in texts(tmp_path, program, "x=4")
