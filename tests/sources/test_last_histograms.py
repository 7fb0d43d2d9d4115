"""The histograms of leaves when the recording ends, or when the module that holds them is freed."""

from __future__ import annotations

import gc
import subprocess
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
import gradviz.engine as engine  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.curves import Binned, binned  # noqa: E402
from gradviz.sources.torch_recorder import histograms  # noqa: E402

pytestmark = pytest.mark.torch

both_engines = pytest.mark.parametrize("on", [torch, engine], ids=["torch", "numpy"])


def network(on: Any) -> Any:
    on.manual_seed(0)
    return on.nn.Linear(20, 30)


def steps(on: Any, net: Any, count: int, clears: bool = False) -> np.ndarray:
    """Train; returns the weight behind the last step."""
    optimizer = on.optim.SGD(net.parameters(), lr=0.5)
    for _ in range(count):
        optimizer.zero_grad()
        net(on.ones(9, 20)).pow(2).mean().backward()
        optimizer.step()
    if clears:
        optimizer.zero_grad()
    weight: np.ndarray = net.weight.detach().numpy().astype(float)
    return weight


def counted(path: Path) -> dict[tuple[str, str], Binned]:
    with gradviz.open(path) as trace:
        return {(one.name, one.what): one for one in binned(Query(trace))}


def is_of(one: Binned, elements: np.ndarray) -> bool:
    """Whether the last histogram is that of these elements."""
    assert one.last is not None
    return one.last[1].counts.tolist() == np.histogram(elements, 32)[0].tolist()


@both_engines
def test_a_parameter_is_counted_after_the_last_step(on: Any, tmp_path: Path) -> None:
    net = network(on)
    with gradviz.record(tmp_path / "run.gradviz"):
        weight = steps(on, net, 5)
    found = counted(tmp_path / "run.gradviz")
    assert [*found["net.weight", "parameter"].histograms] == [1, 4]
    assert found["net.weight", "parameter"].last[0] == 5  # type: ignore[index]
    assert is_of(found["net.weight", "parameter"], weight)
    assert is_of(found["net.weight", "gradient"], net.weight.grad.numpy().astype(float))


@both_engines
def test_the_parameters_of_a_network_that_a_function_frees_are_counted(on: Any, tmp_path: Path) -> None:
    def main() -> np.ndarray:
        return steps(on, network(on), 3)

    with gradviz.record(tmp_path / "run.gradviz"):
        weight = main()
        steps(on, network(on), 2)
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        first = binned(Query(trace))[0]
    assert first.last is not None
    assert first.last[0] == 3
    assert is_of(first, weight)


@both_engines
def test_a_gradient_that_was_cleared_is_not_counted(on: Any, tmp_path: Path) -> None:
    net = network(on)
    with gradviz.record(tmp_path / "run.gradviz"):
        steps(on, net, 2, clears=True)
    found = counted(tmp_path / "run.gradviz")
    assert found["net.weight", "gradient"].last is None
    assert found["net.weight", "parameter"].last is not None


@pytest.mark.slow
@both_engines
@pytest.mark.parametrize("settings", [{"passes": "auto"}, {"passes": "2"}, {"last": 2}], ids=str)
def test_it_is_there_where_the_last_passes_are_left_out_or_kept_alone(
    on: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    net = network(on)
    with gradviz.record(tmp_path / "run.gradviz", **settings):
        weight = steps(on, net, 40)
    found = counted(tmp_path / "run.gradviz")["net.weight", "parameter"]
    assert found.last is not None
    assert found.last[0] == 40
    assert is_of(found, weight)


@pytest.mark.slow
@both_engines
def test_a_network_is_freed_as_without_a_recording(on: Any, tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        net = network(on)
        steps(on, net, 2)
        gc.collect()
        module, weight = weakref.ref(net), weakref.ref(net.weight)
        del net
        assert (module(), weight()) == (None, None)


@pytest.mark.slow
@both_engines
def test_modules_that_are_made_for_each_pass_are_counted_64_times(on: Any, tmp_path: Path) -> None:
    class Wrapper(on.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, inner: Any) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    net = network(on)
    with gradviz.record(tmp_path / "run.gradviz"):
        for _ in range(70):
            Wrapper(net)(on.ones(9, 20)).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        last = [number for number, one in trace.leaf_histograms if one.what == "last parameter"]
    assert last == [*range(1, 65), 70]


def test_what_lies_on_a_device_is_read_when_the_recording_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histograms, "_is_here", lambda sample: False)
    with gradviz.record(tmp_path / "run.gradviz") as recording:
        weight = steps(torch, network(torch), 3)
        recorder = recording.recorder
        assert recorder is not None
        recorder.flush()
        with gradviz.open(tmp_path / "run.gradviz") as trace:
            assert not any(one.what.startswith("last") for _, one in trace.leaf_histograms)
        torch.ones(2, requires_grad=True).sum().backward()
    found = counted(tmp_path / "run.gradviz")["net.weight", "parameter"]
    assert found.last is not None
    assert found.last[0] == 3
    assert is_of(found, weight)


def test_with_histograms_of_activations_the_last_of_parameters_are_there_too(tmp_path: Path) -> None:
    net = network(torch)
    with gradviz.record(tmp_path / "run.gradviz", histograms=True):
        weight = steps(torch, net, 3)
    found = counted(tmp_path / "run.gradviz")
    assert [*found["net.weight", "parameter"].histograms] == [1, 2]
    assert found["net", "activation"].last is None
    assert is_of(found["net.weight", "parameter"], weight)


def test_a_module_that_is_freed_inside_a_transform_is_not_read(tmp_path: Path) -> None:
    lines: list[str] = []
    nets = [network(torch)]
    with gradviz.record(tmp_path / "run.gradviz", say=lines.append):
        steps(torch, nets[0], 2)

        def scaled(x: Any) -> Any:
            nets.clear()
            return 2 * x

        torch.func.vmap(scaled)(torch.ones(3))
    assert lines == []
    assert all(one.last is None for one in counted(tmp_path / "run.gradviz").values())


@pytest.mark.slow
def test_the_report_shows_it_behind_the_passes(
    tmp_path: Path, gradviz_here: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    net = network(torch)
    with gradviz.record(tmp_path / "run.gradviz"):
        steps(torch, net, 5)
    assert gradviz_here("report", "run.gradviz", "-o", "report.html").returncode == 0
    page = (tmp_path / "report.html").read_text().partition('<section id="distributions">')[2]
    row = page.partition('<th scope="row">net.weight</th><td>parameter</td>')[2].partition("</tr>")[0]
    labels = [part.partition("</b>")[0] for part in row.split("<b>")[1:]]
    assert labels == ["1", "4", "after 5"]
    assert "of the end of the run, or of the moment at which the module was freed" in page
