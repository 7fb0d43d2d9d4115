"""`--values inputs`: calls as data, and the elements of what enters them and cannot be computed again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import CallMade, ValueKept  # noqa: E402
from gradviz.query.replayable_functions import NAMES, functions_of  # noqa: E402
from gradviz.sources.call_arguments import NotExpressed, typed_call  # noqa: E402
from gradviz.sources.torch_recorder.replayable import TORCH  # noqa: E402
from gradviz.tracefile import Trace, open_trace  # noqa: E402
from gradviz.tracefile.redaction import redact  # noqa: E402
from tests.replay.replayed_programs import Double, recorded  # noqa: E402

pytestmark = pytest.mark.torch
Record = Callable[[Callable[[], object]], Trace]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    return lambda function: open_trace(recorded(tmp_path / "run.gradviz", function))


def calls(trace: Trace) -> list[CallMade]:
    return [event for event in trace if isinstance(event, CallMade)]


def kept(trace: Trace, how: str) -> list[np.ndarray]:
    found = []
    for event in trace:
        if isinstance(event, ValueKept) and event.how == how:
            value = trace.snapshot(event.copy, event.index)
            assert value is not None
            assert value.array is not None
            found.append(value.array)
    return found


@pytest.mark.slow
def test_a_call_is_told_with_its_function_and_its_arguments(record: Record) -> None:
    def program() -> None:
        w = torch.ones(3, requires_grad=True)
        (w * 2.5).sum(0, keepdim=True).backward()

    trace = record(program)
    product, total = calls(trace)
    assert product.function == "Tensor.mul"
    assert json.loads(product.arguments) == [[{"tensor": 0}, 2.5], {}]
    assert total.function == "Tensor.sum"
    assert json.loads(total.arguments) == [[{"tensor": 0}, 0], {"keepdim": True}]
    assert total.inputs == product.outputs


@pytest.mark.slow
def test_the_elements_of_large_leaves_and_data_are_kept_and_no_others(record: Record) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(40, 40, requires_grad=True), torch.randn(5, 40)

    trace = record(lambda: (x @ w).tanh().sum().backward())
    (leaf,), (data,) = kept(trace, "leaf"), kept(trace, "data")
    assert np.array_equal(leaf, w.detach().numpy())
    assert np.array_equal(data, x.numpy())
    products = [t for call in calls(trace) for t in call.outputs]
    values = [trace.snapshot(t, trace.count - 1) for t in products]
    assert [value is not None and value.array is not None for value in values] == [False, False, True]


def test_what_a_small_tensor_is_kept_for_is_not_kept_itself(record: Record) -> None:
    """A layer's small bias is kept just before its large result is recorded."""
    scale, x = torch.ones(16, requires_grad=True), torch.randn(400, 16)
    trace = record(lambda: (x * scale).tanh().sum().backward())
    (product, *_) = calls(trace)
    value = trace.snapshot(product.outputs[0], trace.count - 1)
    assert value is not None
    assert value.array is None


