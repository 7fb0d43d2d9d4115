"""A trace that was recorded without the texts of the source: every view shows it, with its places."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import gradviz
import gradviz.engine as torch

SECRET = "quetzalcoatl"
PROGRAM = f"""
import gradviz.engine as torch  # {SECRET}
w = torch.tensor([0.0, 4.0], requires_grad=True)
def half(x):
    return torch.where(x > 1, x, 0.0)
y = half(w.sqrt())
y.sum().backward()
"""
Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, gradviz_here: Run) -> Run:
    """Runs a command of gradviz's where there is a trace without source, `lesson.gradviz`."""
    (tmp_path / "lesson.py").write_text(PROGRAM)
    assert gradviz_here("trace", "--no-source", "lesson.py").returncode == 0
    return gradviz_here


def test_the_file_holds_no_text_of_the_source(run: Run, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "lesson.gradviz")) as connection:
        assert connection.execute("SELECT count(*) FROM sources").fetchone() == (0,)
    assert SECRET.encode() not in (tmp_path / "lesson.gradviz").read_bytes()


def test_a_recorded_block_leaves_out_its_source(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "block.gradviz", source=False):
        torch.tensor(5.0, requires_grad=True).log().backward()
    with gradviz.open(tmp_path / "block.gradviz") as trace:
        assert (trace.source_files, trace.meta["no_source"]) == (0, "1")


@pytest.mark.parametrize("command", ["check", "debug"])
def test_the_other_commands_that_run_a_script_leave_it_out(command: str, tmp_path: Path, gradviz_here: Run) -> None:
    (tmp_path / "lesson.py").write_text(PROGRAM)
    more = ["--run", "--no-nan", "--commands", "quit"] if command == "debug" else []
    gradviz_here(command, "--no-source", "-o", "run.gradviz", *more, "lesson.py")
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert trace.source_files == 0


def test_info_says_that_the_source_was_left_out(run: Run) -> None:
    assert "holds       no source, elements of" in run("info", "lesson.gradviz").stdout


def test_info_says_what_a_trace_with_source_holds(tmp_path: Path, gradviz_here: Run) -> None:
    (tmp_path / "lesson.py").write_text(f"{PROGRAM}y.sum().backward()\n")
    gradviz_here("trace", "lesson.py")
    shown = gradviz_here("info", "lesson.gradviz").stdout
    assert "holds       source of 1 file, elements of" in shown
    assert "tensors, 1 message" in shown


def test_a_step_has_the_place_where_it_happened(run: Run) -> None:
    shown = run("step", "lesson.gradviz", "--at", "4", "--commands", "next; where").stdout
    assert "lesson.py:5 in half" in shown
    assert "the source was not kept" in shown


def test_the_stepper_goes_to_a_line(run: Run) -> None:
    shown = run("step", "lesson.gradviz", "--commands", "break lesson.py:6; continue").stdout
    assert "lesson.py:6" in shown


def test_the_stepper_takes_every_event(run: Run, tmp_path: Path) -> None:
    with gradviz.open(tmp_path / "lesson.gradviz") as trace:
        count = trace.count
    done = run("step", "lesson.gradviz", "--commands", "; ".join(["why; info; next"] * count))
    assert done.returncode == 0


def test_check_names_the_line(run: Run) -> None:
    done = run("check", "lesson.gradviz")
    assert "masked-nan  lesson.py:6" in done.stdout
    assert "not kept" not in done.stdout
    assert "it was not recorded (--no-source)" in " ".join(done.stdout.split())


def test_check_names_the_line_for_programs(run: Run) -> None:
    found = json.loads(run("check", "lesson.gradviz", "--format", "json").stdout)["findings"]
    assert [(finding["file"], finding["line"]) for finding in found] == [("lesson.py", 6)]


def test_why_names_the_lines(run: Run) -> None:
    assert "line 6" in run("why", "lesson.gradviz", "w").stdout


def test_diff_compares_it_with_a_trace_that_has_source(run: Run) -> None:
    run("trace", "-o", "other.gradviz", "lesson.py")
    assert "the runs are the same" in run("diff", "lesson.gradviz", "other.gradviz").stdout


@pytest.mark.parametrize("ending", ["svg", "json", "html", "dot", "mmd"])
def test_pictures_are_drawn(ending: str, run: Run, tmp_path: Path) -> None:
    assert run("graph", "lesson.gradviz", "-o", f"net.{ending}").returncode == 0
    assert SECRET not in (tmp_path / f"net.{ending}").read_text()


def test_a_node_of_a_picture_has_its_place(run: Run, tmp_path: Path) -> None:
    run("graph", "lesson.gradviz", "-o", "net.json")
    nodes = json.loads((tmp_path / "net.json").read_text())["nodes"]
    assert ("lesson.py", 5) in {(node["file"], node["line"]) for node in nodes}


@pytest.mark.slow
def test_a_report_has_no_empty_block_of_source(run: Run, tmp_path: Path) -> None:
    run("report", "lesson.gradviz", "-o", "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "lesson.py:6" in page
    assert "<pre></pre>" not in page
    assert SECRET not in page


def test_the_line_of_the_error_is_told(tmp_path: Path, gradviz_here: Run) -> None:
    (tmp_path / "lesson.py").write_text(f"{PROGRAM}y.sum().backward()\n")
    gradviz_here("trace", "--no-source", "lesson.py")
    shown = gradviz_here("check", "lesson.gradviz").stdout
    assert "backward-twice  lesson.py:8" in shown
