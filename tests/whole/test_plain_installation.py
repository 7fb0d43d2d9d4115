"""What the plain installation does without the packages that only some need: SciPy, and fpdf2 for PDF."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from gradviz.engine.basics import scipy_later
from gradviz.engine.basics.scipy_later import STAND_INS, Function

NUMBERS = st.floats(width=32, allow_nan=True, allow_infinity=True)
OF_TWO = ("xlogy", "xlog1py")
Run = Callable[..., subprocess.CompletedProcess[str]]

WITHOUT = "import sys; sys.modules.update(dict.fromkeys({names}))\n"


@pytest.fixture
def no_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(scipy_later, "import_module", missing)


@pytest.mark.parametrize("name", sorted(set(STAND_INS) - {*OF_TWO}))
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=5))
def test_a_stand_in_gives_what_scipy_gives(name: str, numbers: list[float]) -> None:
    x = np.array(numbers, np.float32)
    function = Function("no.such.module", name)
    expected = getattr(scipy.special, name)(x)
    assert function(x).dtype == expected.dtype
    np.testing.assert_allclose(function(x), expected, rtol=1e-5, atol=1e-37)


@pytest.mark.parametrize("name", OF_TWO)
@given(x=NUMBERS, y=NUMBERS)
def test_a_stand_in_of_two_gives_what_scipy_gives(name: str, x: float, y: float) -> None:
    given_x, given_y = np.float32([x]), np.float32([y])
    expected = getattr(scipy.special, name)(given_x, given_y)
    np.testing.assert_allclose(Function("no.such.module", name)(given_x, given_y), expected, rtol=1e-5)


@pytest.mark.slow
def test_a_derivative_made_of_a_stand_in_can_be_differentiated_again() -> None:
    program = WITHOUT.format(names=["scipy"]) + (
        "import gradviz.engine as torch\n"
        "x = torch.tensor([0.5, -1.0], dtype=torch.float64, requires_grad=True)\n"
        "print(torch.autograd.gradgradcheck(torch.nn.functional.gelu, x))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


def test_what_needs_scipy_says_so_in_one_line(no_scipy: None) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        Function("scipy.special", "i0")(np.ones(1))
    assert str(caught.value) == "gradviz's engine needs SciPy for this (scipy.special.i0): pip install scipy"


@pytest.mark.slow
def test_a_singular_matrix_is_an_error_of_linear_algebra_without_scipy() -> None:
    program = WITHOUT.format(names=["scipy"]) + (
        "import gradviz.engine as torch\n"
        "try: torch.linalg.inv(torch.zeros(2, 2))\n"
        "except torch.linalg.LinAlgError as error: print(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout == "linalg.inv: Singular matrix\n"


@pytest.fixture
def without_fpdf(tmp_path: Path) -> dict[str, str]:
    """The environment of a process that has no fpdf2."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT.format(names=["fpdf"]))
    return {"PYTHONPATH": str(tmp_path / "site")}


@pytest.mark.slow
def test_a_pdf_without_fpdf2_is_one_line_that_says_what_to_install(
    gradviz: Run, without_fpdf: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text("import gradviz.engine as torch\ntorch.ones(1, requires_grad=True).backward()\n")
    assert gradviz("trace", "job.py").returncode == 0
    done = gradviz("graph", "job.gradviz", "-o", "job.pdf", env=without_fpdf)
    expected = "gradviz: a .pdf needs fpdf2: pip install fpdf2, or save it as .svg or .png\n"
    assert (done.returncode, done.stderr) == (2, expected)


@pytest.mark.slow
def test_a_script_is_not_run_for_a_picture_that_cannot_be_made(
    gradviz: Run, without_fpdf: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "job.py").write_text("print('it ran')\n")
    done = gradviz("trace", "--graph", "job.pdf", "job.py", env=without_fpdf)
    assert (done.returncode, done.stdout) == (2, "")
    assert "needs fpdf2" in done.stderr
