"""The events of a run, and the file they are kept in."""

from __future__ import annotations

import gc
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import gradviz.engine as torch
from gradviz.engine.core import watched
from gradviz.engine.nn import functional
from gradviz.events import kinds as k
from gradviz.events.values import (
    Stats,
    packed_stats_of,
    packed_stats_of_each,
    stats_of,
    stats_table,
    unpack_stats,
)  # fmt: skip
from gradviz.sources.record import record
from gradviz.tracefile import Trace, TraceError, open_trace, packing
from gradviz.tracefile.batch import Renumbered
from gradviz.tracefile.recorder import Recorder
from gradviz.tracefile.writer import PAYLOAD_LIMIT


def recorded(path: Path, **settings: object) -> record:
    return record(path / "run.gradviz", **settings)


def events(path: Path) -> list[k.Event]:
    with open_trace(path / "run.gradviz") as trace:
        return list(trace)


def kinds(found: list[k.Event]) -> list[str]:
    return [type(event).__name__ for event in found]


def test_a_run_is_told_event_by_event(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.tensor(5.0, requires_grad=True)
        y = x**3
        z = torch.log(y)
        z.backward()
    found = events(tmp_path)
    assert kinds(found) == [
        "TensorMade", "OpRan", "NodeMade", "OpRan", "NodeMade", "TensorMade", "PassBegan", "Received", "Produced",
        "Received", "Produced", "Received", "Accumulated", "PassEnded",
    ]  # fmt: skip
    x, power, made, log, made_by_log = found[:5]
    assert (power.op, power.args, power.inputs) == ("pow", "exponent=3", (x.tensor,))
    assert (made.grad_fn, made.op, made.outputs) == ("PowBackward0", power.index, power.outputs)
    assert made.saved == ((x.tensor, 0),)
    assert log.inputs == power.outputs
    assert made_by_log.edges == ((made.node, 0, power.outputs[0]),)
    assert found[7].node == made_by_log.node
    assert found[8].flows == ((made.node, found[9].gradients[0]),)
    assert {event.in_pass for event in found[7:13]} == {1}


def test_every_value_is_there_at_its_moment(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(2):
            (x * 3).sum().backward()
        x.grad.zero_()
    with open_trace(tmp_path / "run.gradviz") as trace:
        accumulated = [event for event in trace if isinstance(event, k.Accumulated)]
        grad = accumulated[0].grad
        assert accumulated[1].grad == grad
        values = [trace.snapshot(grad, event.index).array.tolist() for event in accumulated]
        assert values == [[3.0, 3.0], [6.0, 6.0]]
        assert trace.snapshot(grad).array.tolist() == [0.0, 0.0]
        assert trace.snapshot(accumulated[0].tensor).array.tolist() == [1.0, 2.0]


def test_places_are_exact_and_results_have_names(tmp_path: Path) -> None:
    def model(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    with recorded(tmp_path):
        x = torch.ones(2, requires_grad=True)
        y = model(x)
        loss = (y + 1).sum()
    assert loss.requires_grad
    with open_trace(tmp_path / "run.gradviz") as trace:
        double = trace.event(1)
        site = trace.sites[double.site]
        line = trace.source(site.place.file)[site.place.line - 1]
        assert line[site.place.col : site.place.end_col] == "t * 2"
        assert site.names == ("y",)
        assert site.place.function.endswith("model")
        caller = trace.sites[site.parent].place
        line = trace.source(caller.file)[caller.line - 1]
        assert line[caller.col : caller.end_col] == "model(x)"
        ops = [event for event in trace if isinstance(event, k.OpRan)]
        assert [trace.sites[event.site].names for event in ops] == [("y",), (), ("loss",)]


def test_an_in_place_op_says_what_it_wrote_over(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.add_(1)
    *_, added, node = events(tmp_path)
    with open_trace(tmp_path / "run.gradviz") as trace:
        (tensor,) = added.outputs
        assert (added.op, added.inputs) == ("add_", (tensor, 0))
        assert (node.grad_fn, node.outputs) == ("AddBackward0", (tensor,))
        assert [trace.snapshot(tensor, at).version for at in (added.index - 1, added.index)] == [0, 1]
        assert [trace.snapshot(tensor, at).array.tolist() for at in (added.index - 1, added.index)] == [
            [2.0, 2.0],
            [3.0, 3.0],
        ]


def test_hooks_and_retained_gradients_are_told(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.ones(1, requires_grad=True)
        y = x * 2
        y.register_hook(lambda g: g * 10)
        y.retain_grad()
        y.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        (hooked,) = [event for event in trace if isinstance(event, k.Hooked)]
        (retained,) = [event for event in trace if isinstance(event, k.Retained)]
        assert trace.snapshot(hooked.before).array.tolist() == [1.0]
        assert trace.snapshot(hooked.after).array.tolist() == [10.0]
        assert trace.snapshot(retained.grad).array.tolist() == [10.0]
        assert x.grad.tolist() == [20.0]


def test_forward_mode_is_told(tmp_path: Path) -> None:
    from gradviz.engine.autograd import forward_ad as fwd

    with recorded(tmp_path), fwd.dual_level():
        x = fwd.make_dual(torch.tensor(2.0), torch.tensor(1.0))
        torch.sin(x * x)
    with open_trace(tmp_path / "run.gradviz") as trace:
        tangents = [event for event in trace if isinstance(event, k.TangentPushed)]
        assert [event.how for event in tangents] == ["make_dual", "mul", "sin"]
        assert trace.snapshot(tangents[1].tangent).array.item() == 4.0


def test_create_graph_tells_the_ops_of_the_backward_too(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.tensor(2.0, requires_grad=True)
        (g,) = torch.autograd.grad(x**3, x, create_graph=True)
        g.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        first, second = trace.passes
        inner = [event for event in trace if isinstance(event, k.OpRan) and first.first < event.index < first.last]
        assert inner
        assert second.nodes > first.nodes


def test_passes_of_one_structure_have_one_digest(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.ones(2, requires_grad=True)
        for step in range(6):
            y = x * step if step % 3 else torch.sin(x)
            y.sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        digests = [run.digest for run in trace.passes]
    assert len(set(digests)) == 2
    assert digests[0] == digests[3]
    assert digests[1] == digests[2] == digests[4]


def test_digests_of_two_runs_compare(tmp_path: Path) -> None:
    def program(first: bool) -> None:
        if not first:
            torch.ones(3) * 2
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()

    digests = []
    for first in (True, False):
        with record(tmp_path / f"{first}.gradviz"):
            program(first)
        with open_trace(tmp_path / f"{first}.gradviz") as trace:
            digests += [run.digest for run in trace.passes]
    assert digests[0] == digests[1]


def test_tensors_from_before_the_recording_are_introduced(tmp_path: Path) -> None:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    for name in ("a", "b"):
        with record(tmp_path / f"{name}.gradviz"):
            (y * 3).sum().backward(retain_graph=True)
        with open_trace(tmp_path / f"{name}.gradviz") as trace:
            first = trace.event(0)
            assert isinstance(first, k.TensorMade)
            assert first.how == "earlier"
            (leaf,) = [event for event in trace if isinstance(event, k.Accumulated)]
            assert trace.snapshot(leaf.tensor).array.tolist() == [1.0, 1.0]


def test_only_the_passes_asked_for_are_recorded_in_detail(tmp_path: Path) -> None:
    with recorded(tmp_path, passes={2}):
        x = torch.ones(2, requires_grad=True)
        for _ in range(3):
            (x * 2).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert [run.recorded for run in trace.passes] == [0, 1, 0]
        received = [event.index for event in trace if isinstance(event, k.Received)]
        second = trace.passes[1]
        assert received
        assert all(second.first < index < second.last for index in received)
        accumulated = [event for event in trace if isinstance(event, k.Accumulated)]
        grads = [trace.snapshot(event.grad, event.index) for event in accumulated]
        assert [grad.shape for grad in grads] == [(2,)] * 3
        assert [None if grad.array is None else grad.array.tolist() for grad in grads] == [None, [4.0, 4.0], None]


def test_ops_that_a_backward_runs_in_grad_mode_are_told_with_their_pass(tmp_path: Path) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                inside = torch.ones(3, requires_grad=True)
                (inside * inside).sin().sum()
            return 2 * gradient

    with recorded(tmp_path):
        Twice.apply(torch.ones(3, requires_grad=True)).sum().backward()
        torch.ones(3).cos()
    ran = {event.op: event.in_pass for event in events(tmp_path) if isinstance(event, k.OpRan)}
    assert ran == {"mul": 1, "sin": 1, "sum": 1, "Twice": 0, "cos": 0}


def test_a_leaf_that_cannot_take_in_its_gradient_has_received_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(watched, "accumulate", fail)
    with recorded(tmp_path), pytest.raises(MemoryError):
        torch.ones(3, requires_grad=True).sum().backward()
    found = events(tmp_path)
    (failed,) = [event for event in found if isinstance(event, k.ErrorRaised)]
    assert [event.grad_fn for event in found if isinstance(event, k.Received)] == ["SumBackward0", "AccumulateGrad"]
    assert failed.node == [event.node for event in found if isinstance(event, k.Received)][-1]


def test_of_other_passes_no_values_are_kept_but_those_that_the_first_finds(tmp_path: Path) -> None:
    w = torch.full((100,), 2.0, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    with recorded(tmp_path, passes={3}):
        x = torch.arange(100.0)
        for _ in range(4):
            optimizer.zero_grad()
            (w * x).sum().backward()
            optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        steps = [trace.snapshot(w._number, event.index) for event in trace if isinstance(event, k.Mutated)]
        assert trace.snapshot(x._number).stats.max == 99.0
        # What pass 3 begins with, and what the optimizer made of it.
        assert [step.stats is not None for step in steps] == [False, True, True, False]


@pytest.mark.parametrize(("values", "small", "large"), [("none", 0, 0), ("stats", 1, 2), ("full", 1, 1)])
def test_values_are_kept_in_three_grades(tmp_path: Path, values: str, small: int, large: int) -> None:
    with recorded(tmp_path, values=values):
        a = torch.ones(3)
        b = torch.linspace(-1, 1, 1000)
        c = torch.linspace(-1, 1, 10_000)
    with open_trace(tmp_path / "run.gradviz") as trace:
        for tensor, kept in zip((a, b, c), (small, large, large), strict=True):
            snapshot = trace.snapshot(tensor._number)
            assert snapshot.shape == tensor.shape
            assert (snapshot.array is not None) == (kept == 1)
            assert (snapshot.stats is not None) == (kept > 0)
            if kept:
                assert snapshot.stats.max == pytest.approx(tensor.array.max())


def test_what_an_optimizer_writes_waits_in_memory_no_more_than_what_an_op_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    take = Recorder.take
    monkeypatch.setattr(Recorder, "take", lambda self: held.append(self.batch.bytes) or take(self))
    parameters = [torch.ones(1 << 18, requires_grad=True) for _ in range(12)]  # a megabyte each
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with record(tmp_path / "run.gradviz", values="full"):
        sum(each.sum() for each in parameters).backward()
        optimizer.step()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len([event for event in trace if isinstance(event, k.Mutated)]) == 12
    assert sum(held) > 12 << 20
    assert max(held) <= PAYLOAD_LIMIT + (1 << 20)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(arrays(np.float32, st.integers(1, 200), elements=st.floats(width=32)))
def test_statistics_are_those_of_the_finite_elements(array: np.ndarray) -> None:
    stats = stats_of(array)
    finite = array[np.isfinite(array)].astype(np.float64)
    assert stats.nan == np.isnan(array).sum()
    assert stats.inf == np.isinf(array).sum()
    assert stats.zeros == (array == 0).sum()
    if len(finite):
        assert (stats.min, stats.max) == (finite.min(), finite.max())
        np.testing.assert_allclose(stats.rms, np.sqrt(np.mean(finite**2)), rtol=1e-6)
        np.testing.assert_allclose(stats.mean, finite.mean(), rtol=1e-6, atol=1e-9 * np.abs(finite).max())
    else:
        assert np.isnan(stats.min)


_LARGE = np.random.default_rng(0).standard_normal(200_000)
_LARGE[::7] = 0
LARGE = {
    "ordinary": _LARGE,
    "far from zero": _LARGE + 1000,
    "squares overflow": _LARGE * 1e30,
    "squares vanish": _LARGE * 1e-30,
    "one is huge": np.where(np.arange(200_000) == 77, 1e30, _LARGE),
    "NaN and inf": np.where(np.arange(200_000) % 11, _LARGE, [np.nan, np.inf] * 100_000),
    "constant": np.full(200_000, 0.1),
    "zero": np.zeros(200_000),
    "nothing finite": np.full(200_000, np.nan),
}


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("order", ["flat", "transposed", "every second"])
def test_statistics_of_large_arrays_agree_with_exact_ones_to_four_digits(case: str, dtype: type, order: str) -> None:
    with np.errstate(over="ignore"):
        array = LARGE[case].astype(dtype)
    array = {"flat": array, "transposed": array.reshape(400, 500).T, "every second": array[::2]}[order]
    stats = stats_of(array)
    finite = array[np.isfinite(array)].astype(np.float64)
    counts = int(np.isnan(array).sum()), int(np.isinf(array).sum()), int((array == 0).sum())
    assert (stats.nan, stats.inf, stats.zeros) == counts
    if not len(finite):
        assert np.isnan([stats.min, stats.max, stats.mean, stats.rms]).all()
        return
    assert (stats.min, stats.max) == (finite.min(), finite.max())
    exact = finite.mean(), np.sqrt(np.mean(finite**2))
    np.testing.assert_allclose((stats.mean, stats.rms), exact, rtol=5e-5)


@pytest.mark.parametrize("size", [511, 512, 1024, 3000, 4096])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_statistics_of_middling_arrays_are_right_one_by_one_and_many_at_once(size: int, dtype: type) -> None:
    with np.errstate(over="ignore"):
        rows = np.stack([case[:size].astype(dtype) for case in LARGE.values()])
    together = packed_stats_of_each([(row.tobytes(), row.dtype) for row in rows])
    for row, packed in zip(rows, together, strict=True):
        stats = stats_of(row)
        np.testing.assert_allclose(tuple(unpack_stats(packed)), tuple(stats), rtol=1e-12)
        finite = row[np.isfinite(row)].astype(np.float64)
        counts = int(np.isnan(row).sum()), int(np.isinf(row).sum()), int((row == 0).sum())
        assert (stats.nan, stats.inf, stats.zeros) == counts
        if len(finite):
            assert (stats.min, stats.max) == (finite.min(), finite.max())
            exact = finite.mean(), np.sqrt(np.mean(finite**2))
            np.testing.assert_allclose((stats.mean, stats.rms), exact, rtol=5e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", ["ordinary", "far from zero", "one is huge", "NaN and inf", "constant", "zero"])
def test_statistics_of_several_blocks_are_those_of_all(case: str, dtype: type) -> None:
    array = np.concatenate([LARGE["constant"], LARGE["ordinary"], LARGE["ordinary"] + 3, LARGE[case]]).astype(dtype)
    stats = stats_of(array)
    finite = array[np.isfinite(array)].astype(np.float64)
    counts = int(np.isnan(array).sum()), int(np.isinf(array).sum()), int((array == 0).sum())
    assert (stats.nan, stats.inf, stats.zeros) == counts
    assert (stats.min, stats.max) == (finite.min(), finite.max())
    np.testing.assert_allclose((stats.mean, stats.rms), (finite.mean(), np.sqrt(np.mean(finite**2))), rtol=5e-5)


@pytest.mark.parametrize("left", [0, 3e-9, 1e-8, 3e-7, 1e-6, 3e-5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mean_near_zero_has_its_digits_unless_it_is_what_rounding_left(left: float, dtype: type) -> None:
    normalized = (_LARGE - _LARGE.mean()) / _LARGE.std()
    array = (normalized + left).astype(dtype)
    exact = array.astype(np.float64).mean()
    is_rounding = dtype is np.float32 and left < 2**-24
    tolerance = 2**-24 if is_rounding else max(5e-5 * abs(exact), 1e-15)
    assert abs(stats_of(array).mean - exact) <= tolerance


def test_the_elements_of_a_gradient_and_of_its_transpose_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, ...]] = []
    monkeypatch.setattr(packing, "packed_stats_of", lambda array: read.append(array.shape) or packed_stats_of(array))
    with recorded(tmp_path):
        x, w = torch.ones(2, 100), torch.ones(60, 100, requires_grad=True)
        (x @ w.t()).sum().backward()
    assert read == [(100, 60)]
    with open_trace(tmp_path / "run.gradviz") as trace:
        (event,) = (event for event in trace if isinstance(event, k.Accumulated))
        assert trace.snapshot(event.grad, event.index).stats.max == 2.0


def test_a_gradient_that_a_hook_wrote_over_is_read_again(tmp_path: Path) -> None:
    def write(grad: torch.Tensor) -> None:
        grad.numpy()[...] = 3.0

    with recorded(tmp_path):
        x, w = torch.ones(2, 100), torch.ones(60, 100, requires_grad=True)
        t = w.t()
        t.register_hook(write)
        (x @ t).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        (event,) = (event for event in trace if isinstance(event, k.Accumulated))
        assert trace.snapshot(event.grad, event.index).stats.max == 3.0


def test_statistics_survive_the_file() -> None:
    rows = np.array([[1.0, 0.0, 3.0], [np.nan, np.inf, 2.0]], np.float32)
    read = [unpack_stats(packed.tobytes()) for packed in stats_table(rows)]
    assert read == [stats_of(row) for row in rows]
    assert read[1] == Stats(2.0, 2.0, 2.0, 2.0, 1, 1, 0)


def test_an_exception_passes_through_and_is_noted(tmp_path: Path) -> None:
    def failing() -> None:
        with recorded(tmp_path):
            x = torch.tensor(1.0, requires_grad=True)
            y = torch.exp(x)
            y.backward()
            y.backward()

    with pytest.raises(RuntimeError):
        failing()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert trace.meta["ended"] == "error"
        (error,) = trace.errors
        assert error.node == next(event.node for event in trace if isinstance(event, k.NodeMade))
        assert isinstance(trace.event(error.event), k.ErrorRaised)


def test_threads_are_told_apart(tmp_path: Path) -> None:
    together = threading.Barrier(3)

    def work() -> None:
        together.wait()
        for _ in range(200):
            x = torch.ones(2, requires_grad=True)
            (x * 2).sum().backward()
        together.wait()

    with recorded(tmp_path):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with open_trace(tmp_path / "run.gradviz") as trace:
        found = list(trace)
        assert len({event.thread for event in found}) == 3
        assert len(trace.passes) == 600
        assert len({run.digest for run in trace.passes}) == 1
        for run in trace.passes:
            own = {event.thread for event in found if getattr(event, "in_pass", 0) == run.number}
            assert own == {run.thread}


INTERRUPTED = """
import signal, sys
import gradviz.engine as torch
from gradviz.sources.record import record

def interrupt(*_):
    signal.setitimer(signal.ITIMER_REAL, 1)  # once more, but not before it is caught: a finalizer may swallow it
    raise KeyboardInterrupt

def differentiate(seconds):
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        while True:
            (x * c * c).backward(c)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)

signal.signal(signal.SIGALRM, interrupt)
x, c = torch.ones(4, requires_grad=True), torch.ones(4)
with record(sys.argv[1], values=sys.argv[2]):
    for i in range(100):
        torch.set_grad_enabled(True)
        differentiate(0.003 + i * 5e-5)
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that raises in the program")
@pytest.mark.parametrize("values", ["none", "stats"])
def test_an_event_that_ctrl_c_cuts_in_two_is_not_there(tmp_path: Path, values: str) -> None:
    path = tmp_path / "run.gradviz"
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(path), values], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    with open_trace(path) as trace:
        assert trace.count > 500
        for event in trace:
            if isinstance(event, k.OpRan):
                assert (event.op, len(event.inputs), len(event.outputs)) == ("mul", 2, 1)
                assert trace.shape(event.outputs[0]) == ((4,), "float32")
            elif isinstance(event, k.Received):
                assert len(event.gradients) == 1
            elif isinstance(event, k.Produced):
                assert len(event.flows) == 2


def test_recording_keeps_no_tensor_alive(tmp_path: Path) -> None:
    import weakref

    with recorded(tmp_path):
        x = torch.ones(2, requires_grad=True)
        y = torch.exp(x)
        y.sum().backward()
        reference = weakref.ref(y)
        del y
        gc.collect()
        assert reference() is None


def test_a_forked_child_leaves_the_file_alone(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.ones(2, requires_grad=True)
        child = os.fork()
        if child == 0:
            (x * 2).sum().backward()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        (x * 3).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 1
        assert trace.meta["ended"] == "ok"


ENDLESS = """
import sys, time
import gradviz.engine as torch
from gradviz.sources.record import record

x = torch.ones(4, requires_grad=True)
with record(sys.argv[1]):
    n = 0
    while True:
        (x * 1.0).sum().backward()
        n += 1
        if n % int(sys.argv[2]) == 0:
            print(n, time.process_time(), flush=True)
"""


def told_line(line: str) -> tuple[int, float]:
    """How many passes were over, and after how many seconds of the program's own work."""
    n, at = line.split()
    return int(n), float(at)


@pytest.mark.slow
@pytest.mark.parametrize(("wait", "every"), [(0.4, 10), (0.83, 40), (0.55, 400)])
def test_a_killed_run_leaves_a_trace_that_lacks_at_most_the_last_fifth_of_a_second(
    tmp_path: Path, wait: float, every: int
) -> None:
    # A program that gives up the interpreter often, as by printing, must not keep the writer from it either.
    # The seconds are those that the program worked: on a busy machine the writer may wait for others.
    program = tmp_path / "endless.py"
    program.write_text(ENDLESS)
    path = tmp_path / "run.gradviz"
    process = subprocess.Popen(
        [sys.executable, str(program), str(path), str(every)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = [told_line(process.stdout.readline())]
    while told[-1][1] < told[0][1] + wait:
        told.append(told_line(process.stdout.readline()))
    process.send_signal(signal.SIGKILL)
    out, complaints = process.communicate()
    assert not complaints
    told += [told_line(line) for line in out.splitlines(keepends=True) if line.endswith("\n")]
    owed = max(n for n, at in told if at < told[-1][1] - 0.2)
    with open_trace(path) as trace:
        assert trace.meta["ended"] == ""
        assert len(trace.passes) >= owed
        assert len(list(trace)) == trace.count
        assert trace.passes[owed - 1].digest == trace.passes[0].digest


def test_what_is_no_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    good = tmp_path / "run.gradviz"
    with recorded(tmp_path):
        x = torch.ones(300, requires_grad=True)
        for _ in range(100):
            (x * 2).sum().backward()
    newer = tmp_path / "newer.gradviz"
    newer.write_bytes(good.read_bytes())
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    other = tmp_path / "other.gradviz"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    (tmp_path / "empty.gradviz").touch()
    (tmp_path / "photo.gradviz").write_bytes(b"\xff\xd8\xff\xe0\x00\x10JFIF" + bytes(1000))
    (tmp_path / "short.gradviz").write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    expected = {
        "none.gradviz": "no such file",
        "empty.gradviz": "is empty",
        "photo.gradviz": "is not a gradviz trace",
        "other.gradviz": "is not a gradviz trace",
        "newer.gradviz": "newer gradviz",
        "short.gradviz": "damaged or truncated",
        ".": "is a directory",
    }
    for name, message in expected.items():
        with pytest.raises(TraceError, match=message) as caught:
            read_all(tmp_path / name)
        assert "\n" not in str(caught.value)


def read_all(path: Path) -> None:
    with open_trace(path) as trace:
        assert trace.meta
        for table in (
            trace.passes,
            trace.sites,
            trace.strings,
            trace.forms,
            trace.rules,
            trace.errors,
            trace.parameters,
        ):
            assert table is not None
        for event in trace:
            trace.snapshot(getattr(event, "tensor", 0))


@pytest.mark.parametrize(
    "damage",
    [
        "chunks SET count = count + 0.5",
        "chunks SET count = count - 100",
        "chunks SET first = first + 1",
        "strings SET text = x'ff'",
        "sites SET line = 'seven'",
        "sites SET names = 1",
        "forms SET shape = 2.5",
        "rules SET inputs = '[1]'",
        "states SET data = x'01'",
        "passes SET first = 0.5",
        "passes SET nodes = 'none'",
        "events SET data = 7",
        "payloads SET data = 'text'",
    ],
)
def test_a_value_of_another_type_is_refused(damage: str, tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.ones(100, requires_grad=True)
        (x * 2).sum().backward()
    path = tmp_path / "run.gradviz"
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {damage}")
    with pytest.raises(TraceError, match="is damaged or truncated"):
        read_all(path)


def test_info_says_which_leaves_were_made_before_the_recording(
    tmp_path: Path, gradviz: Callable[..., CompletedProcess[str]]
) -> None:
    w = torch.ones(2, requires_grad=True)
    with recorded(tmp_path):
        (w * torch.ones(2)).sum().backward()
    lines = gradviz("info", tmp_path / "run.gradviz").stdout.splitlines()
    (leaf,) = [line for line in lines if "(2,)" in line]
    assert leaf.rstrip().endswith("before the recording")


def test_a_trace_of_more_than_two_gigabytes_is_read(tmp_path: Path) -> None:
    with recorded(tmp_path):
        torch.ones(2, requires_grad=True).sum().backward()
    path = tmp_path / "run.gradviz"
    os.truncate(path, 3 << 30)  # a file with a hole: it takes no room
    with open_trace(path) as trace:
        assert len(trace.passes) == 1


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_damaged_trace_is_refused_or_read_but_never_breaks(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("damage") / "run.gradviz"
    with record(path):
        x = torch.ones(100, requires_grad=True)
        (x * 2).sum().backward()
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 20))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    refused = ""
    try:
        read_all(path)
    except TraceError as error:
        refused = str(error)
    assert "\n" not in refused


def test_a_trace_is_one_file(tmp_path: Path) -> None:
    with recorded(tmp_path):
        torch.ones(2, requires_grad=True).sum().backward()
    assert [path.name for path in tmp_path.iterdir()] == ["run.gradviz"]


def test_a_trace_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot write"), record(tmp_path / "no" / "such" / "run.gradviz"):
        pass


def test_reading_goes_by_event(tmp_path: Path) -> None:
    with recorded(tmp_path):
        x = torch.ones(2, requires_grad=True)
        (x * 2).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert isinstance(trace, Trace)
        forwards = [trace.event(i) for i in range(trace.count)]
        backwards = [trace.event(i) for i in reversed(range(trace.count))]
        assert forwards == backwards[::-1]
        with pytest.raises(IndexError, match="the trace has"):
            trace.event(trace.count)


def test_arguments_that_no_caller_writes_are_not_shown(tmp_path: Path) -> None:
    """What an op hands to its own derivative changes with every call: as text it would fill the trace."""
    with recorded(tmp_path):
        x = torch.randn(2, 3, 4, 4, requires_grad=True)
        functional.layer_norm(x, (4,))
        functional.batch_norm(x, None, None, training=True)
        functional.group_norm(x, 3)
        functional.interpolate(x, scale_factor=2, mode="bilinear")
    told = {event.op: event.args for event in events(tmp_path) if isinstance(event, k.OpRan)}
    for op in ("native_layer_norm", "native_batch_norm", "native_group_norm"):
        assert told[op] == "eps=1e-05, 1.0, 0.0", op  # without weight and bias
    assert told["upsample_bilinear2d"] == "size=(8, 8)"


@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=40))
def test_numbers_of_passes_are_found_though_only_their_distance_is_kept(told: list[tuple[int, bool]]) -> None:
    """`told`: by how much the source's number grows, and whether the next one is told before it."""
    numbers, last = [], 0
    for step, swapped in told:
        last += step
        numbers.append(last)
        if swapped and len(numbers) > 1:
            numbers[-2:] = numbers[-1], numbers[-2]
    known = Renumbered()
    for own, number in enumerate(numbers, 1):
        known.add(number, own)
    assert [known.of(number) for number in numbers] == list(range(1, len(numbers) + 1))
    assert {known.of(number) for number in range(last + 3) if number not in numbers} <= {0}


def test_a_million_regular_passes_are_kept_as_one_distance() -> None:
    known = Renumbered()
    for number in range(7, 100_007):
        known.add(number, number - 6)
    assert (len(known.starts), len(known.late)) == (1, 0)
    assert (known.of(6), known.of(7), known.of(100_006), known.of(100_007)) == (0, 1, 100_000, 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("size", [1, 100, 5000])
@pytest.mark.parametrize("element", [1e200, -1e200, 1e-200])
def test_statistics_tell_the_size_of_elements_whose_squares_double_precision_does_not_hold(
    size: int, element: float
) -> None:
    stats = stats_of(np.full(size, element))
    assert stats.rms == pytest.approx(abs(element), rel=1e-12, abs=0)


@pytest.mark.slow
def test_large_elements_bring_no_warning_of_the_recorders(tmp_path: Path) -> None:
    program = tmp_path / "large.py"
    program.write_text(
        "import gradviz.engine as torch\n"
        "x = torch.full((100,), 1e200, dtype=torch.float64, requires_grad=True)\n"
        "(x * 2).sum().backward()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "gradviz", "trace", "-o", tmp_path / "large.gradviz", program],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "Warning" not in done.stderr


def test_every_so_many_passes_are_recorded_in_detail(tmp_path: Path) -> None:
    with recorded(tmp_path, every=3):
        w = torch.ones(2, requires_grad=True)
        for _ in range(7):
            w.sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert [run.number for run in trace.passes if run.recorded] == [3, 6]
    for wrong in ({"every": 0}, {"every": 2, "passes": [1]}):
        with pytest.raises(ValueError, match="every is a number from 1, in place of passes"):
            recorded(tmp_path, **wrong)


def test_each_call_of_a_decorated_function_is_recorded_anew(tmp_path: Path) -> None:
    @recorded(tmp_path)
    def train(steps: int, deeper: bool = False) -> float:
        """Trains."""
        w = torch.ones(2, requires_grad=True)
        for _ in range(steps):
            w.sum().backward()
        return train(1) if deeper else float(w.grad[0])

    assert (train.__name__, train.__doc__, train(2)) == ("train", "Trains.", 2.0)
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 2
        places = {site.place.function for site in trace.sites.values()}
    assert any(place.endswith("train") for place in places)
    assert not any(place.endswith("recorded") for place in places)  # no frame of ours
    assert train(3, deeper=True) == 1.0
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert len(trace.passes) == 4


def test_an_error_passes_through_a_decorated_function(tmp_path: Path) -> None:
    @recorded(tmp_path)
    def fail() -> None:
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        fail()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert trace.meta["error_type"] == "KeyError"


def test_what_runs_later_cannot_be_decorated(tmp_path: Path) -> None:
    def steps() -> Iterator[int]:
        yield 1

    async def train() -> None: ...

    for function in (steps, train, 7):
        with pytest.raises(TypeError, match="record decorates a plain function"):
            recorded(tmp_path)(function)
