"""What repeats in a recording is kept once, and is read as it was told."""

from __future__ import annotations

import sqlite3
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradviz
import gradviz.engine as torch
from gradviz.events.kinds import Kind, TensorMade
from gradviz.tracefile.chunks import Squeezer, alike, period_of
from gradviz.tracefile.expected import (
    AS_IS,
    LONGEST,
    NUMBER,
    REARRANGED,
    UNEXPECTED,
    expanded,
    header_of,
    rearranged,
    unexpected,
)

numbers = st.lists(st.integers(0, 2**32 - 1), max_size=60).map(lambda found: np.array(found, NUMBER))


@given(
    before=numbers, array=numbers, period=st.integers(0, 70), columns=st.integers(0, 7), forgotten=st.integers(0, 60)
)
def test_any_numbers_are_read_as_they_were(
    before: np.ndarray, array: np.ndarray, period: int, columns: int, forgotten: int
) -> None:
    kept = unexpected(before[forgotten:], array.tobytes(), period, columns)
    assert expanded(kept, before) == array.tobytes()  # whoever reads it may know more


def test_numbers_that_look_at_others_need_them() -> None:
    array = np.arange(40, dtype=NUMBER)
    kept = unexpected(array[:20], array[20:].tobytes(), 3)
    with pytest.raises(ValueError, match="follows from numbers that are missing"):
        expanded(kept, array[:5])


@given(
    period=st.integers(1, 9), start=st.integers(0, 2**32 - 1), growth=st.integers(0, 2**32 - 1), cut=st.integers(0, 200)
)
def test_numbers_that_grow_from_period_to_period_take_no_room(period: int, start: int, growth: int, cut: int) -> None:
    places = np.arange(200)
    array = (start + places % period * 1001 + places // period * growth).astype(NUMBER)
    before, after = array[:cut], array[cut:]
    kept = unexpected(before, after.tobytes(), period)
    assert expanded(kept, before) == after.tobytes()
    if cut >= 2 * period and len(after):
        assert header_of(kept).unexpected == 0


@given(data=st.binary(max_size=300), period=st.integers(0, 310))
def test_any_values_are_read_as_they_were(data: bytes, period: int) -> None:
    assert expanded(rearranged([data[:7], data[7:]], period)) == data


def test_values_that_change_little_are_packed_across_periods() -> None:
    weights = 1 + np.cumsum(np.full((200, 16), 1e-3, np.float32), axis=0)
    data = weights.tobytes()
    kept = rearranged([data], weights[0].nbytes)
    assert header_of(kept).how == REARRANGED
    assert len(kept) < len(data) / 2


def test_numbers_that_do_not_repeat_are_kept_as_they_are() -> None:
    array = np.random.default_rng(0).integers(0, 2**32, 400, NUMBER)
    for columns in (0, 7):
        kept = unexpected(np.zeros(0, NUMBER), array.tobytes(), 7, columns)
        assert header_of(kept).how == AS_IS
        assert expanded(kept) == array.tobytes()


def test_the_rows_that_a_group_begins_with_are_packed_by_columns() -> None:
    """Nothing before them lets expect them."""
    squeezer = Squeezer()
    whole = rows_of(list(range(1, 100)) * 80)
    whole[:, 1:] = whole[:, :1] * np.arange(1, 7, dtype=NUMBER)
    for number, begin in enumerate(range(0, len(whole), 110), 1):
        rows = whole[begin : begin + 110]
        kept = squeezer.chunk(number, begin + len(rows), rows.tobytes(), b"", b"", [])
        if squeezer.group > 1:
            break
    assert squeezer.period == 99
    assert header_of(kept.events).how == REARRANGED
    assert len(kept.events) < rows.nbytes / 4
    assert expanded(kept.events) == rows.tobytes()


HEADER = struct.Struct("<5I")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEADER.pack(AS_IS, 0, 0, 0, 0)[:-1],
        HEADER.pack(3, 1, 4, 0, 0),
        HEADER.pack(UNEXPECTED, 0, 4, 0, 0),
        HEADER.pack(UNEXPECTED, 1, LONGEST + 4, 0, 0),
        HEADER.pack(UNEXPECTED, LONGEST + 1, 4, 0, 0),
        HEADER.pack(UNEXPECTED, 1, 5, 0, 0),
        HEADER.pack(UNEXPECTED, 1, 4, 2, 0) + b"no zlib",
        HEADER.pack(UNEXPECTED, 1, 8, 1, 0) + b"no zlib",
        HEADER.pack(REARRANGED, 1, 8, 0, 0) + b"no zlib",
    ],
)  # fmt: skip
def test_what_is_damaged_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="array"):
        expanded(data)


