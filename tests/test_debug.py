"""`gradviz debug`: the stepper on a running script."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gradviz.tracefile import open_trace

Run = Callable[..., subprocess.CompletedProcess[str]]

LESSON = """\
import torch
x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
print("begun")
y = x**3
z = torch.log(y).sum()
z.backward()
print("done", x.grad)
"""
TWICE = """\
import torch
x = torch.tensor(2.0, requires_grad=True)
y = x**2
y.backward()
print("once")
try:
    y.backward()
finally:
    print("finally")
"""
SHAPES = """\
import sys
import torch
w = torch.ones(3, 2, requires_grad=True)
def layer(x):
    return x @ w
print("begun")
layer(torch.ones(4, 5))
"""


@pytest.fixture
def debug(gradviz: Run, tmp_path: Path) -> Run:
    """Debugs a script with commands."""

    def run(
        script: str, commands: str, *options: str, **settings: object
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "lesson.py").write_text(script)
        return gradviz(
            "debug", "--engine", "numpy", *options, "--commands", commands, "lesson.py", **settings
        )

    return run


def python(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The script under `gradviz trace`, which leaves its output and its status as they are."""
    (folder / "lesson.py").write_text(script)
    command = [
        sys.executable,
        "-m",
        "gradviz",
        "trace",
        "--engine",
        "numpy",
        "-o",
        "plain.gradviz",
        "lesson.py",
    ]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def stops(text: str) -> list[str]:
    """The sentences of the stops that a run of commands printed."""
    lines = text.splitlines()
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith("event ")]


def test_it_starts_at_the_first_event_and_ends_with_the_commands(debug: Run, tmp_path: Path) -> None:
    done = debug(LESSON, "")
    assert stops(done.stderr) == ["tensor made x, a leaf that requires grad"]
    assert "event 1 of 1" in done.stderr
    assert (done.stdout, done.returncode) == ("", 0)
    with open_trace(tmp_path / "lesson.gradviz") as trace:
        assert trace.count == 1


def test_a_step_lets_the_script_go_on_by_one_event(debug: Run) -> None:
    done = debug(LESSON, "next; back; next; next 2", "--no-nan")
    assert stops(done.stderr)[:2] == [
        "x**3 made y (PowBackward0)",
        "tensor made x, a leaf that requires grad",
    ]
    assert "event 4 of 4" in done.stderr
    assert done.stdout == "begun\n"


def test_it_stops_at_a_breakpoint_with_the_script_paused(debug: Run) -> None:
    done = debug(LESSON, "back; quit", "--break", "log", "--no-nan")
    assert "breakpoint 1: log\nevent 3 of 3" in done.stderr
    assert stops(done.stderr)[-1] == "x**3 made y (PowBackward0)"
    assert (done.stdout, done.returncode) == ("begun\n", 0)


@pytest.mark.parametrize(
    ("what", "event"),
    [
        ("y", 2),
        ("lesson.py:5", 3),
        ("backward", 6),
        ('kind == "received" and grad_fn == "LogBackward0"', 9),
    ],
)
def test_what_a_breakpoint_may_be(debug: Run, what: str, event: int) -> None:
    done = debug(LESSON, "quit", "--no-nan", "--break", what)
    assert f"breakpoint 1: {what}\nevent {event} of " in done.stderr


LOOP = """\
import torch
w = torch.tensor(2.0, requires_grad=True)
for i in range(3):
    loss = w * w
    loss.backward()
print("done")
"""


@pytest.mark.parametrize(
    ("commands", "event"),
    [
        ("next; again", 10),
        ("next; again; again; again-back", 10),
        ("next-backward", 4),
        ("next-backward; out", 9),
        ("next-backward; next-forward", 10),
        ("until w.grad > 1", None),
        ("until grad.max > 5", 16),
        ("goto 12", 12),
        ("/ MulBackward", 2),
        ("next; watch w.grad; continue; continue", 16),
        ("break backward; continue; delete 1; until pass == 2", 12),
    ],
)
def test_verbs_that_lead_beyond_the_last_event_let_the_script_go_on(
    debug: Run, commands: str, event: int | None
) -> None:
    done = debug(LOOP, commands)
    if event is None:
        assert done.returncode == 2
        assert "there is no field w.grad" in done.stderr
    else:
        assert re.findall(r"^event (\d+) of", done.stderr, re.MULTILINE)[-1] == str(event)
        assert done.returncode == 0
        assert "done" not in done.stdout


def test_it_stops_at_the_first_infinity_and_the_first_nan(debug: Run) -> None:
    done = debug(LESSON, "why; continue; why; continue", "--run")
    assert "the first infinity\nevent 3 of 3 · forward\ntorch.log(y) ran" in done.stderr
    assert "an infinity in torch.log(y) was born here" in done.stderr
    assert "the first NaN\nevent 12 of 12 · backward pass 1" in done.stderr
    assert done.stdout == "begun\ndone tensor([3.0000,    nan, 0.7500])\n"


