"""An earlier trace is replaced only by one that holds something."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import gradviz
import gradviz.engine
from gradviz.tracefile import open_trace

Run = Callable[..., subprocess.CompletedProcess[str]]
Info = Callable[..., dict]

DIFFERENTIATES = """
import gradviz.engine as torch
x = torch.tensor(2.0, requires_grad=True)
(x * x).backward()
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def info(gradviz_here: Run) -> Info:
    """What `gradviz info` says of the newest trace."""
    return lambda: json.loads(gradviz_here("info", "--json").stdout)


NEVER_STARTED = {"a syntax error": "x = (\n", "a misspelt module": "import torhc\n", "no tensor": "print('ran')\n"}


@pytest.mark.parametrize("text", NEVER_STARTED.values(), ids=NEVER_STARTED)
def test_a_program_that_records_nothing_leaves_the_earlier_trace_and_picture(
    text: str, gradviz_here: Run, tmp_path: Path
) -> None:
    path = script(tmp_path, DIFFERENTIATES)
    gradviz_here("trace", "--graph", "run.svg", path)
    files = [tmp_path / "script.gradviz", tmp_path / "run.svg"]
    before = [file.read_bytes() for file in files]
    script(tmp_path, text)
    for command in (("trace", "--graph", "run.svg"), ("check",)):
        done = gradviz_here(*command, path)
        ours = [line for line in done.stderr.splitlines() if line.startswith("gradviz:")]
        assert len(ours) == 1
        assert ours[0].startswith("gradviz: nothing was recorded: script.gradviz is still the recording of 20")
        assert done.stdout == ("ran\n" if "ran" in text else "")
    assert [file.read_bytes() for file in files] == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.svg", "script.gradviz", "script.py"]


def test_a_check_that_records_nothing_checks_no_rule(gradviz_here: Run, tmp_path: Path) -> None:
    path = script(tmp_path, DIFFERENTIATES)
    gradviz_here("trace", path)
    script(tmp_path, "import torhc\n")
    done = gradviz_here("check", "--format", "json", path)
    report = json.loads(done.stdout)
    assert (done.returncode, report["findings"], report["checked"]) == (1, [], [])
    assert {entry["reason"] for entry in report["not_checked"]} == {"nothing was recorded"}


def test_an_earlier_trace_that_holds_nothing_is_replaced(gradviz_here: Run, info: Info, tmp_path: Path) -> None:
    gradviz_here("trace", script(tmp_path, "import torhc\n"))
    gradviz_here("trace", script(tmp_path, "import json\njson.loads('{')"))
    assert info()["error"]["type"] == "JSONDecodeError"


@pytest.mark.slow
def test_a_run_that_is_killed_before_its_first_tensor_leaves_the_earlier_trace(
    gradviz: Run, gradviz_here: Run, info: Info, tmp_path: Path
) -> None:
    path = script(tmp_path, DIFFERENTIATES)
    gradviz_here("trace", path)
    before = (tmp_path / "script.gradviz").read_bytes()
    script(tmp_path, "import os, time\ntime.sleep(0.3)\nos._exit(9)\n" + DIFFERENTIATES)
    assert gradviz("trace", path).returncode == 9
    assert (tmp_path / "script.gradviz").read_bytes() == before
    script(tmp_path, DIFFERENTIATES + "(x * x).backward()")
    gradviz_here("trace", path)  # which finds what the killed run has left
    assert info()["passes"] == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["script.gradviz", "script.py"]


def test_the_earlier_trace_is_there_until_the_first_tensor_is_recorded(gradviz_here: Run, tmp_path: Path) -> None:
    differentiates = script(tmp_path, DIFFERENTIATES)
    gradviz_here("trace", differentiates)
    watching = """
    import time
    from gradviz.tracefile import open_trace
    def passes():
        with open_trace("script.gradviz") as trace:
            print(len(trace.passes), trace.is_being_recorded)
            return len(trace.passes)
    passes()
    import gradviz.engine as torch
    x = torch.tensor(3.0, requires_grad=True)
    for _ in range(3):
        (x * x).backward()
    while passes() != 3:
        time.sleep(0.01)
    """
    lines = gradviz_here("trace", script(tmp_path, watching)).stdout.splitlines()
    assert (lines[0], lines[-1]) == ("1 False", "3 True")


def test_a_recording_with_nothing_in_it_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.gradviz"
    x = gradviz.engine.tensor(2.0, requires_grad=True)
    with gradviz.record(path):
        (x * x).backward()
    before = path.read_bytes()
    with gradviz.record(path):
        pass
    assert capsys.readouterr().err.startswith(f"gradviz: nothing was recorded: {path} is still the recording of 20")
    assert path.read_bytes() == before


def test_two_runs_never_record_into_one_file_beside_an_earlier_trace(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    x = gradviz.engine.tensor(2.0, requires_grad=True)
    for _ in range(2):
        with gradviz.record(path):  # it is beside the earlier trace, from the second time on
            with pytest.raises(OSError, match="is being recorded by another run"), gradviz.record(path):
                pass
            (x * x).backward()
        with open_trace(path) as trace:
            assert len(trace.passes) == 1


def test_a_copy_without_private_things_replaces_an_earlier_copy(gradviz_here: Run, tmp_path: Path) -> None:
    gradviz_here("trace", script(tmp_path, DIFFERENTIATES))
    for _ in range(2):
        assert gradviz_here("redact", "script.gradviz", "-o", "copy.gradviz").returncode == 0
    assert {file.name for file in tmp_path.iterdir()} == {"copy.gradviz", "script.gradviz", "script.py"}