def test_an_array_that_lies_about_its_length_is_refused() -> None:
    kept = unexpected(np.zeros(0, NUMBER), np.arange(100, dtype=NUMBER).tobytes(), 1)
    how, period, length, count, _ = HEADER.unpack_from(kept)
    with pytest.raises(ValueError, match="behind the end"):
        expanded(HEADER.pack(how, period, 4, count, 0) + kept[HEADER.size :])
    with pytest.raises(ValueError, match="shorter"):
        expanded(HEADER.pack(how, period, length, count + 1, 0) + kept[HEADER.size :])


def rows_of(kinds: list[int]) -> np.ndarray:
    """Rows of events of these kinds."""
    rows = np.zeros((len(kinds), 7), NUMBER)
    rows[:, 0] = kinds
    return rows


def test_the_period_is_the_shortest_after_which_the_events_come_again() -> None:
    kinds = [1, 2, 2, 3, 1, 2, 5] * 40
    assert period_of(rows_of(kinds)) == 7
    assert period_of(rows_of([9, 9, 8, *kinds, 4])) == 7  # also if they begin and end otherwise
    assert period_of(rows_of([1] * 50)) == 1
    assert alike(rows_of(kinds), 7) == 1


def test_events_that_do_not_come_again_have_no_period() -> None:
    kinds = np.random.default_rng(0).integers(0, 40, 500).tolist()
    assert period_of(rows_of(kinds)) == 0
    assert period_of(rows_of([])) == 0


def test_a_period_that_the_first_chunk_does_not_have_is_found_soon() -> None:
    squeezer = Squeezer()
    chunks = [rows_of([9, 8, 7, 6]), *[rows_of([1, 2, 2, 3, 1, 2, 5] * 40)] * 3]
    periods, end = [], 0
    for number, rows in enumerate(chunks, 1):
        end += len(rows)
        squeezer.chunk(number, end, rows.tobytes(), b"", b"", [])
        periods.append(squeezer.period)
    assert periods == [0, 7, 7, 7]


def test_a_longer_period_is_found_if_the_short_one_is_broken_now_and_then() -> None:
    step, other = [1, 2, 2, 3, 1, 2, 5], [1, 2, 2, 3, *[4] * 40, 1, 2, 5]
    cycle = [*step * 49, *other]  # each 50th step is recorded in detail
    whole = rows_of(cycle * 60)
    squeezer, periods = Squeezer(), []
    for number, begin in enumerate(range(0, len(whole), 500), 1):
        rows = whole[begin : begin + 500]
        kept = squeezer.chunk(number, begin + len(rows), rows.tobytes(), b"", b"", [])
        periods.append(squeezer.period)
    assert 7 in periods
    assert periods[-1] == len(cycle)
    assert header_of(kept.events).unexpected == 0


