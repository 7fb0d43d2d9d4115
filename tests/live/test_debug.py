"""`gradviz debug`: the stepper on a running script."""

from __future__ import annotations

import re
import shlex
import subprocess
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
def debug(gradviz_here: Run, tmp_path: Path) -> Run:
    """Debugs a script with commands, in this process."""
    return debugging(gradviz_here, tmp_path)


@pytest.fixture
def debug_alone(gradviz: Run, tmp_path: Path) -> Run:
    """Debugs a script with commands, in a process of its own."""
    return debugging(gradviz, tmp_path)


def debugging(gradviz: Run, folder: Path) -> Run:
    def run(script: str, commands: str, *options: str, **settings: object) -> subprocess.CompletedProcess[str]:
        (folder / "lesson.py").write_text(script)
        options = ("--engine", "numpy", *options)
        return gradviz("debug", *options, "--commands", commands, "lesson.py", **settings)

    return run


@pytest.fixture
def plainly(gradviz_here: Run, tmp_path: Path) -> Run:
    """Runs a script under `gradviz trace`, which leaves its output and its status as they are."""

    def run(script: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "lesson.py").write_text(script)
        return gradviz_here("trace", "--engine", "numpy", "-o", "plain.gradviz", "lesson.py")

    return run


def stops(text: str) -> list[str]:
    """The sentences of the stops that a run of commands printed."""
    lines = text.splitlines()
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith("event ")]


def test_it_starts_at_the_first_event_and_ends_with_the_commands(debug: Run, tmp_path: Path) -> None:
    done = debug(LESSON, "")
    assert stops(done.stderr) == ["torch.tensor([1.0, 0.0, 4.0], …) made x, a leaf that requires grad"]
    assert "event 1 of 1 ·" in done.stderr
    assert (done.stdout, done.returncode) == ("", 0)
    with open_trace(tmp_path / "lesson.debug.gradviz") as trace:
        assert trace.count == 1


def test_a_step_lets_the_script_go_on_by_one_event(debug: Run) -> None:
    done = debug(LESSON, "next; back; next; next 2", "--no-nan")
    assert stops(done.stderr)[:2] == [
        "x**3 made y (PowBackward0)",
        "torch.tensor([1.0, 0.0, 4.0], …) made x, a leaf that requires grad",
    ]
    assert "> next 2\nevent 4 of 5 ·" in done.stderr
    assert done.stdout == "begun\n"


def test_it_stops_at_a_breakpoint_with_the_script_paused(debug: Run) -> None:
    done = debug(LESSON, "back; quit", "--break", "log", "--no-nan")
    assert "breakpoint 1: log\nevent 4 of 5 ·" in done.stderr
    assert stops(done.stderr)[-1] == "PowBackward0 is now the grad_fn of y, and leads to AccumulateGrad of x"
    assert (done.stdout, done.returncode) == ("begun\n", 0)


