"""Parameters of modules that nobody calls are named by their path in the variable that holds the module."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import gradviz
from gradviz.query import Query
from gradviz.tracefile import open_trace


@pytest.fixture(params=["gradviz.engine", "torch"])
def torch(request: pytest.FixtureRequest) -> Any:
    found = pytest.importorskip(request.param)
    import_module(f"{request.param}.nn")
    return found


def free_of(torch: Any) -> Any:
    class Free(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.free = torch.nn.Parameter(torch.ones(2))
            self.layer = torch.nn.Linear(2, 2)

    return Free


def leaves(path: Path) -> set[str | None]:
    with open_trace(path) as trace:
        query = Query(trace)
        states = map(query.at(trace.count - 1).state, query.at(trace.count - 1).leaves)
        return {query.names.of(state.tensor) for state in states if state.requires_grad}


PATHS = {f"{name}.{path}" for name in ("one", "two") for path in ("free", "layer.weight", "layer.bias")}


def test_parameters_that_were_made_inside_the_recording(torch: Any, tmp_path: Path) -> None:
    Free = free_of(torch)
    with gradviz.record(tmp_path / "run.gradviz"):
        one, two = Free(), Free()
        (one.free * two.free).sum().backward()
    assert leaves(tmp_path / "run.gradviz") == PATHS


def test_parameters_that_were_made_before_it(torch: Any, tmp_path: Path) -> None:
    Free = free_of(torch)
    both = [Free(), Free()]
    with gradviz.record(tmp_path / "run.gradviz"):
        (both[0].free * both[1].free).sum().backward()
    assert leaves(tmp_path / "run.gradviz") == {"both.0.free", "both.1.free"}


def test_a_module_that_is_called_keeps_the_name_of_its_call(torch: Any, tmp_path: Path) -> None:
    net = torch.nn.Linear(2, 1)
    other = torch.nn.Linear(2, 1)

    def run(model: Any) -> None:
        model(torch.ones(3, 2)).sum().backward()

    with gradviz.record(tmp_path / "run.gradviz"):
        run(net)
        run(other)
    assert leaves(tmp_path / "run.gradviz") == {"model.weight", "model.bias"}


class _Own:
    """An object of the program that is no module, and holds some."""

    def __init__(self, torch: Any) -> None:
        self.layers = [torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)]


def test_a_parameter_in_an_object_that_is_no_module_is_called_as_it_is_read(
    torch: Any, tmp_path: Path
) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        own = _Own(torch)
        h = torch.ones(4, 3) @ own.layers[0].weight
        h = h + own.layers[0].bias
        (h.sum() * own.layers[1].bias).backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        moment = query.at(trace.count - 1)
        names = {query.labels.of(leaf): leaf for leaf in moment.leaves if moment.grad(leaf)}
        assert names.keys() == {"own.layers[0].weight", "own.layers[0].bias", "own.layers[1].bias"}
        for name, leaf in names.items():
            assert query.labels.tensor_called(name, trace.count - 1) == leaf
