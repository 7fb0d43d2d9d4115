"""What the recorder does on a device, under stand-ins on the CPU: a mode that counts what would be launched there, and
a `torch.cuda` that notes in which order streams and events are used."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import gradviz  # noqa: E402
from gradviz.events.kinds import Mutated  # noqa: E402
from gradviz.events.values import packed_stats_of  # noqa: E402
from gradviz.sources.torch_recorder import fetching, tensor_values  # noqa: E402
from gradviz.sources.torch_recorder.device_values import Room, statistics_of, whole_of  # noqa: E402
from tests.invoked import invoked  # noqa: E402

pytestmark = pytest.mark.torch
NAN = float("nan")
# Ops that launch nothing: views, and memory that is set aside.
NO_LAUNCH = set("view as_strided detach alias slice select expand empty empty_like split unsqueeze t".split())


class Launches(TorchDispatchMode):
    """Counts the ops that would launch a kernel, and the bytes that they allocate."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.allocated = 0
        self.dtypes: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name not in NO_LAUNCH:
            self.ops[name] += 1
            outputs = result if isinstance(result, (tuple, list)) else [result]
            given = {id(arg) for arg in args}
            fresh = [one for one in outputs if id(one) not in given]
            self.allocated += sum(one.nbytes for one in fresh)
            self.dtypes.update(one.dtype for one in fresh)
        return result


LARGE = {
    "float32": torch.ones(1_000_003),
    "with NaN": torch.full((1_000_003,), NAN),
    "bfloat16": torch.ones(1_000_003, dtype=torch.bfloat16),
    "float16": torch.ones(1_000_003, dtype=torch.float16),
    "on meta": torch.ones(1_000_003, device="meta"),
    "half on meta": torch.ones(1_000_003, device="meta", dtype=torch.float16),
    "transposed": torch.ones(1000, 1001).t(),
    "expanded": torch.ones(1, 1_000_003).expand(9, -1),
}


@pytest.mark.parametrize("name", LARGE)
def test_statistics_take_one_launch_and_no_more_memory_than_the_tensor(name: str) -> None:
    with Launches() as launches:
        statistics_of(LARGE[name], Room())
    assert launches.ops == {"clone": 1}
    assert launches.allocated <= LARGE[name].untyped_storage().nbytes()
    assert torch.float64 not in launches.dtypes


def test_a_tensor_whose_elements_lie_apart_is_put_together_once() -> None:
    tensor = torch.ones(1000, 2000)[:, ::2]
    with Launches() as launches:
        statistics_of(tensor, Room())
    assert launches.ops == {"clone": 1}


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64])
def test_other_numbers_take_one_launch_too(kind: Any) -> None:
    tensor = torch.ones(1_000_003).to(kind)
    with Launches() as launches:
        statistics_of(tensor, Room())
    assert launches.ops.total() == 1, launches.ops
    assert launches.allocated <= max(tensor.nbytes, 4 * tensor.numel())
    assert torch.float64 not in launches.dtypes


def test_copies_that_wait_are_reduced_together() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(5000 + 100 * n, dtype=dtype) for n in range(20) for dtype in (torch.float32, torch.half)]
    tensors += [torch.arange(n, 9000 + n) * 2**40 for n in range(5)]
    kept = [statistics_of(tensor, Room()) for tensor in tensors]
    with Launches() as launches:
        found = fetching.Fetcher().fetch(kept)
    assert launches.ops.total() < len(tensors), launches.ops
    for tensor, data in zip(tensors, found, strict=True):
        assert data is not None
        expected = np.frombuffer(packed_stats_of(tensor.numpy()))
        assert np.frombuffer(data) == pytest.approx(expected, rel=1e-5, abs=1e-5 * abs(expected[1]))