@pytest.mark.parametrize(
    ("what", "event"),
    [("y", 2), ("lesson.py:5", 4), ("backward", 9), ('kind == "received" and grad_fn == "LogBackward0"', 12)],
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
        ("next; again", 11),
        ("next; again; again; again-back", 11),
        ("next-backward", 5),
        ("next-backward; out", 10),
        ("next-backward; next-forward", 11),
        ("until w.grad > 1", None),
        ("until grad.max > 5", 18),
        ("goto 12", 12),
        ("/ MulBackward", 3),
        ("next; watch w.grad; continue; continue", 18),
        ("break backward; continue; delete 1; until pass == 2", 14),
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
    assert "the first infinity\nevent 4 of 5 · forward\ntorch.log(y) ran" in done.stderr
    assert "an infinity in torch.log(y) first appears here" in done.stderr
    assert "the first NaN\nevent 15 of 15 · backward pass 1" in done.stderr
    assert done.stdout == "begun\ndone tensor([3.0000,    nan, 0.7500])\n"


def test_it_stops_at_the_first_nan_of_a_node_that_receives_the_first_infinity(debug: Run) -> None:
    script = """
import gradviz.engine as torch
x = torch.zeros(2, requires_grad=True)
h = x * 0
y = h * 3e38 + h * 3e38
y.sum().backward()
"""
    done = debug(script, "continue; continue", "--run")
    assert re.search(r"the first infinity\n.*\nMulBackward0 receives \[inf, inf\]", done.stderr)
    assert re.search(r"the first NaN\n.*\nMulBackward0 gives \[nan, nan\] to x", done.stderr)


MASKED = """\
import torch
def attention(scores):
    {mask}
    return torch.softmax(scores, -1)
scores = torch.zeros(2, 2, requires_grad=True)
attention(scores * 1).sum().backward()
print("masked")
torch.log(scores * 0)
"""
MASKS = [
    'scores = scores.masked_fill(torch.tensor([[False, True], [False, False]]), float("-inf"))',
    'scores.masked_fill_(torch.tensor([[False, True], [False, False]]), float("-inf"))',
    'scores = scores + torch.triu(torch.full((2, 2), float("-inf")), 1)',
    'scores[0, 1] = float("-inf")',
]


@pytest.mark.parametrize("mask", MASKS)
def test_an_infinity_that_the_program_wrote_down_does_not_stop_it(debug: Run, mask: str) -> None:
    done = debug(MASKED.format(mask=mask), "continue", "--break", "nan")
    assert done.stdout == "masked\n"
    assert re.findall(r"the first \w+\n.*\n(.*)", done.stderr) == ["torch.log(scores * 0) ran (LogBackward0)"]


def test_an_infinity_counts_in_a_tensor_whose_mask_was_written_over(debug: Run) -> None:
    script = """\
import torch
x = torch.full((2,), float("-inf"))
x.fill_(0.0)
y = torch.log(x)
"""
    done = debug(script, "continue", "--run")
    assert "the first infinity\n" in done.stderr
    assert "torch.log(x) made y" in done.stderr


@pytest.mark.slow
def test_it_stops_at_an_error_in_backward_before_the_script_deals_with_it(debug_alone: Run, plainly: Run) -> None:
    done, plain = debug_alone(TWICE, "why; back; continue", "--run"), plainly(TWICE)
    assert stops(done.stderr)[0].startswith("RuntimeError at PowBackward0: Trying to backward through")
    assert "  ▶7      y.backward()" in done.stderr
    assert "give that pass retain_graph=True" in done.stderr
    assert "PowBackward0 receives 1" in done.stderr
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode) == ("once\nfinally\n", 1)
    traceback = plain.stderr[: plain.stderr.index("gradviz: recorded")]
    assert traceback.startswith("Traceback")
    assert traceback in done.stderr


@pytest.mark.slow
def test_it_stops_where_an_error_that_ends_the_script_was_raised(debug_alone: Run, plainly: Run) -> None:
    done, plain = debug_alone(SHAPES, "info; continue", "--run"), plainly(SHAPES)
    assert "this error ends the script" in done.stderr
    assert "  ▶5      return x @ w" in done.stderr
    assert "at lesson.py:7 in <module>" in done.stderr
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode) == ("begun\n", 1)
    assert plain.stderr[: plain.stderr.index("gradviz: recorded")] in done.stderr


@pytest.mark.slow
def test_what_the_script_prints_and_its_status_stay_its_own(debug_alone: Run, plainly: Run) -> None:
    script = LESSON + "import sys\nprint('to stderr', file=sys.stderr)\nsys.exit(7)\n"
    done = debug_alone(script, "continue", "--no-nan")
    assert (done.stdout, done.returncode) == (plainly(script).stdout, 7)
    assert "> continue\nto stderr\ngradviz: " in done.stderr


