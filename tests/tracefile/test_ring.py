"""`--last`: a file that holds the last passes of a long run, and those around trouble; on both engines."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz.events.event_layout import COLUMNS, ROW
from gradviz.events.kinds import Event, Kind, Mutated, NodeMade, OpRan, PassBegan, Received, TensorMade
from gradviz.graph.build import GraphError, build
from gradviz.graph.model import to_json
from gradviz.query import Query
from gradviz.sources.record import record
from gradviz.step.state import Session
from gradviz.tracefile import Trace
from gradviz.tracefile import ring as ring_file

ENGINES = [pytest.param("gradviz.engine", id="numpy"), pytest.param("torch", id="torch", marks=pytest.mark.torch)]
AtEach = Callable[[int, Any], Any]


@pytest.fixture(params=ENGINES)
def torch(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param) if request.param == "torch" else importlib.import_module(request.param)


def trained(
    torch: Any, path: Path, steps: int, change: AtEach = lambda step, loss: loss, every: int = 1, **settings: Any
) -> tuple[Trace, list[int]]:
    """The trace of a training, and the sizes of its file after each step. `change` may change a loss; the optimizer
    steps after every so many passes."""
    sizes = []
    with record(path, values="full", **settings) as running:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        for step in range(1, steps + 1):
            loss = change(step, (net(torch.randn(4, 8)) ** 2).mean())
            loss.backward()
            if step % every == 0 and bool(torch.isfinite(loss)):
                optimizer.step()
            if step % every == 0:
                optimizer.zero_grad()
            running.recorder.flush()
            sizes.append(os.path.getsize(path))
    return gradviz.open(path), sizes


def numbers(trace: Trace) -> list[int]:
    return [run.number for run in trace.passes]


def of(trace: Trace, *kinds: type[Event]) -> list[Any]:
    return [event for event in trace if isinstance(event, kinds)]


@pytest.mark.slow
def test_the_last_passes_stay_and_count_as_in_the_run(torch: Any, tmp_path: Path) -> None:
    trace, _ = trained(torch, tmp_path / "run.gradviz", 30, last=4)
    assert numbers(trace) == [27, 28, 29, 30]
    assert [event.number for event in of(trace, PassBegan)] == [27, 28, 29, 30]
    assert trace.passes_begun == 30
    for run in trace.passes:
        assert trace.event(run.first).number == trace.event(run.last).number == run.number


@pytest.mark.slow
def test_the_file_does_not_grow(torch: Any, tmp_path: Path) -> None:
    _, short = trained(torch, tmp_path / "short.gradviz", 20, last=4)
    _, long = trained(torch, tmp_path / "long.gradviz", 160, last=4)
    _, whole = trained(torch, tmp_path / "whole.gradviz", 160)
    assert max(long) <= 1.2 * max(short)
    # an empty file has many pages, which are large at this grade
    assert max(long) - long[0] < (max(whole) - whole[0]) / 3
    assert os.path.getsize(tmp_path / "long.gradviz") <= 1.1 * os.path.getsize(tmp_path / "short.gradviz")


@pytest.mark.slow
def test_what_is_kept_is_what_was_recorded(torch: Any, tmp_path: Path) -> None:
    """Each kept pass has the graph, the values and the gradients that it has in the whole trace."""
    ring, _ = trained(torch, tmp_path / "ring.gradviz", 12, last=3)
    whole, _ = trained(torch, tmp_path / "whole.gradviz", 12)
    assert numbers(ring) == [10, 11, 12]
    for number in (10, 11, 12):
        assert without_ids(ring, number) == without_ids(whole, number)
        mine, its = (next(run for run in trace.passes if run.number == number) for trace in (ring, whole))
        assert (mine.nodes, mine.digest) == (its.nodes, its.digest)


def without_ids(trace: Trace, number: int) -> tuple[list[Any], list[Any], list[Any]]:
    """A pass: its graph, and every value in it, without the numbers of things."""
    graph = build(trace, number)
    data = to_json(graph)
    places = {node["id"]: place for place, node in enumerate(data["nodes"])}
    nodes = [{**node, "id": 0} for node in data["nodes"]]
    edges = [(places[edge["source"]], places[edge["target"]], edge["kind"]) for edge in data["edges"]]
    values = [
        None if node.value is None or node.value.array is None else node.value.array.tolist()
        for node in graph.nodes.values()
    ]
    run = next(run for run in trace.passes if run.number == number)
    gradients = [
        trace.snapshot(gradient, event.index).array.tolist()
        for event in of(trace, Received)
        if event.in_pass == run.number
        for gradient in event.gradients
    ]
    return nodes, edges, [values, gradients]


@pytest.mark.slow
def test_parameters_keep_their_names_places_and_last_values(torch: Any, tmp_path: Path) -> None:
    """Also those that no kept step has written: the optimizer steps after eight passes."""
    trace, _ = trained(torch, tmp_path / "run.gradviz", 39, every=8, last=3)
    whole, _ = trained(torch, tmp_path / "whole.gradviz", 39, every=8)
    assert numbers(trace) == [37, 38, 39]
    for ring, all_ in zip(trace.parameters.items(), whole.parameters.items(), strict=True):
        assert ring[1] == all_[1]
        first = [t.event(next(run.first for run in t.passes if run.number == 37)).index for t in (trace, whole)]
        values = [t.snapshot(p, at) for t, p, at in zip((trace, whole), (ring[0], all_[0]), first, strict=True)]
        assert np.array_equal(values[0].array, values[1].array)
        made = next(event for event in of(trace, TensorMade) if event.tensor == ring[0])
        assert trace.sites[made.site].place.line
    assert of(trace, Mutated)


@pytest.mark.slow
def test_passes_around_the_first_nan_stay(torch: Any, tmp_path: Path) -> None:
    poison: AtEach = lambda step, loss: loss * float("nan") if step in (20, 21, 40) else loss
    trace, _ = trained(torch, tmp_path / "run.gradviz", 60, poison, last=2)
    assert numbers(trace) == [18, 19, 20, 21, 38, 39, 40, 41, 59, 60]
    assert any("NaN" in finding.message for finding in gradviz.check(trace).findings)


@pytest.mark.slow
def test_a_nan_that_stays_is_trouble_once(torch: Any, tmp_path: Path) -> None:
    poison: AtEach = lambda step, loss: loss * float("nan") if step >= 20 else loss
    trace, _ = trained(torch, tmp_path / "run.gradviz", 40, poison, last=2)
    assert numbers(trace) == [18, 19, 20, 21, 39, 40]


@pytest.mark.slow
def test_passes_around_an_error_stay(torch: Any, tmp_path: Path) -> None:
    def fail(step: int, loss: Any) -> Any:
        if step == 10:
            y = (torch.ones(2, requires_grad=True) * 2).exp().sum()
            y.backward()
            with pytest.raises(RuntimeError):
                y.backward()  # its graph is freed
        return loss

    trace, _ = trained(torch, tmp_path / "run.gradviz", 30, fail, last=2)
    (error,) = trace.errors
    assert type(trace.event(error.event)).__name__ == "ErrorRaised"
    failed = trace.event(error.event).in_pass
    assert {failed - 1, failed, failed + 1} <= set(numbers(trace))


@pytest.mark.slow
def test_a_graph_that_was_made_once_stays(torch: Any, tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    with record(path, last=2) as running:
        x = torch.ones(3, requires_grad=True)
        y = (x.exp() * 2).sum()
        for _ in range(20):
            y.backward(retain_graph=True)
            running.recorder.flush()
    with gradviz.open(path) as trace:
        assert numbers(trace) == [19, 20]
        assert [event.op for event in of(trace, OpRan)] == ["exp", "mul", "sum"]
        for node in of(trace, NodeMade):
            assert isinstance(trace.event(node.op), OpRan)
        graph = build(trace)
        assert {n.name for n in graph.nodes.values() if n.kind == "grad_fn"} == {
            "ExpBackward0", "MulBackward0", "SumBackward0", "AccumulateGrad",
        }  # fmt: skip


@pytest.mark.slow
def test_a_pass_that_runs_others_in_a_hook_stays_as_long_as_one_of_them(torch: Any, tmp_path: Path) -> None:
    """A solver in a hook runs more passes than are kept before the pass around it ends."""
    path = tmp_path / "run.gradviz"
    with record(path, values="full", last=2) as running:
        w = torch.ones(3, requires_grad=True)
        for _ in range(2):
            inner = (w * w).sum()

            def solve(gradient: Any, root: Any = inner) -> Any:
                for _ in range(12):
                    torch.autograd.grad(root, w, retain_graph=True)
                    running.recorder.flush()
                return gradient

            outer = w.sin()
            outer.register_hook(solve)
            outer.sum().backward()
    trace = gradviz.open(path)
    assert trace.meta["ended"] == "ok"
    assert trace.passes_begun == 26
    began = [event.number for event in of(trace, PassBegan)]
    assert set(numbers(trace)) <= set(began)
    assert {event.in_pass for event in of(trace, Received)} <= set(began)
    assert gradviz.check(path).findings == ()


@pytest.mark.slow
def test_texts_that_only_old_events_have_go_too(torch: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ring_file, "FEW", 20)
    path = tmp_path / "run.gradviz"
    with record(path, last=2) as running:
        x = torch.ones(3, requires_grad=True)
        for step in range(200):
            (x * (step % 100 + 0.5)).sum().backward()  # each number comes twice, long after it was forgotten
            if step % 10 == 0:
                running.recorder.flush()
    with gradviz.open(path) as trace:
        assert len(trace.strings) < 60
        assert [event.args for event in of(trace, OpRan) if event.op == "mul"] == ["98.5", "99.5"]
        assert [event.op for event in of(trace, OpRan)] == ["mul", "sum", "mul", "sum"]


@pytest.mark.slow
def test_every_view_shows_it(torch: Any, tmp_path: Path) -> None:
    poison: AtEach = lambda step, loss: loss * float("nan") if step == 10 else loss
    trace, _ = trained(torch, tmp_path / "run.gradviz", 30, poison, last=2)
    session = Session(trace, 0)
    query = Query(trace)
    for event in trace:
        assert session.words is not None
        query.passes.at(event.index)
        query.at(event.index)
    with pytest.raises(GraphError, match=r"no pass 5 .*: it has 8 to 11, 29 to 30"):
        build(trace, 5)
    assert build(trace).passes == 30


@pytest.mark.slow
def test_info_says_which_passes_there_are(torch: Any, tmp_path: Path, gradviz_here: Any) -> None:
    trained(torch, tmp_path / "run.gradviz", 12, last=3)
    assert "3 of 12: 10 to 12" in gradviz_here("info", "run.gradviz").stdout


def test_a_program_without_passes_keeps_all(torch: Any, tmp_path: Path) -> None:
    with record(tmp_path / "run.gradviz", last=1):
        for _ in range(50):
            torch.ones(2).exp()
    with gradviz.open(tmp_path / "run.gradviz") as trace:
        assert len(of(trace, OpRan)) == 50


@pytest.mark.parametrize("last", [0, -1])
def test_a_number_that_is_none_is_refused(last: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="last is a number of passes, from 1"):
        record(tmp_path / "run.gradviz", last=last)


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, "it did not come to hold in 60 s"
        time.sleep(0.02)


def last_pass(path: Path) -> int:
    """The last pass that is in the file of a run that goes on."""
    with gradviz.open(path) as trace:
        return max(numbers(trace), default=0)


ENDLESS = """\
import gradviz.engine as torch
from itertools import count

