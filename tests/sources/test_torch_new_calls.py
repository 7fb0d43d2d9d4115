"""What PyTorch 2.14 and 2.15 have in addition: a program that uses it does under the recorder what it does without."""

from __future__ import annotations

import inspect
import io
import warnings
from contextlib import redirect_stdout
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import ErrorRaised, OpRan, Produced, Received  # noqa: E402
from tests.versions.programs import FOLDER, PRELUDE  # noqa: E402
from tests.versions.table import row_of, with_row  # noqa: E402

pytestmark = pytest.mark.torch


def _programs() -> dict[str, tuple[str, str]]:
    """The programs by name, each with what it needs of PyTorch."""
    parts = (FOLDER / "new_calls.txt").read_text().split("=== ")[1:]
    heads = (part.split("\n", 1) for part in parts)
    return {name: (needed, text) for head, text in heads for name, needed in [head.split(" | ")]}


def _is_there(needed: str) -> bool:
    """Whether this PyTorch has `a.b.c`, or the parameter of `a.b(parameter)`."""
    path, _, parameter = needed.removesuffix(")").partition("(")
    found = torch
    for name in path.split("."):
        if not hasattr(found, name):
            try:
                __import__(f"{found.__name__}.{name}")
            except (ImportError, AttributeError):
                return False
        found = getattr(found, name)
    return not parameter or parameter in inspect.signature(found).parameters


@pytest.mark.parametrize("name", _programs())
def test_a_program_does_the_same(name: str, tmp_path: Path) -> None:
    needed, text = _programs()[name]
    if not _is_there(needed):
        pytest.skip(f"PyTorch {torch.__version__} has no torch.{needed}")
    plain = _output_of(name, text)
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        recorded = _output_of(name, text)
    assert plain
    assert recorded == plain
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert "stopped" not in trace.meta
        assert any(isinstance(event, (OpRan, Received)) for event in trace)


def _output_of(name: str, text: str) -> str:
    """What a program prints."""
    printed = io.StringIO()
    with redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(f"{PRELUDE}\n{text}", name, "exec"), {"__name__": "__main__"})
    return printed.getvalue()


_ADDS = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (buffer,) = ctx.input_grad_buffers
        buffer.add_(gradient, alpha=2)


x = torch.arange(1.0, 1.0 + {size}, requires_grad=True)
h = x * 3
(Double.apply(h) + h * h).sum().backward()
"""
needs_buffers = pytest.mark.skipif(
    not hasattr(torch.autograd.function.FunctionCtx, "input_grad_buffers"),
    reason=f"PyTorch {torch.__version__} has no ctx.input_grad_buffers, which is new in 2.15",
)


def _traced(text: str, path: Path) -> Path:
    program = path.with_suffix(".py")
    program.write_text(f"import torch\n{text}")
    with gradviz.record(path):
        exec(compile(program.read_text(), str(program), "exec"), {})
    return path


@needs_buffers
@pytest.mark.parametrize("size", [3, 5000])
def test_the_gradient_that_is_added_in_place_is_recorded(size: int, tmp_path: Path) -> None:
    with gradviz.open(_traced(_ADDS.format(size=size), tmp_path / "run.gradviz")) as trace:
        [function] = [e for e in trace if isinstance(e, Received) and e.grad_fn == "DoubleBackward"]
        [produced] = [e for e in trace if isinstance(e, Produced) and e.node == function.node]
        [flow] = produced.flows
        assert flow.gradient
        added = trace.snapshot(flow.gradient, produced.index)
        assert added is not None
        assert added.stats is not None
        assert (added.shape, added.stats.min, added.stats.max) == ((size,), 2, 2)
        [consumer] = [e for e in trace if isinstance(e, Received) and e.node == flow.node]
        assert consumer.index > produced.index


@needs_buffers
def test_none_for_a_gradient_that_was_added_in_place_is_no_finding(tmp_path: Path) -> None:
    steps = """
optimizer = torch.optim.SGD([x], lr=0.001)
for _ in range(4):
    optimizer.zero_grad()
    h = x * 3
    (Double.apply(h) + h * h).sum().backward()
    optimizer.step()
"""
    program = _ADDS.format(size=3).split("h = x * 3")[0] + steps
    report = gradviz.check(_traced(program, tmp_path / "run.gradviz"))
    assert "backward-result" in report.checked
    assert list(report) == []


@needs_buffers
@pytest.mark.parametrize("size", [3, 2_000_000])
def test_a_gradient_that_was_added_in_place_is_compared_with_finite_differences(size: int, tmp_path: Path) -> None:
    text = _ADDS.format(size=size)
    with gradviz.record(tmp_path / "run.gradviz", check_functions=True):
        exec(f"import torch\n{text}", {})
    assert "wrong-custom-gradient" not in {finding.rule for finding in gradviz.check(tmp_path / "run.gradviz")}


def test_a_gradient_that_pytorch_refuses_is_an_error_of_the_functions_node(tmp_path: Path) -> None:
    text = """
class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return torch.ones(7)


try:
    Wrong.apply(torch.ones(3, requires_grad=True) * 1).sum().backward()
except RuntimeError:
    pass
"""
    with gradviz.open(_traced(text, tmp_path / "run.gradviz")) as trace:
        [function] = [e for e in trace if isinstance(e, Received) and e.grad_fn == "WrongBackward"]
        [error] = [e for e in trace if isinstance(e, ErrorRaised)]
        assert error.node == function.node


def test_the_row_of_a_version_is_made_of_what_was_printed() -> None:
    page = "| PyTorch |\n|-|\n| 2.8.0 | old |\n| 2.13.0 | old |\nafter\n"
    row = row_of(
        "2.8.0", "2026-11-28", "= 1234 passed, 5 skipped in 3 s =", "52 of 52 programs are recorded as they are"
    )
    assert row == "| 2.8.0 | 2026-11-28 | 1,234 | 5 | 52 of 52 |\n"
    assert with_row(page, row) == page.replace("| 2.8.0 | old |\n", row)
    newer = row.replace("2.8.0", "2.10.0")
    assert with_row(page, newer) == page.replace("| 2.13.0", f"{newer}| 2.13.0")
    with pytest.raises(ValueError, match="no counts"):
        row_of("2.8.0", "2026-11-28", "no tests ran", "")
