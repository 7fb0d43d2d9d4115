"""Values on a device: computed there and fetched in batches, so that the program never waits for the device. Here the
CPU stands for it: every tensor counts as distant, and what would wait for a device is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gradviz  # noqa: E402
from gradviz.events.values import packed_stats_of  # noqa: E402
from gradviz.sources.record import record  # noqa: E402
from gradviz.sources.torch_recorder import device_values, fetching, tensor_values  # noqa: E402
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
    monkeypatch.setattr(tensor_values, "is_distant", lambda value: True)
    monkeypatch.setattr(tensor_values, "array_of", None)


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
            found.append(("stats", [*known.stats]))
    return found


@pytest.mark.parametrize("grade", ["none", "stats", "full"])
def test_the_program_never_waits_for_the_device(distant: None, tmp_path: Path, grade: str) -> None:
    train()  # before 2.10 the first optimizer waits, as Dynamo is imported for it
    with Waits() as plain:
        train()
    with record(tmp_path / "run.gradviz", values=grade), Waits() as traced:
        train()
    waited = {name: traced.calls[name] - plain.calls[name] for name in WAITS}
    assert waited == dict.fromkeys(WAITS, 0)


def test_what_waits_is_fetched_in_one_copy(distant: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradviz.tracefile.writer.INTERVAL", 3600)  # nothing is written before the end
    for module in ("packing", "recorder"):
        monkeypatch.setattr(f"gradviz.tracefile.{module}.FEW", 10**6)
    before = fetching.FETCHER.copies
    with record(tmp_path / "run.gradviz") as running:
        train(20)
        assert fetching.FETCHER.copies - before <= 1
        running.recorder.flush()
        fetched = fetching.FETCHER.copies - before
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len(states(trace)) > 400
    assert 1 <= fetched <= 2


@pytest.mark.parametrize("grade", ["stats", "full"])
def test_what_comes_from_a_device_is_what_would_be_read_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grade: str
) -> None:
    with record(tmp_path / "here.gradviz", values=grade):
        train()
    monkeypatch.setattr(tensor_values, "is_distant", lambda value: True)
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
    "positive but for some": torch.arange(1.0, 9001).index_fill(0, torch.tensor([7, 8000]), INF),
    "negative but for some": (-torch.arange(1.0, 9001)).index_fill(0, torch.tensor([7, 8000]), NAN),
    "no numbers": torch.full((9000,), NAN),
    "half": torch.tensor([60000.0, 1.0] * 3000, dtype=torch.float16),
    "bfloat16": torch.linspace(-3e38, 3e38, 9000).bfloat16(),
    "eight bits": torch.linspace(-9, 9, 9000).to(torch.float8_e5m2),
    "whole": torch.arange(-5, 9000),
    "large whole": torch.arange(9000) * 2**50,
    "bytes": torch.arange(9000).to(torch.uint8),
    "true": torch.tensor([True, False] * 3000),
    "complex": torch.tensor([3 + 4j, 0j] * 3000),
    "transposed": torch.arange(1e4).view(10, 1000).t(),
    "a column": torch.arange(2e4).view(-1, 2)[:, 1],
    "expanded": torch.tensor([NAN, 0.0, 3.0] * 2000).expand(7, 6000),
}


def test_what_is_fetched_together_is_what_each_would_be_alone() -> None:
    def kept() -> list[Any]:
        return [device_values.statistics_of(tensor, device_values.Room()) for tensor in AWKWARD.values()]

    alone = [fetching.Fetcher().fetch([one])[0] for one in kept()]
    assert fetching.Fetcher().fetch(kept()) == alone
    assert fetching.Fetcher().fetch(kept()[::-1]) == alone[::-1]


@pytest.mark.parametrize("room", [device_values.COPIES, 0], ids=["with room", "in blocks"])
@pytest.mark.parametrize("name", AWKWARD)
def test_a_device_without_float64_computes_the_same_statistics(name: str, room: int) -> None:
    tensor = AWKWARD[name]
    plain = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float8_e5m2) else tensor
    expected = np.frombuffer(packed_stats_of(plain.numpy()))
    copies = device_values.Room()
    copies.limit = room
    with NoDoubles():
        kept = device_values.statistics_of(tensor, copies)
    (data,) = fetching.Fetcher().fetch([kept])
    assert data is not None
    numbers = np.frombuffer(data)
    scale = max(abs(expected[:4][np.isfinite(expected[:4])]), default=0.0)
    assert numbers[4:] == pytest.approx(expected[4:], rel=0, abs=0)
    assert numbers[:4] == pytest.approx(expected[:4], rel=1e-6, abs=1e-6 * scale, nan_ok=True)
    del kept
    assert copies.taken == 0