@pytest.mark.slow
def test_a_script_sees_no_frame_of_the_debugger(debug_alone: Run) -> None:
    script = """\
import traceback
from pathlib import Path
import torch
def rooms(frames):
    return [Path(frame.filename).parent.name for frame in frames]
x = torch.ones(2, requires_grad=True)
try:
    x * x
except SystemExit as error:
    print(rooms(traceback.extract_tb(error.__traceback__)))
"""
    done = debug_alone(script, "next; p rooms(traceback.extract_stack()); quit")
    assert done.stdout.endswith("'core']\n")  # of the engine, which the program has called
    assert "'core', '']\n" in done.stderr  # and after it, the expression


@pytest.mark.slow
def test_quitting_ends_the_script_and_keeps_the_trace(debug_alone: Run, gradviz_here: Run) -> None:
    script = LESSON.replace("y = x**3", "try:\n    y = x**3\nfinally:\n    print('tidied up')")
    done = debug_alone(script, "next; quit")
    assert (done.stdout, done.returncode) == ("begun\ntidied up\n", 0)
    shown = gradviz_here("step", "lesson.debug.gradviz", "--commands", "last").stdout
    assert shown.splitlines()[1] == "event 3 of 3 · forward"


@pytest.mark.slow
def test_a_script_that_catches_everything_is_ended_at_its_next_pass(debug_alone: Run) -> None:
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
    done = debug_alone(script, "next; quit")
    assert done.stdout == "caught\ncaught\ncaught\n"


def test_commands_that_are_left_look_at_the_end(debug: Run) -> None:
    done = debug(LESSON, "continue; first; last", "--no-nan")
    assert "the script has ended (exit status 0): this is the last event\nevent 18 of 18 ·" in done.stderr
    assert done.stdout.endswith("nan, 0.7500])\n")


@pytest.mark.slow
def test_a_script_reads_its_own_standard_input(debug_alone: Run) -> None:
    script = """\
import sys
import torch
x = torch.tensor(float(input()), requires_grad=True)
print(x * 2, sys.stdin.read())
"""
    done = debug_alone(script, "next; continue", input="21\nrest\n", stdin=None)
    assert done.stdout == "tensor(42., grad_fn=<MulBackward0>) rest\n\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--break", "foo == 1", "lesson.py"], "there is no field foo"),
        (["--commands", "nxt", "lesson.py"], "did you mean 'next'?"),
        (["--commands", "c", "nothing.py"], "no such script: nothing.py"),
        ([], "give a SCRIPT to run"),
        (["--break", "w.grad", "lesson.py"], "watch w.grad"),
    ],
)
def test_what_cannot_be_is_told_in_one_line(
    gradviz_here: Run, tmp_path: Path, options: list[str], message: str
) -> None:
    (tmp_path / "lesson.py").write_text(LESSON)
    refused(gradviz_here("debug", *options), message)


@pytest.mark.slow
def test_without_a_terminal_and_commands_there_is_nothing_to_debug_with(gradviz: Run, tmp_path: Path) -> None:
    (tmp_path / "lesson.py").write_text(LESSON)
    meant = 'debug needs a terminal; without one, use --commands: gradviz debug --commands "continue; why" lesson.py'
    refused(gradviz("debug", "lesson.py", start_new_session=True), meant)


def refused(done: subprocess.CompletedProcess[str], message: str) -> None:
    """Told in one line, before the script has run."""
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_command_that_cannot_be_obeyed_ends_the_script(debug: Run) -> None:
    done = debug(LESSON, "goto nowhere; continue")
    assert done.returncode == 2
    assert done.stderr.endswith("gradviz: not a number: nowhere\n")
    assert done.stdout == ""


@pytest.mark.slow
def test_the_page_shows_what_its_command_prints(gradviz: Run, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/debug.md").read_text()
    command, printed = re.findall(r"```console\n\$ gradviz (.*)\n```\n\n```text\n(.*?)```", page, re.DOTALL)[0]
    (tmp_path / "examples").symlink_to(Path(__file__).parents[2] / "examples")
    assert gradviz(*shlex.split(command)).stderr.startswith(printed)