TRAINING = """
import gradviz.engine as torch
from gradviz.engine import nn

net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
x, y = torch.randn(16, 8), torch.randn(16, 1)
for step in range(STEPS):
    loss = ((net(x) - y) ** 2).mean()
    if step % 50 == 49:
        print(loss.item(), x.abs().max())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def recorded(path: Path, steps: int) -> Path:
    """The trace of a small training loop."""
    with gradviz.record(path):
        exec(TRAINING.replace("STEPS", str(steps)), {})
    return path


def blobs(path: Path, table: str) -> list[Any]:
    """How the arrays of a kind are kept."""
    with sqlite3.connect(path) as connection:
        return [header_of(data).how for (data,) in connection.execute(f"SELECT data FROM {table} ORDER BY chunk")]


@pytest.mark.slow
def test_a_pass_of_a_small_network_takes_less_than_800_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradviz.tracefile.writer.INTERVAL", 2)  # chunks as large as those on a machine that is free
    short, long = recorded(tmp_path / "short.gradviz", 1000), recorded(tmp_path / "long.gradviz", 5000)
    grown = long.stat().st_size - short.stat().st_size
    assert grown / 4000 < 800
    for table, how in (("events", UNEXPECTED), ("links", UNEXPECTED), ("states", UNEXPECTED), ("payloads", REARRANGED)):
        assert how in blobs(long, table), table


@pytest.mark.slow
def test_a_chunk_is_read_as_it_was_told_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[bytes, ...]] = []
    squeeze = Squeezer.chunk

    def told_first(squeezer: Squeezer, number: int, end: int, *arrays: Any) -> Any:
        told.append((*arrays[:-1], b"".join(arrays[-1])))
        return squeeze(squeezer, number, end, *arrays)

    monkeypatch.setattr(Squeezer, "chunk", told_first)
    monkeypatch.setattr("gradviz.tracefile.chunks.GROUP", 3)
    monkeypatch.setattr("gradviz.tracefile.writer.INTERVAL", 2)  # chunks of several periods on a busy machine, too
    path = recorded(tmp_path / "run.gradviz", 300)
    assert UNEXPECTED in blobs(path, "events")
    for whole_first in (True, False):
        with gradviz.open(path) as trace:
            for at, table in enumerate(("events", "links", "states")):
                expected = [arrays[at] for arrays in told]
                if whole_first:
                    assert [part.tobytes() for part in trace.chunks.each(table)] == expected
                for place in reversed(range(len(told))):
                    assert trace.chunks.one(table, place).tobytes() == expected[place]
            for place, (*_, payload) in enumerate(told):
                assert trace.chunks.values(place) == payload
                if len(payload) >= 8:
                    assert trace.chunks.value(place, 3, 5) == payload[3:8]
                assert trace.chunks.sizes()[place] == len(payload)


patterns = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=6)


@given(st.lists(st.tuples(patterns, st.integers(1, 30)), min_size=1, max_size=8))
def test_chunks_of_any_repetitions_are_read_as_they_were(told: list[tuple[list[Any], int]]) -> None:
    """Of each chunk: what repeats (the kind, how many links and how many states of each event), and how often."""
    squeezer, end, kept, expected = Squeezer(), 0, [], []
    for number, (pattern, times) in enumerate(told, 1):
        events = np.array(pattern * times)
        first, end = end, end + len(events)
        rows = np.zeros((len(events), 7), NUMBER)
        rows[:, 0], rows[:, 6] = events[:, 0], events[:, 1]
        rows[:, 2] = np.arange(first, end) * 3
        links = np.arange(events[:, 1].sum(), dtype=NUMBER) * 5
        states = np.zeros((events[:, 2].sum(), 7), NUMBER)
        states[:, 6] = np.repeat(np.arange(first, end), events[:, 2])
        states[:, 0], states[:, 5] = np.arange(len(states)) * 7, 4
        values = [bytes(4)] * len(states)
        arrays = rows.tobytes(), links.tobytes(), states.tobytes()
        kept.append(squeezer.chunk(number, end, *arrays, values))
        expected.append((*arrays, b"".join(values)))
    for at in range(3):
        before = np.zeros(0, NUMBER)
        for one, arrays in zip(kept, expected, strict=True):
            assert expanded(one[at], before) == arrays[at]
            before = np.concatenate([before, np.frombuffer(arrays[at], NUMBER)])
    for one, arrays in zip(kept, expected, strict=True):
        assert expanded(one.payloads) == arrays[3]


def test_large_values_are_squeezed_without_a_copy_of_them() -> None:
    values = [bytes([at]) * (1 << 20 if at % 3 else 5) for at in range(7)]
    rows = np.zeros((1, 7), NUMBER)
    tracemalloc.start()
    try:
        kept = Squeezer().chunk(1, 1, rows.tobytes(), b"", b"", values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert expanded(b"".join(kept.payloads)) == b"".join(values)


def test_large_values_are_read_as_they_were(tmp_path: Path) -> None:
    arrays = [np.random.default_rng(at).standard_normal((300, 200 + at)) for at in range(3)]
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        for array in arrays:
            torch.tensor(array, requires_grad=True)
    assert AS_IS in blobs(tmp_path / "run.gradviz", "payloads")
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        made = [trace.event(event) for event in trace.indices(Kind.TENSOR).tolist()]
        kept = [trace.snapshot(event.tensor, event.index) for event in made if isinstance(event, TensorMade)]
    assert [value.array.tolist() for value in kept if value is not None and value.array is not None] == [
        array.tolist() for array in arrays
    ]