@pytest.mark.parametrize("most", [1, 30_000, 1 << 20])
def test_no_more_is_reduced_at_once_than_fits(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(fetching, "PIECE", most)
    tensors = [torch.full((2048,), float(n)) for n in range(10)]
    found = fetching.Fetcher().fetch([statistics_of(tensor, Room()) for tensor in tensors])
    assert [np.frombuffer(data or b"")[:3].tolist() for data in found] == [[n, n, n] for n in range(10)]


def test_a_small_tensor_takes_one_launch() -> None:
    tensor = torch.ones(30, 30)
    with Launches() as launches:
        statistics_of(tensor, Room())
    assert launches.ops == {"clone": 1}


def test_copies_take_no_more_than_their_room_and_blocks_no_more_than_the_tensor() -> None:
    room = Room()
    room.limit = 10_000_000
    tensors = [torch.ones(1_000_000) for _ in range(5)]
    kept = [statistics_of(tensor, room) for tensor in tensors[:2]]
    assert room.taken == 8_000_000
    with Launches() as launches:
        kept += [statistics_of(tensor, room) for tensor in tensors[2:]]
    assert room.taken == 8_000_000
    assert launches.ops["nan_to_num_"] > 0
    del kept
    assert room.taken == 0


# --- a device with streams


class Late(Exception):
    """Memory was read before its event was reached."""


class FakeStream:
    def __init__(self, cuda: FakeCuda, name: str) -> None:
        self.cuda, self.name = cuda, name

    def wait_event(self, event: FakeEvent) -> None:
        assert event.stream is not None
        self.cuda.note(f"{self.name} waits for {event.stream.name}")


class FakeEvent:
    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.stream: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        self.stream = stream
        self.cuda.note(f"event on {stream.name}")

    def synchronize(self) -> None:
        assert self.stream is not None, "an event that nobody recorded"
        self.cuda.note(f"synchronized with {self.stream.name}")
        self.cuda.land()


class FakeCuda:
    """Streams and events of a device that stand for those of `torch.cuda`. A `non_blocking` copy lands when the event
    behind it is waited for; until then its target holds other bytes."""

    def __init__(self) -> None:
        self.program = FakeStream(self, "program")
        self.notes: list[str] = []
        self.threads: set[int] = set()
        self.capturing = False
        self.landing: list[tuple[Any, Any]] = []
        self.free = 100 << 30

    def note(self, text: str) -> None:
        assert not self.capturing, f"{text}, while a stream is captured"
        self.notes.append(text)
        self.threads.add(threading.get_ident())

    def land(self) -> None:
        for target, source in self.landing:
            target.numpy()[...] = source.numpy()
        self.landing.clear()

    def Stream(self, device: Any) -> FakeStream:
        return FakeStream(self, "ours")

    def Event(self) -> FakeEvent:
        return FakeEvent(self)

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        self.note(f"on {stream.name}")
        yield

    def current_stream(self, device: Any) -> FakeStream:
        return self.program

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def mem_get_info(self, device: Any) -> tuple[int, int]:
        return self.free, 100 << 30


class CopiesLate(TorchDispatchMode):
    """A `non_blocking` copy is put off."""

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self.cuda = cuda

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name == "aten::copy_" and len(args) > 2 and args[2]:
            self.cuda.note("copy")
            self.cuda.landing.append((args[0], args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Every tensor is on a device with streams."""
    fake = FakeCuda()
    empty = torch.empty
    monkeypatch.setattr(tensor_values, "is_distant", lambda value: True)
    monkeypatch.setattr(tensor_values.READER, "small", {})
    monkeypatch.setattr(tensor_values.FETCHER, "rooms", {})
    monkeypatch.setattr(tensor_values.FETCHER, "_lines", {})
    for module in (tensor_values, fetching):
        monkeypatch.setattr(module, "streams_of", lambda device: fake)
    monkeypatch.setattr(torch, "empty", lambda *size, pin_memory=False, **settings: empty(*size, **settings).fill_(85))
    return fake


def kept(tensor: Any, whole: bool) -> Any:
    return tensor_values.READER._keep_distant(tensor, whole).kept


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_fetched_is_computed_copied_and_read_in_this_order(cuda: FakeCuda, whole: bool) -> None:
    tensor = torch.arange(5000.0)
    waiting = kept(tensor, whole)
    assert cuda.notes == []  # the program's thread neither waits nor records
    with CopiesLate(cuda):
        (data,) = fetching.Fetcher().fetch([waiting])
    assert cuda.notes == [
        "event on program", "ours waits for program", "on ours", "copy", "event on ours", "synchronized with ours",
    ]  # fmt: skip
    expected = tensor.numpy().tobytes() if whole else packed_stats_of(tensor.numpy())
    assert data is not None
    assert np.frombuffer(data, np.float32 if whole else np.float64) == pytest.approx(
        np.frombuffer(expected, np.float32 if whole else np.float64), rel=1e-6
    )


def test_a_large_value_comes_in_pieces_through_one_pinned_buffer(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "PIECE", 1 << 20)
    tensor = torch.arange(1_000_000.0)
    fetcher = fetching.Fetcher()
    with CopiesLate(cuda):
        (data,) = fetcher.fetch([kept(tensor, True)])
    assert data == tensor.numpy().tobytes()
    (line,) = fetcher._lines.values()
    assert line.pinned is not None
    assert line.pinned.nbytes == 1 << 20
    assert cuda.notes.count("copy") == 4


def test_only_the_writers_thread_waits(cuda: FakeCuda, tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        tensor = torch.randn(100, 100, requires_grad=True)
        for _ in range(20):
            (tensor * 2).sum().backward()
        own = threading.get_ident()
        assert own not in cuda.threads
    assert "synchronized with ours" in cuda.notes


def test_the_program_goes_on_while_the_writer_waits_for_the_device(cuda: FakeCuda, tmp_path: Path) -> None:
    free: list[bool] = []
    land = cuda.land
    with gradviz.record(tmp_path / "run.gradviz") as running:
        lock = running.recorder.lock

        def landed() -> None:
            free.append(lock.acquire(blocking=False))
            if free[-1]:
                lock.release()
            land()

        cuda.land = landed  # type: ignore[method-assign]
        (torch.ones(70, 70, requires_grad=True) * 2).sum().backward()
        running.recorder.flush()
    assert free
    assert all(free)


def test_nothing_of_ours_runs_while_a_stream_is_captured(cuda: FakeCuda) -> None:
    cuda.capturing = True
    tensor = torch.ones(5000)
    with Launches() as launches:
        assert tensor_values.READER._keep_distant(tensor, False) is None
        assert tensor_values.READER._keep_distant(tensor, True) is None
    assert not launches.ops


def test_the_writer_leaves_the_device_alone_until_a_capture_has_ended(cuda: FakeCuda) -> None:
    fetcher = fetching.Fetcher()
    waiting = [kept(torch.ones(5000), False)]
    found: list[Any] = []
    fetcher.leave_alone()
    thread = threading.Thread(target=lambda: found.extend(fetcher.fetch(waiting)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    assert cuda.notes == []
    fetcher.use_again()
    thread.join(30)
    assert len(found) == 1


@pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch's own CUDAGraph is not to be stood in for")
def test_what_a_captured_region_and_its_replay_wrote_over_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("capture_begin", "capture_end", "replay"):
        monkeypatch.setattr(torch.cuda.CUDAGraph, name, lambda self: None)
    monkeypatch.setattr(torch.cuda.CUDAGraph, "__new__", lambda cls: object.__new__(cls))
    monkeypatch.setattr(torch.cuda.CUDAGraph, "__init__", lambda self: None)
    graph = torch.cuda.CUDAGraph()
    with gradviz.record(tmp_path / "run.gradviz"):
        total, other = torch.zeros(3), torch.ones(3)
        before = total + other
        graph.capture_begin()
        total.add_(other * 2)
        graph.capture_end()
        graph.replay()
        after = total + before
    assert after.tolist() == [3.0, 3.0, 3.0]
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        events = [trace.event(at) for at in range(len(trace))]
    assert [event.how for event in events if isinstance(event, Mutated)] == ["captured", "replay"]


def test_a_lack_of_device_memory_is_no_value_and_nothing_that_the_program_sees(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(tensor_values, "statistics_of", fail)
    before = tensor_values.FETCHER.left_out
    with gradviz.record(tmp_path / "run.gradviz"):
        doubled = torch.ones(5000) * 2
    assert doubled.sum() == 10_000
    assert tensor_values.FETCHER.left_out == before + 2
    shown = " ".join(invoked(["info", str(tmp_path / "run.gradviz")]).stdout.split())
    assert "at least 2 missing for lack of device memory" in shown


def test_a_lack_of_memory_while_fetching_leaves_the_trace_sound(
    cuda: FakeCuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with gradviz.record(tmp_path / "run.gradviz"):
        monkeypatch.setattr(fetching.Fetcher, "_read", fail)
        (torch.ones(70, 70, requires_grad=True) * 2).sum().backward()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len(trace) > 3
        kept = [trace.states.snapshot(row, row) for row in range(len(trace.states))]
        assert len(kept) > 3
        assert all(one is None or (one.stats is None and one.array is None) for one in kept)


def test_copies_give_way_where_the_device_is_nearly_full(cuda: FakeCuda) -> None:
    cuda.free = 1600
    fetcher = fetching.Fetcher()
    waiting = kept(torch.ones(5000), False)
    fetcher.fetch([waiting])
    assert fetcher.room(waiting.device).limit == 100


def test_what_is_fetched_is_held_until_it_has_been_read(cuda: FakeCuda) -> None:
    held = []
    waiting = whole_of(torch.ones(5000))
    waiting.stream = cuda.program
    land = cuda.land

    def landed() -> None:
        held.append(waiting.parts[0].numel())
        land()

    cuda.land = landed  # type: ignore[method-assign]
    with CopiesLate(cuda):
        fetching.Fetcher().fetch([waiting])
    assert held == [5000]
