"""Values on a device: computed there and fetched in batches, so that the program never waits for the device. Here the
CPU stands for it: every tensor counts as distant, and what would wait for a device is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gradviz  # noqa: E402
from gradviz.events.handles import Later  # noqa: E402
from gradviz.sources.record import record  # noqa: E402
from gradviz.sources.torch_recorder import values  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402

pytestmark = pytest.mark.torch
WAITS = {"aten::_local_scalar_dense", "aten::_to_copy", "aten::item", "aten::equal", "aten::nonzero"}


class Waits(TorchDispatchMode):
    """Counts the calls of this thread that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func._schema.name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def distant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is on a device, and its elements are nowhere to be read in place."""
    monkeypatch.setattr(values, "is_distant", lambda value: True)
    monkeypatch.setattr(values, "array_of", None)


def train(steps: int = 3) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        (net(torch.randn(16, 20)) ** 2).mean().backward()
        optimizer.step()


def states(trace: Trace) -> list[tuple[str, list[float]]]:
    """What is known of each tensor at each event: its elements, or its statistics."""
    found: list[tuple[str, list[float]]] = []
    for row in range(len(trace.states)):
        known = trace.states.snapshot(row, row) if trace.states.forms[row] else None
        if known is not None and known.array is not None:
            found.append(("elements", known.array.reshape(-1).tolist()))
        elif known is not None and known.stats is not None:
            found.append(("stats", [*astuple(known.stats)]))
    return found


@pytest.mark.parametrize("grade", ["none", "stats", "full"])
def test_the_program_never_waits_for_the_device(distant: None, tmp_path: Path, grade: str) -> None:
    with Waits() as plain:
        train()
    with record(tmp_path / "run.gradviz", values=grade), Waits() as traced:
        train()
    waited = {name: traced.calls[name] - plain.calls[name] for name in WAITS}
    assert waited == dict.fromkeys(WAITS, 0)


def test_what_waits_is_fetched_in_one_copy(
    distant: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradviz.tracefile.writer.INTERVAL", 3600)  # nothing is written before the end
    for module in ("packing", "recorder"):
        monkeypatch.setattr(f"gradviz.tracefile.{module}.FEW", 10**6)
    before = values.READER.fetches
    with record(tmp_path / "run.gradviz") as running:
        train(20)
        assert values.READER.fetches - before <= 1
        running.recorder.flush()
        fetched = values.READER.fetches - before
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len(states(trace)) > 400
    assert 1 <= fetched <= 2


@pytest.mark.parametrize("grade", ["stats", "full"])
def test_what_comes_from_a_device_is_what_would_be_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grade: str
) -> None:
    with record(tmp_path / "here.gradviz", values=grade):
        train()
    monkeypatch.setattr(values, "is_distant", lambda value: True)
    with record(tmp_path / "there.gradviz", values=grade):
        train()
    with gradviz.open(tmp_path / "here.gradviz") as here, gradviz.open(tmp_path / "there.gradviz") as there:
        ours, theirs = states(here), states(there)
        assert [kind for kind, _ in ours] == [kind for kind, _ in theirs]
        for (_, mine), (_, its) in zip(ours, theirs, strict=True):
            assert its == pytest.approx(mine, rel=1e-5, abs=1e-9, nan_ok=True)


class NoDoubles(TorchDispatchMode):
    """A device without float64, as Apple's."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float64:
                raise TypeError("Cannot convert a MPS Tensor to float64 dtype")
        return out


@pytest.fixture
def without_doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "widest", lambda device: torch.float32)


NAN, INF = float("nan"), float("inf")
AWKWARD = {
    "one": torch.tensor([3.0]),
    "none": torch.empty(0),
    "zeros": torch.zeros(5000),
    "no number": torch.tensor([NAN, INF, -INF]),
    "some numbers": torch.tensor([NAN, 1.0, -INF, 2.0, 0.0]),
    "large": torch.tensor([3e38, -3e38, 2e38] * 3000),
    "small": torch.tensor([3e-38, -1e-38] * 3000),
    "many": torch.randn(100_003, generator=torch.Generator().manual_seed(0)) + 100,
    "half": torch.tensor([60000.0, 1.0], dtype=torch.float16),
    "whole": torch.arange(-5, 2000),
    "true": torch.tensor([True, False]),
    "complex": torch.tensor([3 + 4j, 0j]),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_a_device_without_float64_computes_the_same_statistics(without_doubles: None, name: str) -> None:
    tensor = AWKWARD[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "widest", lambda device: torch.float64)
        expected = values.stats_on_device(tensor).numpy()
    with NoDoubles():
        packed = values.stats_on_device(tensor)
    (data,) = values.READER.settle([Later(packed, False, 0)])
    numbers = np.frombuffer(data)
    scale = max(abs(expected[:4][np.isfinite(expected[:4])]), default=0.0)
    assert numbers[4:] == pytest.approx(expected[4:], rel=0, abs=0)
    assert numbers[:4] == pytest.approx(expected[:4], rel=1e-6, abs=1e-6 * scale, nan_ok=True)


def test_no_value_is_missing_on_a_device_without_float64(
    distant: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with record(tmp_path / "double.gradviz"):
        train()
    monkeypatch.setattr(values, "widest", lambda device: torch.float32)
    with record(tmp_path / "single.gradviz"):
        train()
    with (
        gradviz.open(tmp_path / "double.gradviz") as double,
        gradviz.open(tmp_path / "single.gradviz") as single,
    ):
        expected, found = states(double), states(single)
    assert [grade for grade, _ in found] == [grade for grade, _ in expected]
    for (_, numbers), (_, others) in zip(found, expected, strict=True):
        assert numbers == pytest.approx(others, rel=1e-5, abs=1e-6, nan_ok=True)


def test_apples_device_has_no_float64() -> None:
    assert values.widest(torch.device("mps")) is torch.float32
    assert values.widest(torch.device("cuda")) is torch.float64
