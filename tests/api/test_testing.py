"""The pytest plugin: a test fails if the gradients that it computes have findings."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.warm import python

ROOT = Path(__file__).parents[2]
TESTS = """\
import pytest
import {library} as torch


def trained(clears):
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.01)
    for step in range(3):
        if clears:
            optimizer.zero_grad()
        loss = (w ** 2).sum()
        loss.backward()
        optimizer.step()
    return w


def test_sound(gradviz_check):
    trained(True)


def test_stale(gradviz_check):
    trained(False)


def test_stale_on_purpose(gradviz_check):
    gradviz_check.ignore("stale-gradient")
    trained(False)


def test_stale_and_not_asked():
    trained(False)


def test_without_gradients(gradviz_check):
    assert sum([1, 2]) == 3


@pytest.mark.xfail(strict=True)
def test_known(gradviz_check):
    trained(False)


def test_that_fails_itself(gradviz_check):
    y = torch.tensor([1.0], requires_grad=True).exp()
    z = y * y
    y.add_(1)
    z.sum().backward()
"""


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., str]:
    def run(library: str, *options: str) -> str:
        (tmp_path / "test_it.py").write_text(TESTS.format(library=library))
        env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NO_COLOR": "1", "COLUMNS": "150"}
        env.pop("PYTEST_ADDOPTS", None)  # those of the run around it
        command = [python(), "-m", "pytest", "-p", "gradviz.testing", "-rA", *options]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120).stdout

    return run


LIBRARIES = ["gradviz.engine", pytest.param("torch", marks=[pytest.mark.torch, pytest.mark.slow])]


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_tests_that_ask_for_it_are_checked(ran: Callable[..., str], tmp_path: Path, library: str) -> None:
    if library == "torch":
        pytest.importorskip("torch")
    told = ran(library)
    for name in ("sound", "stale_on_purpose", "stale_and_not_asked", "without_gradients"):
        assert f"PASSED test_it.py::test_{name}" in told
    assert "FAILED test_it.py::test_stale - " in told
    assert "XFAIL test_it.py::test_known" in told
    assert "1. error stale-gradient  test_it.py:12" in told
    assert "▶12          loss.backward()" in told
    assert "FAILED test_it.py::test_that_fails_itself - RuntimeError: one of the variables" in told
    assert "1. error inplace-modified  test_it.py:46" in told
    kept = sorted(file.name for file in (tmp_path / ".pytest_cache").rglob("*.gradviz"))
    assert [name.removeprefix("test_it.py_") for name in kept] == [
        "test_known.gradviz", "test_stale.gradviz", "test_that_fails_itself.gradviz",
    ]  # fmt: skip


@pytest.mark.slow
def test_with_the_option_all_tests_are_checked(ran: Callable[..., str]) -> None:
    told = ran("gradviz.engine", "--gradviz")
    assert "FAILED test_it.py::test_stale_and_not_asked" in told
    assert "PASSED test_it.py::test_sound" in told


@pytest.mark.slow
def test_settings_and_options_say_what_fails_a_test(ran: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.gradviz]\nignore = ["stale-gradient"]\n')
    assert "PASSED test_it.py::test_stale\n" in ran("gradviz.engine", "--gradviz-fail-on", "error")


def test_pytest_finds_the_plugin_where_gradviz_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"gradviz": "gradviz.testing"}


@pytest.mark.slow
def test_the_plugin_is_light() -> None:
    code = "import gradviz.testing, sys; print([m for m in sys.modules if m in ('numpy', 'rich', 'gradviz.engine')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
