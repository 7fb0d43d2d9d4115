"""How much each step of an optimizer changes a large parameter: kept at `stats` with the parameter's statistics."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
import gradviz.engine as engine  # noqa: E402
from gradviz.events.kinds import Kind  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.curves import change_norms  # noqa: E402
from gradviz.sources.torch_recorder import tensor_values  # noqa: E402
from gradviz.tracefile import Trace, open_trace  # noqa: E402
from gradviz.tracefile.packing import Packing  # noqa: E402
from gradviz.tracefile.redaction import redact  # noqa: E402

pytestmark = pytest.mark.torch


def parameters() -> list[Any]:
    """Few and many elements, in other precisions, and in another order of memory."""
    torch.manual_seed(0)
    values = [
        torch.randn(5, 20), torch.randn(100, 100), torch.randn(200).double(), torch.randn(9, 9).bfloat16(),
        torch.randn(80, 60).half(), torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last),
    ]  # fmt: skip
    return [torch.nn.Parameter(value) for value in values]


def trained(path: Path, own: Sequence[Any], optimizer: Any, steps: int = 3) -> list[list[float]]:
    """Record some steps, and return the norms of the changes as the program itself can compute them."""
    norms = []
    with gradviz.record(path):
        for _ in range(steps):
            before = [one.detach().clone().double() for one in own]
            optimizer.zero_grad()
            sum((one.double() ** 2).sum() for one in own).backward()
            optimizer.step()
            norms.append([float((one.detach() - old).norm()) for one, old in zip(own, before, strict=True)])
    return norms


def recorded(trace: Trace) -> np.ndarray:
    """The norms of the changes, with a row for each step."""
    norms = change_norms(Query(trace))
    steps = int(norms.at.max())
    return norms.values[np.lexsort((norms.leaves, norms.at))].reshape(steps, -1)


@pytest.fixture(params=["here", "on a device"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where tensors lie: the CPU may stand for a device."""
    if request.param != "here":
        monkeypatch.setattr(tensor_values, "is_distant", lambda value: True)
    return str(request.param)


def test_every_step_has_the_norm_of_each_change(place: str, tmp_path: Path) -> None:
    own = parameters()
    norms = trained(tmp_path / "run.gradviz", own, torch.optim.SGD(own, lr=0.1, momentum=0.9))
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert np.allclose(recorded(trace), norms, rtol=2e-3 if place != "here" else 1e-5)
        assert trace.states.changes(np.array([-1])).tolist() == [-1]


def test_a_change_whose_squares_vanish_has_a_norm(tmp_path: Path) -> None:
    own = [torch.nn.Parameter(torch.zeros(size)) for size in (100, 5000)]
    with gradviz.record(tmp_path / "run.gradviz"):
        sum(one.sum() for one in own).backward()
        torch.optim.SGD(own, lr=1e-30, momentum=0.9).step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert np.allclose(recorded(trace) / 1e-30, [[100**0.5, 5000**0.5]])


class Swapping(torch.optim.SGD):
    """Gives the parameters other memory in its second step."""

    steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        for parameter in self.param_groups[0]["params"]:
            if self.steps == 2:
                parameter.data = parameter.data - parameter.grad
            else:
                parameter.sub_(parameter.grad)


def test_other_memory_in_a_step_leaves_its_change_unknown(tmp_path: Path) -> None:
    own = parameters()[:2]
    norms = np.array(trained(tmp_path / "run.gradviz", own, Swapping(own, lr=0.1, momentum=0.5)))
    norms[1] = -1
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert np.allclose(recorded(trace), norms, rtol=1e-4)


class Sharpness(torch.optim.SGD):
    """Moves the parameters before it calls the closure, and not back."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(1.0)
        with torch.enable_grad():
            closure()
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(0.1 * parameter.grad)


def test_the_change_is_that_of_the_whole_step(tmp_path: Path) -> None:
    own = torch.nn.Parameter(torch.zeros(10, 10))
    optimizer = Sharpness([own], lr=0.1, momentum=0.5)
    with gradviz.record(tmp_path / "run.gradviz"):
        optimizer.step(lambda: own.sum().backward())
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert recorded(trace).tolist() == [[pytest.approx(9.0)]]


def test_values_are_the_same_with_and_without_the_norms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    for path in (tmp_path / "with.gradviz", tmp_path / "without.gradviz"):
        own = parameters()
        trained(path, own, torch.optim.SGD(own, lr=0.1, momentum=0.9))
        with open_trace(path) as trace:
            sums.append((trace.states.checksums.tolist(), trace.states.stats.tobytes()))
        monkeypatch.setattr(Packing, "wants_changes", False)
    assert sums[0] == sums[1]
    assert len(set(sums[0][0])) > 20


def test_a_copy_without_values_has_the_norms(tmp_path: Path) -> None:
    own = parameters()
    norms = trained(tmp_path / "run.gradviz", own, torch.optim.SGD(own, lr=0.1, momentum=0.9))
    with open_trace(tmp_path / "run.gradviz") as trace:
        redact(trace, tmp_path / "copy.gradviz")
    with open_trace(tmp_path / "copy.gradviz") as trace:
        assert np.allclose(recorded(trace), norms, rtol=1e-4)


def test_a_nan_in_a_step_is_found(tmp_path: Path) -> None:
    own = torch.nn.Parameter(torch.zeros(10, 10))
    optimizer = torch.optim.SGD([own], lr=float("nan"), momentum=0.5)
    with gradviz.record(tmp_path / "run.gradviz"):
        own.sum().backward()
        optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert np.isnan(recorded(trace)).all()
        with closing(sqlite3.connect(tmp_path / "run.gradviz")) as file:
            ((first_nan,),) = file.execute("SELECT first_nan FROM contents WHERE first_nan >= 0").fetchall()
        assert trace.event(first_nan).how == "SGD"


def test_several_writes_of_one_step_are_one_change(tmp_path: Path) -> None:
    norms = []
    with gradviz.record(tmp_path / "run.gradviz"):
        w = engine.tensor([3.0, -4.0], requires_grad=True)
        optimizer = engine.optim.LBFGS([w], lr=0.1, max_iter=4)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = (w**4).sum()
            loss.backward()
            return loss

        for _ in range(3):
            before = w.detach().numpy().copy()
            optimizer.step(closure)
            norms.append([float(np.linalg.norm(w.detach().numpy() - before))])
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len(trace.table(Kind.MUTATED)) > 3
        assert np.allclose(recorded(trace), norms, rtol=1e-5)


def test_a_step_that_turns_all_signs_is_as_large_as_its_change(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(20, 20, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(4):
            optimizer.zero_grad()
            (model.weight**2).sum().div(2).backward()
            optimizer.step()
    [finding] = gradviz.check(tmp_path / "run.gradviz", select=["update-ratio"])
    size = float(model.weight.detach().square().mean().sqrt())
    assert f"of a change is {2 * size:.3g}, of the weights before it {size:.3g}" in finding.message
