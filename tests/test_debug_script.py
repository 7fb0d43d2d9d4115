"""`gradviz debug` asks the paused script: `p EXPRESSION` evaluates Python, `check-node` runs an op again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_debug import debugging
from test_step import CUBE, lesson

from gradviz.step.state import CommandError, Session
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace

Run = Callable[..., subprocess.CompletedProcess[str]]

engines = pytest.mark.parametrize(
    "engine",
    ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no torch"))],
)

LAYER = """\
import torch
scale = 3.0
w = torch.tensor([1.0, 2.0], requires_grad=True)
def layer(x, times):
    hidden = x * times
    out = hidden.exp()
    return out
loss = layer(w, 2.0).sum()
loss.backward()
print("grad", [round(g, 3) for g in w.grad.tolist()])
"""


@pytest.fixture
def debug(gradviz_here: Run, tmp_path: Path) -> Run:
    """Debugs a script with commands, in this process."""
    return debugging(gradviz_here, tmp_path)


@engines
def test_p_evaluates_python_in_the_paused_frame(debug: Run, engine: str) -> None:
    done = debug(
        LAYER, "p [times * i for i in range(2)]; p scale + times; p hidden.detach().tolist(); p __name__; quit",
        "--engine", engine, "--break", "exp",
    )  # fmt: skip
    told = done.stderr.splitlines()
    after = {
        told[i].removeprefix("> p "): told[i + 1] for i in range(len(told)) if told[i].startswith("> p ")
    }
    assert after["[times * i for i in range(2)]"] == "[0.0, 2.0]"
    assert after["scale + times"] == "5.0"
    assert after["hidden.detach().tolist()"] == "[2.0, 4.0]"
    assert after["__name__"] == "'__main__'"


@engines
def test_p_leaves_recording_and_script_as_they_are(debug: Run, engine: str, tmp_path: Path) -> None:
    asked = "p (w * 2).exp().sum(); p w.grad; p print('hello'); p (scale := 7); continue"
    counts, outs = [], []
    for commands in ("continue", asked):
        done = debug(LAYER, commands, "--engine", engine, "--break", "exp")
        assert done.returncode == 0, done.stderr
        outs.append(done.stdout)
        with open_trace(next(tmp_path.glob("*.gradviz"))) as trace:
            counts.append([int(kind) for kind in trace.kinds])
    assert outs[0] == outs[1], "what p prints is not the script's output"
    assert outs[0].startswith("grad [")
    assert counts[0] == counts[1]


@engines
def test_an_exception_in_p_is_one_line_and_the_stop_goes_on(debug: Run, engine: str) -> None:
    done = debug(
        LAYER, "p 1 / 0; p nosuch; p x +; p exit(3); p times; continue", "--engine", engine, "--break", "exp"
    )
    assert done.returncode == 0
    assert "ZeroDivisionError: division by zero" in done.stderr
    assert "NameError: name 'nosuch' is not defined" in done.stderr
    assert "SyntaxError: invalid syntax" in done.stderr
    assert "SystemExit: 3" in done.stderr
    assert "\n2.0\n" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.startswith("grad [")


@engines
def test_p_at_the_exception_that_ends_the_script_sees_the_frame_that_raised(debug: Run, engine: str) -> None:
    text = "import torch\ndef layer(x):\n    size = x.shape[0]\n    return x @ torch.ones(5, 2)\n"
    text += "layer(torch.ones(4, 3))\n"
    done = debug(text, "p size * 10; quit", "--engine", engine, "--run")
    assert "\n40\n" in done.stderr


def test_a_trace_evaluates_no_python(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, CUBE)) as trace:
        session = Session(trace)
        for expression in ("x + 1", "__import__('os').system('true')", "x.sum()", "[x]"):
            with pytest.raises(CommandError, match="p evaluates Python in a script that waits"):
                obey(session, f"p {expression}")
        obey(session, "last")
        obey(session, "p x")
        assert session.page[0].startswith("x, ")
