"""The eight faults of docs/lessons/faults.md, each found in a real terminal with two keys from the start."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gradviz.engine as torch
from gradviz.sources.record import record
from gradviz.sources.script import Target, run
from gradviz.step.state import Session
from gradviz.step.verbs import obey
from gradviz.tracefile import open_trace
from tests.step.test_step_terminal import Terminal

ROOT = Path(__file__).parents[2]
# By program: the keys, and what they lead to.
FOUND = {
    "unused_parameter": ("Gy", r"net\.skip\.weight\.grad is None: no path of grad_fns leads from loss to it"),
    "in_place_on_saved": ("!y", r"it saved hidden at version 0, and then \(event 6, line 9\)"),
    "sqrt_of_zero": ("!y", r"the chain rule for torch\.sqrt\((.|\n)*an infinity in gradient of .* first appears here"),
    "gan_detach": ("Gy", r"G\.0\.weight\.grad is None: the path .* line 15: fake\.detach\(\)"),
    "missing_zero_grad": ("Gy", r"net\.bias\.grad is the sum over 5 passes since event 23"),
    "masked_row": ("!y", r"weights requires grad(.|\n)*NaN in weights first appears here: .* masked contains infin"),
    "rnn_detach": ("Gy", r"start\.grad is None: the path .* line 13: h\.detach\(\)"),
    "never_updated": ("Gy", r"w has not changed since event 3, although a gradient came to it 4×"),
}  # fmt: skip


def test_each_fault_of_the_lesson_is_here() -> None:
    lesson = (ROOT / "docs/lessons/faults.md").read_text()
    programs = re.findall(r"trace examples/faults/(\w+)\.py", lesson)
    assert set(programs) == set(FOUND) == {file.stem for file in (ROOT / "examples/faults").glob("*.py")}
    assert set(re.findall(r"`(\S)`, `(\S)`: ", lesson)) == {tuple(keys) for keys, _ in FOUND.values()}


def traced(fault: str, directory: Path) -> Path:
    trace = directory / f"{fault}.gradviz"
    run(Target(str(ROOT / f"examples/faults/{fault}.py"), False, ()), trace, engine="numpy")
    return trace


@pytest.mark.parametrize("fault", FOUND)
def test_two_keys_lead_to_the_fault(fault: str, tmp_path: Path) -> None:
    keys, told = FOUND[fault]
    stepper = Terminal(traced(fault, tmp_path), 180, 40)
    try:
        stepper.wait(r"why y\.grad")  # the first event
        stepper.press(keys, told)
        stepper.child.send("qq")  # the first closes the page
        assert stepper.ended() == 0
    finally:
        stepper.child.close(force=True)


@pytest.mark.parametrize(
    ("fault", "event", "told"),
    [
        ("sqrt_of_zero", "last", ["each leaf that requires grad has", "NaN or inf in the gradient of points"]),
        ("never_updated", "28", ["w has not changed since event 3, although a gradient came to it 1×"]),
        ("missing_zero_grad", "27", ["net.weight is a leaf: each gradient that arrives is added to net.weight.grad"]),
    ],
)  # fmt: skip
def test_why_at_an_event_tells_of_its_leaves(fault: str, event: str, told: list[str], tmp_path: Path) -> None:
    with open_trace(traced(fault, tmp_path)) as trace:
        session = Session(trace)
        obey(session, event)
        obey(session, "why")
        page = "\n".join(session.page)
    for line in told:
        assert line in page


def test_a_gradient_that_was_cleared_is_not_called_a_sum(tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz"):
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(3):
            optimizer.zero_grad(set_to_none=False)
            (w * 2).sum().backward()
            optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        session = Session(trace)
        obey(session, "last")
        obey(session, "why")
        assert session.page[0].startswith("SGD changes w in place")
        assert "the sum over" not in "\n".join(session.page)