w = torch.ones(1000, requires_grad=True)
for step in count():
    (w * step).sum().backward()
    w.grad = None
    if step == 300:
        print("far", flush=True)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_the_last_passes(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    command = [sys.executable, "-m", "gradviz", "trace", "--engine", "numpy", "--last", "5", "endless.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        running.stdout.readline()
        wait_until(lambda: last_pass(tmp_path / "endless.gradviz") > 300)
        running.kill()
    with gradviz.open(tmp_path / "endless.gradviz") as trace:
        found = numbers(trace)
        assert len(found) >= 5
        assert found == list(range(found[0], found[-1] + 1))
        assert found[-1] > 300
        assert found[0] > 100
        assert len(trace.indices(Kind.PASS_BEGAN)) == len(found)


@pytest.mark.slow
@pytest.mark.parametrize("is_early", [False, True], ids=["removed at the end", "removed while it runs"])
def test_a_leaf_that_is_read_again_after_many_passes_has_its_name(torch: Any, tmp_path: Path, is_early: bool) -> None:
    path = tmp_path / "run.gradviz"
    with record(path, last=2) as running:
        weight = torch.ones(4, requires_grad=True)
        rare = torch.ones(4, requires_grad=True)
        thawed = torch.ones(4).requires_grad_()
        for step in range(20):
            loss = (weight * rare * thawed).sum() if step in (0, 19) else weight.sum()
            loss.backward()
            if is_early:
                running.recorder.flush()
    with gradviz.open(path) as trace:
        query = Query(trace)
        inputs = [tensor for event in of(trace, OpRan) if event.op == "mul" for tensor in event.inputs]
        assert {"weight", "rare", "thawed"} <= {query.names.of(tensor) for tensor in inputs}


def test_a_reference_to_before_the_first_event_becomes_none() -> None:
    kind, column, _ = next(field for field in ring_file._back_fields() if not field[2])
    rows = np.zeros(1, ROW)
    rows["head"], rows[COLUMNS[column]] = kind, 5
    assert ring_file._mend(rows, np.zeros(0, np.int64), 0, np.array([0]), np.array([True]))
    assert rows[COLUMNS[column]][0] == 0
