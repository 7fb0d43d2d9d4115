"""Values and gradients as of a moment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradviz.engine as torch
from gradviz.engine.core.tensor import number_of
from gradviz.events import kinds as k
from gradviz.events.kinds import LEAF, REQUIRES_GRAD
from gradviz.query import Query
from gradviz.query.moment import Moment
from gradviz.sources.record import record
from gradviz.tracefile import Snapshot, Trace, open_trace


def traced(path: Path, program: Callable[[], Any]) -> Trace:
    with record(path / "run.gradviz"):
        program()
    return open_trace(path / "run.gradviz")


def numbers(snapshot: Snapshot | None) -> Any:
    return None if snapshot is None or snapshot.array is None else snapshot.array.tolist()


def grads(moments: Query, k: int) -> dict[str | None, Any]:
    """The `.grad` of each leaf by name."""
    moment = moments.at(k)
    return {state.name: numbers(state.grad_value) for state in map(moment.state, moment.leaves)}


# --- lessons


def twice() -> None:
    x = torch.tensor(5.0, requires_grad=True)
    z = torch.log(x**3)
    z.backward(retain_graph=True)
    z.backward()


def test_a_gradient_is_there_from_the_event_that_accumulates_it(tmp_path: Path) -> None:
    with traced(tmp_path, twice) as trace:
        moments = Query(trace)
        accumulated = trace.indices(k.Kind.ACCUMULATED).tolist()
        first, second = accumulated
        assert grads(moments, first - 1) == {"x": None}
        assert grads(moments, first) == {"x": pytest.approx(0.6)}
        assert grads(moments, second - 1) == {"x": pytest.approx(0.6)}
        assert grads(moments, second) == {"x": pytest.approx(1.2)}
        assert moments.at(0).leaves == moments.at(trace.count - 1).leaves


def test_a_moment_lies_in_a_pass_or_in_forward(tmp_path: Path) -> None:
    with traced(tmp_path, twice) as trace:
        passes = [moment.pass_info for moment in map(Query(trace).at, range(trace.count))]
        numbers = [run.number if run is not None else None for run in passes]
        assert numbers == [None] * 6 + [1] * 8 + [None] + [2] * 8


def test_a_gradient_waits_at_a_node_until_the_node_receives_it(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        (x * x + x).backward()

    with traced(tmp_path, program) as trace:
        moments = Query(trace)
        leaf = next(event for event in trace if isinstance(event, k.Accumulated)).node
        waiting = [len(moments.at(i).waiting.get(leaf, [])) for i in range(trace.count)]
        assert max(waiting) == 3  # once along x, twice along x * x
        assert waiting[-1] == 0
        received = next(e for e in trace if isinstance(e, k.Received) and e.node == leaf)
        assert waiting[received.index - 1] == 3
        assert waiting[received.index] == 0
        assert len(moments.at(received.index).arrivals(leaf)) == 3


def test_a_gradient_zeroed_through_data_is_zero(tmp_path: Path) -> None:
    def program() -> None:
        w = torch.tensor([1.0], requires_grad=True)
        for _ in range(2):
            (w * 3).sum().backward()
            w.data = w.data - 0.5 * w.grad
            w.grad.data.zero_()

    with traced(tmp_path, program) as trace:
        moments = Query(trace)
        zeroed = [e.index for e in trace if isinstance(e, k.OpRan) and e.op == "zero_"]
        assert [grads(moments, at)["w"] for at in zeroed] == [[0.0], [0.0]]
        assert [grads(moments, at - 1)["w"] for at in zeroed] == [[3.0], [3.0]]
        values = [numbers(moments.at(at).state(moments.at(at).leaves[0]).value) for at in zeroed]
        assert values == [[-0.5], [-2.0]]


def test_a_tensor_whose_data_was_replaced_is_free_of_its_old_memory(tmp_path: Path) -> None:
    def program() -> None:
        w = torch.tensor([1.0], requires_grad=True)
        old = w.data
        w.data = torch.tensor([5.0])
        old.zero_()

    with traced(tmp_path, program) as trace:
        last = Query(trace).at(trace.count - 1)
        assert numbers(last.state(last.leaves[0]).value) == [5.0]


def test_a_tensor_that_is_given_its_own_data_stays_as_it_is(tmp_path: Path) -> None:
    def program() -> None:
        w = torch.tensor([1.0], requires_grad=True)
        w.data = w
        (w * 2).backward()

    with traced(tmp_path, program) as trace:
        last = Query(trace).at(trace.count - 1)
        assert numbers(last.state(last.leaves[0]).value) == [1.0]


def test_retained_gradients_belong_to_non_leafs(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.tensor(5.0, requires_grad=True)
        y = x**3
        y.retain_grad()
        torch.log(y).backward()

    with traced(tmp_path, program) as trace:
        moments = Query(trace)
        last = moments.at(trace.count - 1)
        (state,) = map(last.state, last.retained)
        assert (state.name, state.is_leaf) == ("y", False)
        assert numbers(state.grad_value) == pytest.approx(0.008)
        retained = next(e.index for e in trace if isinstance(e, k.Retained))
        assert moments.at(retained - 1).retained == []


def test_leaves_that_do_not_require_grad_are_told_when_named(tmp_path: Path) -> None:
    def program() -> None:
        x = torch.ones(2)  # noqa: F841
        w = torch.ones(2, requires_grad=True)
        d = (w * torch.ones(2)).detach()
        d.requires_grad_()

    with traced(tmp_path, program) as trace:
        moments = Query(trace)
        before, last = moments.at(trace.count - 2), moments.at(trace.count - 1)
        names = moments.names
        assert [names.of(t) for t in before.frozen] == ["x", "d"]
        assert [names.of(t) for t in last.frozen] == ["x"]
        assert [names.of(t) for t in last.leaves] == ["w", "d"]


def test_of_a_loop_only_the_newest_frozen_leaf_of_a_name_is_told(tmp_path: Path) -> None:
    def program() -> None:
        for i in range(5):
            x = torch.tensor(float(i))  # noqa: F841

    with traced(tmp_path, program) as trace:
        last = Query(trace).at(trace.count - 1)
        assert [numbers(last.value(t)) for t in last.frozen] == [4.0]


def test_a_moment_lies_in_its_modules(tmp_path: Path) -> None:
    def program() -> None:
        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        model(torch.ones(1, 2))

    with traced(tmp_path, program) as trace:
        op = next(e.index for e in trace if isinstance(e, k.OpRan) and e.op == "addmm")
        assert [scope.name for scope in Query(trace).at(op).scopes] == ["model", "model.0"]
        assert Query(trace).at(trace.count - 1).scopes[0].name == "model"
        assert Query(trace).at(0).scopes == []


def test_a_tangent_is_there_from_the_event_that_pushes_it(tmp_path: Path) -> None:
    from gradviz.engine.autograd import forward_ad

    def program() -> None:
        with forward_ad.dual_level():
            x = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
            torch.sin(x)

    with traced(tmp_path, program) as trace:
        moments = Query(trace)
        pushed = [e for e in trace if isinstance(e, k.TangentPushed)]
        assert [moments.at(e.index).tangent(e.tensor) for e in pushed] == [e.tangent for e in pushed]
        assert moments.at(pushed[0].index - 1).tangent(pushed[0].tensor) == 0


def test_there_is_no_moment_outside_of_the_trace(tmp_path: Path) -> None:
    with traced(tmp_path, twice) as trace:
        for k in (-1, trace.count):
            with pytest.raises(IndexError):
                Query(trace).at(k)


# --- any program


def naive(trace: Trace) -> list[dict[str, Any]]:
    """What a fold over the events makes of each moment."""
    flags: dict[int, int] = {}
    versions: dict[int, int] = {}
    grad: dict[int, int] = {}
    passes: list[tuple[int, dict[int, list[int]]]] = []
    scopes: list[int] = []
    states = trace.states
    rows = zip(
        *(column.tolist() for column in (states.events, states.tensors, states.flags, states.versions)), strict=True
    )
    told_at: dict[int, list[tuple[int, int, int]]] = {}
    for at, *state in rows:
        told_at.setdefault(at, []).append(tuple(state))
    told = []
    for event in trace:
        for tensor, own_flags, version in told_at.get(event.index, ()):
            flags[tensor], versions[tensor] = own_flags, version
        match event:
            case k.Accumulated() | k.Retained() | k.GradAssigned():
                grad[event.tensor] = event.grad
            case k.PassBegan():
                passes.append((event.number, {}))
                for root in event.roots:
                    passes[-1][1].setdefault(root.node, []).append(root.gradient)
            case k.Received():
                passes[-1][1].pop(event.node, None)
            case k.Produced():
                for flow in event.flows:
                    if flow.node and flow.gradient:
                        passes[-1][1].setdefault(flow.node, []).append(flow.gradient)
            case k.ScopeEntered():
                scopes.append(event.scope)
        wanted = LEAF | REQUIRES_GRAD
        told.append(
            {
                "leaves": sorted(t for t, f in flags.items() if f & wanted == wanted),
                "grads": {t: g for t, g in grad.items() if g},
                "retained": sorted(t for t, g in grad.items() if g and not flags[t] & LEAF),
                "versions": dict(versions),
                "pass": passes[-1][0] if passes else None,
                "waiting": {n: list(g) for n, g in passes[-1][1].items()} if passes else {},
                "scopes": list(scopes),
            }
        )
        if isinstance(event, k.PassEnded):
            passes.pop()
        if isinstance(event, k.ScopeLeft):
            scopes.pop()
    return told


def seen(moment: Moment, like: dict[str, Any]) -> dict[str, Any]:
    """The same of a Moment."""
    tensors = {*moment.leaves, *moment.retained}
    return {
        "leaves": moment.leaves,
        "grads": {t: moment.grad(t) for t in tensors | set(like["grads"]) if moment.grad(t)},
        "retained": moment.retained,
        "versions": {t: moment.query.tensors.version(t, moment.k) for t in like["versions"]},
        "pass": moment.pass_info.number if moment.pass_info else None,
        "waiting": {node: [d.gradient for d in came] for node, came in moment.waiting.items()},
        "scopes": [scope.scope for scope in moment.scopes],
    }


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 2


class Machine:
    """A program of random steps over a few tensors; `truth` is what these were after each step."""

    def __init__(self) -> None:
        self.leaves = [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 0.5])]
        self.values = list(self.leaves)
        self.truth: list[dict[int, tuple[Any, Any]]] = []

    def step(self, what: int, a: int, b: int) -> None:
        x, y = self.values[a % len(self.values)], self.values[b % len(self.values)]
        leaf = self.leaves[a % len(self.leaves)]
        match what:
            case 0:
                self.values.append(x * y)
            case 1:
                self.values.append(x + y)
            case 2:
                self.values.append(Double.apply(x))
            case 3:
                self.values.append(x.detach())
                self.leaves.append(self.values[-1])
            case 4 if x.requires_grad:
                x.sum().backward(retain_graph=True)
            case 5 if leaf.grad is not None:
                leaf.grad.zero_()
            case 6 if leaf.grad is not None:
                leaf.grad.data.zero_()
            case 7:
                leaf.grad = None
            case 8:
                with torch.no_grad():
                    leaf.add_(0.25)
            case 9:
                leaf.data = leaf.data - 0.125
            case 10:
                leaf.requires_grad_(b % 2 == 0)
            case 11 if x.requires_grad and not x.is_leaf:
                x.retain_grad()
            case 12 if x.requires_grad:
                torch.autograd.grad(x.sum(), [x], retain_graph=True)
            case 13 if x.requires_grad:
                x.sum().backward(create_graph=True)
            case 14:
                self.values.append(leaf.data)
                self.values[-1].mul_(0.5)

    def look(self) -> None:
        self.truth.append(
            {number_of(t): (t.array.tolist(), None if t.grad is None else t.grad.array.tolist()) for t in self.leaves}
        )


STEPS = st.lists(st.tuples(st.integers(0, 14), st.integers(0, 5), st.integers(0, 5)), max_size=14)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_a_moment_is_what_the_events_up_to_it_add_up_to(steps: list[tuple[int, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        marks = []

        with record(Path(directory) / "run.gradviz") as recording:
            machine = Machine()
            for step in steps:
                with suppress(RuntimeError):  # it has modified what was saved: that is an event too
                    machine.step(*step)
                machine.look()
                assert recording.recorder is not None
                marks.append(recording.recorder.count - 1)
        with open_trace(Path(directory) / "run.gradviz") as trace:
            forwards, backwards = Query(trace), Query(trace)
            expected = naive(trace)
            for at in reversed(range(trace.count)):
                assert seen(backwards.at(at), expected[at]) == expected[at]
            for at in range(trace.count):
                assert seen(forwards.at(at), expected[at]) == expected[at]
            for at, truth in zip(marks, machine.truth, strict=True):
                check_values(forwards.at(at), truth)


def check_values(moment: Moment, truth: dict[int, tuple[Any, Any]]) -> None:
    """A moment holds the values and gradients that the program itself saw."""
    for tensor, (value, grad) in truth.items():
        state = moment.state(tensor)
        assert numbers(state.value) == value
        assert numbers(state.grad_value) == grad
        assert np.shape(value) == (2,)
