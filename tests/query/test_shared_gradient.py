"""A gradient that goes to two leaves: each has a `.grad` of its own."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import gradviz
from gradviz.events.kinds import Accumulated

ENGINES = [pytest.param("gradviz.engine", id="numpy"), pytest.param("torch", id="torch", marks=pytest.mark.torch)]


@pytest.fixture(params=ENGINES)
def torch(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param) if request.param == "torch" else importlib.import_module(request.param)


def test_what_is_written_to_one_is_not_written_to_the_other(torch: Any, tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        (a + b).sum().backward()
        a.grad.mul_(3)
        (a * b).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        first, second, *later = [event for event in trace if isinstance(event, Accumulated)]
        assert first.grad != second.grad
        assert trace.snapshot(second.grad, second.index).array.tolist() == [1, 1]
        left = {event.tensor: trace.snapshot(event.grad).array.tolist() for event in later}
        assert sorted(left.values()) == [[2, 2], [4, 4]]
        assert [a.grad.tolist(), b.grad.tolist()] == [[4, 4], [2, 2]]