def test_a_parameter_is_kept_once_and_after_each_write(record: Record) -> None:
    w, frozen = torch.ones(100, requires_grad=True), torch.ones(100)

    def program() -> None:
        optimizer = torch.optim.SGD([w], lr=1.0)
        for _ in range(3):
            optimizer.zero_grad()
            (w * frozen).sum().backward()
            optimizer.step()
        (w * frozen).sum().backward()

    trace = record(program)
    assert [float(value[0]) for value in kept(trace, "leaf")] == [1.0, 0.0, -1.0, -2.0]
    assert len(kept(trace, "data")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("write", [lambda w: w.data.mul_(3), lambda w: w.data.copy_(torch.full((100,), 3.0))])
def test_a_write_through_data_is_noticed(record: Record, write: Callable[[Any], object]) -> None:
    w = torch.ones(100, requires_grad=True)

    def program() -> None:
        w.sum().backward()
        with torch.no_grad():
            write(w)
        w.sum().backward()

    assert [float(value[0]) for value in kept(record(program), "leaf")] == [1.0, 3.0]


def test_results_of_what_is_not_in_the_table_are_inputs(record: Record) -> None:
    w = torch.ones(100, requires_grad=True)
    trace = record(lambda: Double.apply(w).sum().backward())
    assert [call.function for call in calls(trace)] == ["Tensor.sum"]
    (cut,) = kept(trace, "cut")
    assert np.array_equal(cut, np.full(100, 2.0))


@pytest.mark.slow
def test_the_random_numbers_of_a_dropout_are_kept(record: Record) -> None:
    x = torch.ones(100, requires_grad=True)
    states = []

    def program() -> None:
        states.append(torch.get_rng_state().numpy())
        torch.nn.functional.dropout(x, 0.5).sum().backward()

    trace = record(program)
    (state,) = kept(trace, "generator")
    assert np.array_equal(state, states[0])
    assert calls(trace)[0].generator > 0


@pytest.mark.parametrize("values", ["none", "stats"])
def test_other_grades_tell_nothing_of_it(tmp_path: Path, values: str) -> None:
    w = torch.ones(100, requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz", values=values):
        (w * 2).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        assert not [event for event in trace if isinstance(event, (CallMade, ValueKept))]


@pytest.mark.slow
def test_all_other_events_are_those_of_another_grade(tmp_path: Path) -> None:
    """From the second step on, calls are emitted from the cache of calls."""

    def emitted(values: str) -> list[Any]:
        net = torch.nn.Sequential(torch.nn.Conv1d(2, 3, 2), torch.nn.BatchNorm1d(3), torch.nn.ReLU())
        with gradviz.record(tmp_path / f"{values}.gradviz", values=values):
            for _ in range(3):
                (net(torch.ones(2, 2, 4)) * 2).mean().backward()
        with open_trace(tmp_path / f"{values}.gradviz") as trace:
            events = [event for event in trace if not isinstance(event, (CallMade, ValueKept))]
            places = [trace.sites[event.site].place if event.site else None for event in events]
            names = [getattr(event, "grad_fn", getattr(event, "op", "")) for event in events]
            return [*zip(map(type, events), places, names, strict=True)]

    of_inputs = emitted("inputs")
    assert len(of_inputs) > 100
    assert of_inputs == emitted("stats")


def test_arguments_are_data_and_never_code() -> None:
    x = torch.ones(2)
    tensors, text = typed_call(
        TORCH,
        [x, [x, 1], (None, slice(1, None)), 1j, float("nan"), np.int64(3), ...],
        {"dtype": torch.float64, "device": torch.device("cpu"), "p": "fro"},
    )
    assert len(tensors) == 1
    assert tensors[0] is x
    assert json.loads(text) == [
        [
            {"tensor": 0},
            [{"tensor": 0}, 1],
            {"tuple": [None, {"slice": [1, None, None]}]},
            {"complex": [0.0, 1.0]},
            {"float": "nan"},
            3,
            {"ellipsis": None},
        ],
        {"dtype": {"dtype": "float64"}, "device": {"device": "cpu"}, "p": "fro"},
    ]


@pytest.mark.parametrize("value", [print, object(), 2**70, np.ones(2), torch.Generator(), torch.ones(2).to_sparse()])
def test_what_is_no_data_is_not_expressed(value: object) -> None:
    with pytest.raises(NotExpressed):
        typed_call(TORCH, [value], {})


def test_the_table_has_nothing_that_reads_files_or_calls_what_it_is_given() -> None:
    found = functions_of(torch)
    assert len(found) > 800
    assert found["torch.add"] is torch.add
    forbidden = {"load", "save", "apply_", "map_", "map2_", "from_file", "set_", "numpy", "__reduce_ex__", "empty"}
    assert not {name.partition(".")[2] for name in NAMES} & forbidden


@pytest.mark.slow
def test_a_copy_that_is_shared_has_no_elements_and_no_arguments(record: Record, tmp_path: Path) -> None:
    w = torch.arange(100.0, requires_grad=True)
    trace = record(lambda: w.pow(1234.5).sum().backward())
    redact(trace, tmp_path / "shared.gradviz")
    with open_trace(tmp_path / "shared.gradviz") as shared:
        assert {call.arguments for call in calls(shared)} == {"…"}
        assert not shared.states.in_full.size


def test_a_scope_and_inputs_exclude_one_another(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="leave out scope"):
        gradviz.record(tmp_path / "run.gradviz", values="inputs", scope="net")