def test_it_stops_at_an_error_in_backward_before_the_script_deals_with_it(debug: Run, tmp_path: Path) -> None:
    done, plain = debug(TWICE, "why; back; continue", "--run"), python(TWICE, tmp_path)
    assert stops(done.stderr)[0].startswith("RuntimeError at PowBackward0: Trying to backward through")
    assert "  ▶7      y.backward()" in done.stderr
    assert "give that one retain_graph=True" in done.stderr
    assert "PowBackward0 receives 1" in done.stderr
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode) == ("once\nfinally\n", 1)
    traceback = plain.stderr[: plain.stderr.index("gradviz: recorded")]
    assert traceback.startswith("Traceback")
    assert traceback in done.stderr


def test_it_stops_where_an_error_that_ends_the_script_was_raised(debug: Run, tmp_path: Path) -> None:
    done, plain = debug(SHAPES, "info; continue", "--run"), python(SHAPES, tmp_path)
    assert "this error ends the script" in done.stderr
    assert "  ▶5      return x @ w" in done.stderr
    assert "at lesson.py:7 in <module>" in done.stderr
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode) == ("begun\n", 1)
    assert plain.stderr[: plain.stderr.index("gradviz: recorded")] in done.stderr


def test_what_the_script_prints_and_its_status_stay_its_own(debug: Run, tmp_path: Path) -> None:
    script = LESSON + "import sys\nprint('to stderr', file=sys.stderr)\nsys.exit(7)\n"
    done = debug(script, "continue", "--no-nan")
    assert (done.stdout, done.returncode) == (python(script, tmp_path).stdout, 7)
    assert "> continue\nto stderr\ngradviz: " in done.stderr


def test_quitting_ends_the_script_and_keeps_the_trace(debug: Run, gradviz: Run, tmp_path: Path) -> None:
    script = LESSON.replace("y = x**3", "try:\n    y = x**3\nfinally:\n    print('tidied up')")
    done = debug(script, "next; quit")
    assert (done.stdout, done.returncode) == ("begun\ntidied up\n", 0)
    assert (
        gradviz("step", "lesson.gradviz", "--commands", "last").stdout.splitlines()[1]
        == "event 2 of 2 · forward"
    )


def test_a_script_that_catches_everything_is_ended_at_its_next_pass(debug: Run) -> None:
    script = """\
import torch
x = torch.ones(1, requires_grad=True)
for _ in range(3):
    try:
        (x * x).backward()
        print("ran")
    except:
        print("caught")
"""
    done = debug(script, "next; quit")
    assert done.stdout == "caught\ncaught\ncaught\n"


def test_commands_that_are_left_look_at_the_end(debug: Run) -> None:
    done = debug(LESSON, "continue; first; last", "--no-nan")
    assert "the script has ended (exit status 0): this is the last event\nevent 15 of 15" in done.stderr
    assert done.stdout.endswith("nan, 0.7500])\n")


def test_a_script_reads_its_own_standard_input(debug: Run) -> None:
    script = """\
import sys
import torch
x = torch.tensor(float(input()), requires_grad=True)
print(x * 2, sys.stdin.read())
"""
    done = debug(script, "next; continue", input="21\nrest\n", stdin=None)
    assert done.stdout == "tensor(42., grad_fn=<MulBackward0>) rest\n\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--break", "foo == 1", "lesson.py"], "there is no field foo"),
        (["--commands", "nxt", "lesson.py"], "did you mean 'next'?"),
        (["--commands", "c", "nothing.py"], "no such script: nothing.py"),
        (["lesson.py"], "debug needs a terminal"),
        ([], "give a SCRIPT to run"),
        (["--break", "w.grad", "lesson.py"], "watch w.grad"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    gradviz: Run, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "lesson.py").write_text(LESSON)
    done = gradviz("debug", *options, start_new_session=True)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_command_that_cannot_be_obeyed_ends_the_script(debug: Run) -> None:
    done = debug(LESSON, "goto nowhere; continue")
    assert done.returncode == 2
    assert done.stderr.endswith("gradviz: not a number: nowhere\n")
    assert done.stdout == ""


def test_the_page_shows_what_its_command_prints(gradviz: Run, tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs/debug.md").read_text()
    command, printed = re.findall(r"```console\n\$ gradviz (.*)\n```\n\n```text\n(.*?)```", page, re.DOTALL)[
        0
    ]
    (tmp_path / "examples").symlink_to(Path(__file__).parent.parent / "examples")
    assert gradviz(*shlex.split(command)).stderr.startswith(printed)
