"""`gradviz debug` asks the paused script: `p EXPRESSION` evaluates Python, `check-node` runs an op again."""

from __future__ import annotations

import gc
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import gradviz.engine as torch
from gradviz.engine.table.derivatives import TABLE
from gradviz.events.kinds import Kind, OpRan
from gradviz.sources.engine_replayable import forward_of
from gradviz.sources.record import record
from gradviz.step import CommandError
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace
from tests.engine.derivative_samples import DIFFERENTIABLE, RNG, leaves, run, samples
from tests.live.test_debug import debugging
from tests.step.test_step import CUBE, lesson

Run = Callable[..., subprocess.CompletedProcess[str]]

engines = pytest.mark.parametrize(
    "engine", ["numpy", pytest.param("torch", marks=pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch"))]
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
    after = {told[i].removeprefix("> p "): told[i + 1] for i in range(len(told)) if told[i].startswith("> p ")}
    assert after["[times * i for i in range(2)]"] == "[0.0, 2.0]"
    assert after["scale + times"] == "5.0"
    assert after["hidden.detach().tolist()"] == "[2.0, 4.0]"
    assert after["__name__"] == "'__main__'"


@pytest.mark.slow
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
    done = debug(LAYER, "p 1 / 0; p nosuch; p x +; p exit(3); p times; continue", "--engine", engine, "--break", "exp")
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


# --- check-node

CUSTOM = """\
import torch
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return scale * x**3
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return {backward}, None
x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
y = Cube.apply(x, 2.0)
y.sum().backward()
print(x.grad.tolist())
"""
AT_CUBE = "until kind == 'produced' and grad_fn == 'CubeBackward'; check-node; continue"


def told(text: str) -> str:
    """What check-node said."""
    return text.partition("> check-node\n")[2].partition("\n\n")[0]


@pytest.mark.slow
@engines
def test_check_node_says_which_input_of_a_custom_backward_is_wrong(debug: Run, engine: str) -> None:
    right = debug(CUSTOM.format(backward="g * ctx.scale * 3 * x**2"), AT_CUBE, "--engine", engine)
    assert right.returncode == 0, right.stderr
    assert told(right.stderr).startswith("CubeBackward: its backward is right for x\n")
    wrong = debug(CUSTOM.format(backward="g * ctx.scale * 2 * x"), AT_CUBE, "--engine", engine)
    lines = told(wrong.stderr).splitlines()
    assert lines[0] == "CubeBackward: its backward is wrong for x"
    assert lines[2].strip() == "x: WRONG, relative error 0.78 at [2]: backward 12, differences 54"
    assert wrong.stdout == "[4.0, 8.0, 12.0]\n", "the script goes on as it would have"


OPS = {
    "x**3": "x = torch.tensor([1.0, 2.0], requires_grad=True)\ny = x**3",
    "x * w": "x = torch.ones(3, 2, requires_grad=True)\nw = torch.tensor([2.0, 3.0], requires_grad=True)\ny = x * w",
    "x * x": "x = torch.tensor([2.0, 3.0], requires_grad=True)\ny = x * x",
    "x @ w": "x = torch.rand(3, 2, requires_grad=True)\nw = torch.rand(2, 4, requires_grad=True)\ny = x @ w",
    "x / 2.0": "x = torch.tensor([2.0, 3.0], requires_grad=True)\ny = x / 2.0",
    "softmax": "x = torch.rand(2, 3, requires_grad=True)\ny = torch.softmax(x, 1)",
    "cat": "x = torch.rand(2, 3, requires_grad=True)\nw = torch.rand(1, 3, requires_grad=True)\ny = torch.cat([x, w])",
    "sum": "x = torch.rand(2, 3, requires_grad=True)\ny = x.sum(1)",
}


@engines
@pytest.mark.parametrize("op", OPS)
def test_check_node_finds_the_ops_right(debug: Run, engine: str, op: str) -> None:
    script = f"import torch\n{OPS[op]}\n(y * torch.rand(y.shape)).sum().backward()\n"
    at = "until kind == 'produced' and line == " + str(OPS[op].count("\n") + 2)
    done = debug(script, f"{at}; check-node; continue", "--engine", engine)
    assert done.returncode == 0, done.stderr
    assert "its backward is right for x" + " and w" * ("w = " in OPS[op]) in told(done.stderr)
    assert "WRONG" not in done.stderr


NETWORK = """\
import torch
torch.manual_seed(0)
layer, norm = torch.nn.Linear(2, 3), torch.nn.LayerNorm(3)
x = torch.rand(2, 2, requires_grad=True)
h = layer(x)
y = norm(h)
(y * torch.rand(2, 3)).sum().backward()
"""


@engines
@pytest.mark.parametrize(
    ("node", "inputs"),
    [
        ("AddmmBackward0", ("layer.bias", "x")),
        ("TBackward0", ("layer.weight",)),
        ("NativeLayerNormBackward0", ("norm.weight", "norm.bias", "h")),
    ],
)
def test_check_node_knows_layers(debug: Run, engine: str, node: str, inputs: tuple[str, ...]) -> None:
    at = f"until kind == 'produced' and grad_fn == '{node}'"
    done = debug(NETWORK, f"{at}; check-node; continue", "--engine", engine)
    assert done.returncode == 0, done.stderr
    lines = told(done.stderr).splitlines()
    assert "WRONG" not in done.stderr
    assert all(any(line.startswith(f"  {name}: right") for line in lines) for name in inputs), lines


KINK = "x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)\ny = torch.relu(x)"
INDEXED = "x = torch.rand(4, 3, requires_grad=True)\ny = torch.index_select(x, 0, torch.tensor([1, 1, 3]))"


@engines
@pytest.mark.parametrize(
    ("text", "said"), [(KINK, "(2 of 3 elements, 1 at a kink left out)"), (INDEXED, "its backward is right for x")]
)
def test_check_node_leaves_kinks_and_integers_out(debug: Run, engine: str, text: str, said: str) -> None:
    done = debug(
        f"import torch\n{text}\ny.sum().backward()\n",
        "until kind == 'produced' and line == 3; check-node; continue", "--engine", engine,
    )  # fmt: skip
    assert said in told(done.stderr), done.stderr


CANNOT = [
    ("y = x * 1.0\ny.mul_(3.0)", "works in place, its input is gone"),
    ("y = torch.exp(x.expand(40, 8))", "were not recorded; debug with --values full"),
]


@engines
@pytest.mark.parametrize(("text", "said"), CANNOT)
def test_check_node_says_plainly_where_it_cannot(debug: Run, engine: str, text: str, said: str) -> None:
    script = f"import torch\ntorch.manual_seed(0)\nx = torch.arange(1.0, 9.0).requires_grad_()\n{text}\n"
    last = script.count("\n")
    done = debug(
        script + "y.sum().backward()\n", f"until kind == 'produced' and line == {last}; check-node", "--engine", engine
    )
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1] or said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


DROPPED = """\
import torch
torch.manual_seed(0)
x = torch.ones(8, requires_grad=True)
y = torch.nn.functional.dropout(x, 0.5)
y.sum().backward()
print(torch.rand(1).item())
"""


@pytest.mark.skipif(not find_spec("torch"), reason="no PyTorch")
def test_check_node_refuses_a_random_op_and_leaves_the_random_numbers_alone(debug: Run) -> None:
    plain = debug(DROPPED, "continue", "--engine", "torch", "--run")
    done = debug(DROPPED, "until kind == 'produced' and line == 4; check-node", "--engine", "torch")
    assert "dropout cannot be checked: run again, it gives other values (it is random" in done.stderr
    right = "until kind == 'produced' and line == 5; check-node; continue"
    asked = debug(DROPPED, right, "--engine", "torch")
    assert "its backward is right" in asked.stderr
    assert asked.stdout == plain.stdout


def test_check_node_needs_a_script_that_waits(tmp_path: Path) -> None:
    with open_trace(lesson(tmp_path, CUBE)) as trace, pytest.raises(CommandError, match="it needs a script that waits"):
        obey(Session(trace), "check-node")


@engines
def test_check_node_before_the_node_has_run_says_so(debug: Run, engine: str) -> None:
    done = debug(LAYER, "check-node", "--engine", engine, "--break", "exp")
    assert "ExpBackward0 has not run yet" in done.stderr


class Again:
    """A script that waits, as far as the NumPy engine runs its ops again."""

    def forward_of(self, op: OpRan, node: int, alone: bool) -> Callable[..., list[np.ndarray]]:
        return forward_of(op, node, alone)


@pytest.fixture
def few_objects() -> Iterator[None]:
    """What the other tests left is not looked through for a node, as what gradviz loads is not before a script."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("few_objects")
def test_check_node_finds_every_row_of_the_table_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of each name, the sources of these tests would be looked through, which takes longer than all else.
    monkeypatch.setattr("gradviz.query.names.elements_of", lambda *_: {})
    refused: set[tuple[str, str]] = set()
    for key in DIFFERENTIABLE:
        with record(tmp_path / "run.gradviz", values="full"):
            outs = [run(TABLE[key], leaves(arrays), args) for arrays, args in samples(key)]  # their graphs are kept
            for out in outs:
                out.backward(torch.tensor(RNG.normal(size=out.array.shape)), retain_graph=True)
        with open_trace(tmp_path / "run.gradviz") as trace:
            session = Session(trace)
            session.script = Again()
            events = trace.indices(Kind.PRODUCED).tolist()
            assert len(events) >= len(outs)
            for event in events:
                session.go(event)
                try:
                    obey(session, "check-node")
                except CommandError as error:
                    refused.add((key, str(error).partition("cannot be checked: ")[2]))
                else:
                    assert "WRONG" not in "".join(session.page), (key, session.page)
    why = "it reads one half of a symmetric matrix"
    assert refused == {("cholesky", why), ("cholesky_upper", why), ("eigh", why)}
