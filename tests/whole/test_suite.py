"""Which tests run by default, and what a test that is skipped says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.diagnose import RULES
from tests import conftest, rules

MANY_CASES = """\
import pytest

@pytest.mark.parametrize("case", range(21))
def test_many(case):
    pass

@pytest.mark.parametrize("case", [*range(8), pytest.param(8, marks=[pytest.mark.default, pytest.mark.slow])])
def test_marked(case):
    pass

@pytest.mark.slow
def test_slow():
    pass

def test_one():
    pass
"""


@pytest.fixture
def chosen(tmp_path: Path) -> Callable[..., list[str]]:
    """Gives the tests that pytest chooses among those of MANY_CASES, by their names."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  slow\n  default\n")
    (tmp_path / "conftest.py").write_text(Path(conftest.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "test_cases.py").write_text(MANY_CASES, encoding="utf-8")

    def chosen(*arguments: str) -> list[str]:
        command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-n", "0", "-p", "no:cacheprovider"]
        own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        own["PYTHONPATH"] = str(Path(conftest.__file__).parents[1])
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=own, capture_output=True, text=True, check=True, timeout=120
        )
        return [line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line]

    return chosen


@pytest.mark.slow
def test_of_a_test_with_many_cases_some_run_by_default_and_no_slow_ones(chosen: Callable[..., list[str]]) -> None:
    many = [f"test_many[{case}]" for case in (0, 20)]
    assert chosen() == [*many, "test_marked[8]", "test_one"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--everything"], ["test_cases.py"]])
def test_an_option_or_the_name_of_the_file_runs_all_cases(
    chosen: Callable[..., list[str]], arguments: list[str]
) -> None:
    assert len(chosen(*arguments)) == 21 + 9 + 1 + 1


@pytest.mark.slow
def test_a_test_that_is_named_runs(chosen: Callable[..., list[str]]) -> None:
    assert chosen("test_cases.py::test_slow") == ["test_slow"]


@pytest.mark.slow
def test_the_process_that_starts_the_workers_makes_their_folder_of_recordings() -> None:
    """It loads conftest.py and no test."""
    own = {name: value for name, value in os.environ.items() if name != "GRADVIZ_TESTS_KEPT"}
    code = "import os, tests.conftest; print('GRADVIZ_TESTS_KEPT' in os.environ)"
    root = Path(conftest.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=own, capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("could not import 'torch': No module named 'torch'", "pip install torch==2.13.0"),
        ("there is no `dot` on PATH", "apt-get install graphviz"),
        ("could not import 'duckdb': No module named 'duckdb'", 'pip install -e ".[test]"'),
    ],
)
def test_a_reason_to_skip_has_the_command_that_brings_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, reason: str, command: str
) -> None:
    bare = [(pattern, None, brings) for pattern, _, brings in conftest.NEEDED]
    monkeypatch.setattr(conftest, "NEEDED", bare)
    assert conftest.with_command(f"Skipped: {reason}") == f"Skipped: {reason}: {command}"


def test_a_reason_that_no_installation_removes_has_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [(pattern, "there", brings) for pattern, _, brings in conftest.NEEDED[:-1]]
    monkeypatch.setattr(conftest, "NEEDED", everything)
    reason = "Skipped: PyTorch was built without torch.distributed"
    assert conftest.with_command(reason) == reason


def test_every_rule_has_broken_and_sound_programs_in_the_zoo() -> None:
    assert [rule.id for rule in RULES if len(rules.programs_of(rule.id)) < 4] == []
