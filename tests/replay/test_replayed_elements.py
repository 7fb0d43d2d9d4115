"""Views of a trace that kept inputs only show elements by a replay: what a trace that kept all of them shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import OpRan, Produced, Received  # noqa: E402
from gradviz.query.query import Query  # noqa: E402
from gradviz.replaying import filled_in  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402
from tests.invoked import invoked  # noqa: E402
from tests.replay.replayed_programs import recorded  # noqa: E402

pytestmark = pytest.mark.torch


def network() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(20, 9))
    for _ in range(2):
        net.zero_grad()
        x = torch.randn(10, 12)
        loss = (net(x) ** 2).mean()
        loss.backward()


def attention() -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 9, 8, requires_grad=True)
    k = torch.randn(2, 9, 8, requires_grad=True)
    v = torch.randn(2, 9, 8, requires_grad=True)
    weights = (q @ k.transpose(1, 2) / 8**0.5).softmax(-1)
    loss = (weights @ v).square().sum()
    loss.backward()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "tensor"), [(network, "net.0.weight[3, 0]"), (network, "net.3.weight"), (attention, "q[1, 2, 3]")]
)
def test_why_answers_as_of_a_trace_with_all_elements(
    tmp_path: Path, program: Callable[[], object], tensor: str
) -> None:
    told = []
    for values in ("inputs", "full"):
        path = recorded(tmp_path / f"{values}.gradviz", program, values)
        told.append(json.loads(invoked(["why", str(path), tensor, "--format", "json"]).stdout))
    replayed, kept = told
    assert replayed["gradient"] == kept["gradient"]
    values = [[one["value"] for one in reason["contributions"]] for reason in told]
    assert values[0] == values[1] != []


@pytest.mark.slow
def test_every_value_and_gradient_of_a_pass_is_that_of_a_trace_with_all_elements(tmp_path: Path) -> None:
    arrays = []
    for values in ("inputs", "full"):
        with open_trace(recorded(tmp_path / f"{values}.gradviz", network, values)) as trace:
            query = Query(trace)
            assert filled_in(query, 2) is (values == "inputs")
            arrays.append([elements(query, event) for event in range(trace.passes[0].last or 0, trace.count)])
    replayed, kept = ([one for told in found for one in told] for found in arrays)
    assert len(kept) == len(replayed) > 30
    unknown = [one for one in replayed if one is None]
    assert len(unknown) == 2  # the transposed weights of linear layers are seen by no call
    assert [one for one, other in zip(replayed, kept, strict=True) if one not in (None, other)] == []


def test_gradients_that_hooks_changed_are_not_taken_from_a_replay(tmp_path: Path) -> None:
    def program() -> None:
        w = torch.ones(100, requires_grad=True)
        for _ in range(2):  # the gradient of the second pass is added to that of the first, and not kept
            y = w * 2
            y.register_hook(lambda gradient: gradient * 10)
            (y**2).sum().backward()

    with open_trace(recorded(tmp_path / "run.gradviz", program, "inputs")) as trace:
        assert not filled_in(Query(trace), 2)


def elements(query: Query, event: int) -> list[bytes | None]:
    """The elements of what an op made, or of the gradients at a node."""
    told = query.trace.event(event)
    numbers = told.outputs if isinstance(told, OpRan) else ()
    numbers = told.gradients if isinstance(told, Received) else numbers
    numbers = [flow.gradient for flow in told.flows] if isinstance(told, Produced) else numbers
    values = [query.memory.value(number, event) for number in numbers if number]
    return [None if value is None or value.array is None else value.array.tobytes() for value in values]


@pytest.mark.slow
def test_the_stepper_prints_elements(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.gradviz", network, "inputs")
    shown = invoked(["step", str(path), "--commands", "last; print net.0.weight.grad[0, :2]"]).stdout
    assert "elements were not kept" not in shown
    assert "net.0.weight.grad[0, :2] of (20×12), float32" in shown


def root_of_a_negative_mean() -> None:
    torch.manual_seed(0)
    w = torch.randn(40, 40, requires_grad=True)
    x = torch.randn(40, 40)
    y = torch.relu(x @ w)
    z = torch.log(y - 20)
    loss = (z * 2 + 1).mean()
    loss.backward()


def line_of(text: str) -> int:
    """The line of this file on which a statement of a program stands."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return lines.index(f"    {text}") + 1


@pytest.mark.slow
def test_check_in_python_names_the_line_that_the_command_names(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.gradviz", root_of_a_negative_mean)
    by_command = json.loads(invoked(["check", str(path), "--format", "json"]).stdout)["findings"]
    findings = gradviz.check(path).findings
    assert [one.line for one in findings] == [one["line"] for one in by_command]
    assert findings[0].line == line_of("z = torch.log(y - 20)")


@pytest.mark.slow
def test_a_cure_is_tried_by_a_replay_in_python_too(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run.gradviz", cut_by_a_detach)
    by_command = json.loads(invoked(["check", str(path), "--format", "json"]).stdout)["findings"]
    replayed = [finding.replayed for finding in gradviz.check(path).findings]
    assert replayed == [one["replayed"] for one in by_command]
    assert any("without .detach()" in text for text in replayed)


def cut_by_a_detach() -> None:
    torch.manual_seed(0)
    first = torch.randn(4, 4, requires_grad=True)
    second = torch.randn(4, 4, requires_grad=True)
    hidden = (torch.ones(2, 4) @ first).tanh().detach()
    (hidden @ second).sum().backward()
    assert first.grad is None


@pytest.mark.slow
@pytest.mark.parametrize("command", ["nan", "until nan", "break nan; continue"])
def test_the_stepper_stops_at_the_nan_that_the_command_names(tmp_path: Path, command: str) -> None:
    path = recorded(tmp_path / "run.gradviz", root_of_a_negative_mean)
    told = invoked(["step", str(path), "--commands", command]).stdout
    assert f":{line_of('z = torch.log(y - 20)')}" in told
