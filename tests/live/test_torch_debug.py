"""`gradviz debug` on a PyTorch script: its stops, forward and backward."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402

pytestmark = pytest.mark.torch
Run = Callable[..., subprocess.CompletedProcess[str]]

LESSON = """\
import torch
x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
print("begun")
y = torch.sqrt(x) * 0
z = torch.tanh(y).sum()
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
import torch
w = torch.ones(3, 2, requires_grad=True)
print("begun")
torch.ones(4, 5) @ w
"""


@pytest.fixture
def debug(gradviz_here: Run, tmp_path: Path) -> Run:
    """Debugs a script with commands, in this process."""

    def run(script: str, commands: str, *options: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "lesson.py").write_text(script)
        return gradviz_here("debug", "--engine", "torch", *options, "--commands", commands, "lesson.py")

    return run


def stops(text: str) -> list[str]:
    """The sentences of the stops that a run of commands printed."""
    lines = text.splitlines()
    return [lines[i + 1] for i, line in enumerate(lines) if line.startswith("event ")]


def test_it_stops_at_an_op_before_the_script_goes_on(debug: Run, tmp_path: Path) -> None:
    done = debug(LESSON, "back; quit", "--break", "tanh")
    assert "breakpoint 1: tanh" in done.stderr
    assert stops(done.stderr) == [
        "torch.tanh(y) ran (TanhBackward0)",
        "MulBackward0 is now the grad_fn of y, and leads to SqrtBackward0",
    ]
    assert (done.stdout, done.returncode) == ("begun\n", 0)
    with gradviz.open(tmp_path / "lesson.debug.gradviz") as trace:
        assert (trace.meta["engine"], len(trace.passes)) == ("torch", 0)


def test_it_stops_at_a_node_in_backward(debug: Run) -> None:
    done = debug(LESSON, "quit", "--break", 'kind == "received" and grad_fn == "TanhBackward0"')
    (stop,) = stops(done.stderr)
    assert stop.startswith("TanhBackward0 receives [1, 1, 1]")
    assert (done.stdout, done.returncode) == ("begun\n", 0)


def test_it_stops_at_the_first_nan_in_backward(debug: Run) -> None:
    done = debug(LESSON, "why; continue", "--run")
    assert "the first NaN\n" in done.stderr
    assert stops(done.stderr) == ["SqrtBackward0 gives [0, nan, 0] to x: upstream × 1 / (2√x)"]
    assert "NaN in gradient of x first appears here" in done.stderr
    assert done.stdout == "begun\ndone tensor([0., nan, 0.])\n"


CAUSAL = """\
import torch
scores = torch.zeros(2, 2, requires_grad=True)
{mask}
torch.softmax(masked, -1).sum().backward()
print("masked")
torch.log(scores * 0)
"""
MASKS = [
    'masked = scores.masked_fill(torch.ones(2, 2).tril() == 0, float("-inf"))',
    'masked = (scores * 1).masked_fill_(torch.ones(2, 2).tril() == 0, float("-inf"))',
    'masked = scores + torch.triu(torch.full((2, 2), float("-inf")), 1)',
    'masked = torch.where(torch.ones(2, 2).tril() == 1, scores, float("-inf"))',
    'masked = scores * 1; masked[0, 1] = float("-inf")',
    "masked = scores + torch.nn.Transformer.generate_square_subsequent_mask(2)",
]


@pytest.mark.parametrize("mask", MASKS)
def test_an_infinity_that_the_program_wrote_down_does_not_stop_it(debug: Run, mask: str) -> None:
    done = debug(CAUSAL.format(mask=mask), "continue", "--break", "nan")
    assert done.stdout == "masked\n"
    assert "the first infinity\n" in done.stderr
    assert stops(done.stderr) == ["torch.log(scores * 0) ran (LogBackward0)"]


def test_it_stops_at_an_error_in_backward_and_the_script_still_gets_it(debug: Run, tmp_path: Path) -> None:
    done = debug(TWICE, "continue", "--run")
    assert "an error in a backward pass" in done.stderr
    (stop,) = stops(done.stderr)
    assert stop.startswith("RuntimeError at PowBackward0: Trying to backward through the graph a second time")
    assert (done.stdout, done.returncode) == ("once\nfinally\n", 1)
    assert "gradviz: error RuntimeError at line 7" in done.stderr
    with gradviz.open(tmp_path / "lesson.debug.gradviz") as trace:
        assert (trace.meta["error_line"], trace.meta["error_type"]) == ("7", "RuntimeError")


def test_it_stops_at_an_error_in_forward(debug: Run) -> None:
    done = debug(SHAPES, "continue", "--run")
    (stop,) = stops(done.stderr)
    assert stop.startswith("RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be multiplied" in stop
    assert (done.stdout, done.returncode) == ("begun\n", 1)
    assert "lesson.py:4" in done.stderr


LOOP = """\
import torch
x = torch.tensor([1.0, 2.0], requires_grad=True)
for step in range(3):
    x.tanh().sum().backward()
"""


@pytest.mark.slow
@pytest.mark.parametrize("values", ["stats", "inputs"])
def test_a_call_like_the_last_at_its_place_can_be_checked(debug: Run, values: str) -> None:
    """The recorder emits the call of the third pass from its cache; the debugger keeps it all the same."""
    commands = "; ".join(["continue"] * 8) + "; check-node; quit"
    done = debug(LOOP, commands, "--break", "TanhBackward0", "--values", values)
    assert "backward pass 3 of 3" in done.stderr
    assert "TanhBackward0: its backward is right for x" in done.stderr
