"""Paths of Windows: with drives and backslashes, in what a user types and in traces that were recorded there."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner

import gradviz
from gradviz.cli.check import is_trace
from gradviz.cli.main import main
from gradviz.diagnose.text import as_sarif
from gradviz.step.breakpoints import breakpoint_of
from gradviz.system import paths
from tests.system.elsewhere import LESSON, run_in


def test_a_breakpoint_names_a_file_with_its_drive() -> None:
    for text in (r"C:\x\train.py:12", "line C:/my files/train.py:12", r"sub\train.py:12", "sub/train.py:12"):
        stop = breakpoint_of(text)
        assert stop.at_line
        assert stop.predicate is not None
        assert stop.predicate.text == 'line == 12 and file == "train.py"'


@pytest.mark.parametrize(
    ("path", "name", "uri"),
    [
        (r"C:\my files\train.py", "train.py", "file:///C:/my%20files/train.py"),
        ("C:/x/train.py", "train.py", "file:///C:/x/train.py"),
        (r"sub\train.py", "train.py", "sub/train.py"),
        ("/home/x/train.py", "train.py", "/home/x/train.py"),
        ("sub/train.py", "train.py", "sub/train.py"),
        ("train.py", "train.py", "train.py"),
        ("<stdin>", "<stdin>", "<stdin>"),
    ],
)
def test_paths_of_both_kinds_have_a_name_and_a_reference(path: str, name: str, uri: str) -> None:
    assert (paths.file_name(path), paths.uri(path)) == (name, uri)


@pytest.fixture
def from_windows(tmp_path: Path) -> Path:
    """A trace whose script is `C:\\work\\lesson.py`."""
    (tmp_path / "lesson.py").write_text(LESSON, encoding="utf-8")
    run_in(tmp_path, {}, "trace", "lesson.py")
    connection = sqlite3.connect(tmp_path / "lesson.gradviz")
    for table in ("sites", "sources"):
        connection.execute(f"UPDATE {table} SET file = 'C:\\work\\lesson.py' WHERE file LIKE '%lesson.py'")
    connection.commit()
    connection.close()
    return tmp_path / "lesson.gradviz"


@pytest.mark.slow
def test_a_trace_from_windows_is_read_here(from_windows: Path) -> None:
    told = CliRunner().invoke(main, ["step", str(from_windows), "--commands", r"break C:\work\lesson.py:6; continue"])
    assert "lesson.py:6" in told.output
    with gradviz.open(from_windows) as trace:
        report = gradviz.check(trace)
    log = as_sarif(report)
    uris = re.findall(r"'uri': '([^']*)'", str(log["runs"][0]["results"]))
    assert set(uris) == {"file:///C:/work/lesson.py"}


def test_an_ending_in_capitals_is_that_of_a_trace(tmp_path: Path) -> None:
    assert is_trace(tmp_path / "Train.GRADVIZ")
