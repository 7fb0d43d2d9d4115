"""What a recording that begins in the middle of a program says of what was there already, on either engine."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz.query import Query
from gradviz.tracefile import open_trace
from gradviz.words import Stop, Words
from gradviz.words.sentences import sentence


@pytest.fixture(params=["gradviz.engine", "torch"])
def torch(request: pytest.FixtureRequest) -> Any:
    found = pytest.importorskip(request.param)
    for part in ("nn", "optim"):
        import_module(f"{request.param}.{part}")
    return found


def grads(query: Query, k: int) -> list[Any]:
    """The `.grad` of each leaf that requires grad at an event, None where it has none."""
    states = [state for state in map(query.at(k).state, query.at(k).leaves) if state.requires_grad]
    found = [state.grad_value for state in states]
    return [None if one is None or one.array is None else np.ravel(one.array).tolist() for one in found]


def test_a_leaf_has_the_gradient_from_before(torch: Any, tmp_path: Path) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    (w * 3.0).sum().backward()
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = (w * w).sum()
        loss.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query, words = Query(trace), Words(trace)
        assert grads(query, trace.passes[0].first) == [[3.0, 3.0]]
        assert grads(query, trace.count - 1) == [[5.0, 7.0]]
        told = [sentence(Stop(words, k)) for k in range(trace.count)]
    assert any(text.endswith(".grad is [3, 3], from before the recording") for text in told)
    assert any("accumulates: [3, 3] (before) + [2, 4] = [5, 7]" in text for text in told)


def test_parameters_of_a_module_and_of_an_optimizer_have_it_too(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.ones(3, 2)).sum().backward()
    with gradviz.record(tmp_path / "run.gradviz"):
        optimizer.step()
        net(torch.ones(3, 2)).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert sorted(grads(Query(trace), trace.passes[0].first)) == [[3.0], [3.0, 3.0]]


def test_a_leaf_without_a_gradient_from_before_has_none(torch: Any, tmp_path: Path) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz"):
        (w * w).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert grads(Query(trace), trace.passes[0].first) == [None]


def test_the_same_tensor_is_the_gradient_when_the_program_clears_it(torch: Any, tmp_path: Path) -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    (w * 3.0).sum().backward()
    with gradviz.record(tmp_path / "run.gradviz"):
        loss = (w * w).sum()
        w.grad.zero_()
        loss.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert grads(Query(trace), trace.passes[0].first) == [[0.0, 0.0]]
        assert grads(Query(trace), trace.count - 1) == [[2.0, 4.0]]
