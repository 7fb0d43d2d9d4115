"""What is told of a PyTorch program: hooks, retained gradients, writes through views, optimizers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
import gradviz.engine as engine_module  # noqa: E402
from gradviz.events.kinds import (  # noqa: E402
    Accumulated,
    Event,
    GradsCleared,
    Hooked,
    Mutated,
    Named,
    NodeMade,
    OpRan,
    Produced,
    Received,
    Retained,
    Scheduled,
    ScopeEntered,
    Stepped,
    TensorMade,
)
from gradviz.query import Query  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture
def record(tmp_path: Path) -> Callable[[Callable[[], object]], Trace]:
    def run(function: Callable[[], object]) -> Trace:
        path = tmp_path / "run.gradviz"
        with gradviz.record(path, values="full"):
            function()
        return gradviz.open(path)

    return run


Record = Callable[[Callable[[], object]], Trace]


def of(trace: Trace, kind: type[Event]) -> list[Any]:
    return [event for event in trace if isinstance(event, kind)]


def halve(gradient: torch.Tensor) -> torch.Tensor:
    return gradient / 2


def test_a_hook_that_changes_a_gradient_is_told_with_its_name(record: Record) -> None:
    def program() -> None:
        w = torch.ones(2, requires_grad=True)
        w.register_hook(halve)
        y = w * 3
        y.register_hook(halve)
        y.sum().backward()

    trace = record(program)
    found = of(trace, Hooked)
    assert [event.hook for event in found] == ["halve", "halve"]
    values = [trace.snapshot(event.after, event.index).array.tolist() for event in found]
    assert values == [[0.5, 0.5], [0.75, 0.75]]
    assert [Query(trace).names.of(event.tensor) for event in found] == ["y", "w"]


def test_a_hook_is_told_with_its_name_when_its_tensor_is_gone(record: Record) -> None:
    def wipe(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0

    def through_a_local_variable(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(wipe)
        return y.sin()

    def program() -> None:
        through_a_local_variable(torch.ones(2, requires_grad=True)).sum().backward()

    trace = record(program)
    (hooked,) = of(trace, Hooked)
    assert hooked.hook.endswith("wipe")


def test_a_retained_gradient_is_the_one_that_came(record: Record) -> None:
    def program() -> None:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        y.retain_grad()
        (y * 2).sum().backward()
        assert y.grad is not None

    trace = record(program)
    (retained,) = of(trace, Retained)
    (received,) = (event for event in of(trace, Received) if event.node == retained.node)
    assert received.gradients == (retained.grad,)
    assert trace.snapshot(retained.grad, retained.index).array.tolist() == [2, 2]


def test_a_write_through_a_view_is_told_of_its_base(record: Record) -> None:
    def program() -> None:
        x = torch.ones(3, requires_grad=True)
        y = x * 1
        part = y[1:]
        part.mul_(5)
        y.sum().backward()
        assert x.grad is not None

    trace = record(program)
    query = Query(trace)
    (write,) = (event for event in of(trace, OpRan) if event.op == "mul_")
    (mutated,) = of(trace, Mutated)
    assert query.names.of(mutated.tensor) == "y"
    assert (mutated.source, mutated.op) == (write.outputs[0], write.index)
    names = [event.grad_fn for event in of(trace, NodeMade)]
    assert "CopySlices" in names
    assert query.at(trace.count - 1).value(mutated.tensor).array.tolist() == [1, 5, 5]


def test_a_training_step_is_told_and_not_what_goes_on_inside_the_optimizer(record: Record) -> None:
    def program() -> None:
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        optimizer.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    trace = record(program)
    (stepped,) = of(trace, Stepped)
    assert stepped.type == "AdamW"
    names = Query(trace).names
    assert [names.of(tensor) for tensor in stepped.parameters] == ["net.weight", "net.bias"]
    assert [event.how for event in of(trace, Mutated)] == ["AdamW", "AdamW"]
    assert [event.op for event in of(trace, OpRan)] == ["t", "addmm", "sum"]
    scheduled = of(trace, Scheduled)
    assert [(event.steps, event.rates) for event in scheduled] == [(0, "[0.1]"), (1, "[0.05]")]
    assert {event.optimizer for event in scheduled} == {stepped.optimizer}
    assert [len(event.tensors) for event in of(trace, GradsCleared)] == [0, 2]
    (scope,) = of(trace, ScopeEntered)
    assert (scope.name, scope.type, scope.training) == ("net", "Linear", True)


def test_recording_goes_on_after_a_step_that_failed(record: Record) -> None:
    def program() -> None:
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)

        def closure() -> Any:
            raise ValueError("no loss today")

        with pytest.raises(ValueError, match="no loss"):
            optimizer.step(closure)
        optimizer.zero_grad()
        (w * 2).sum().backward()

    assert [event.op for event in of(record(program), OpRan)] == ["mul", "sum"]


def test_two_networks_have_names_of_their_own(record: Record) -> None:
    def program() -> None:
        G, D = torch.nn.Sequential(torch.nn.Linear(1, 1)), torch.nn.Sequential(torch.nn.Linear(1, 1))
        D(G(torch.ones(1, 1))).sum().backward()

    trace = record(program)
    names = [event.name for event in of(trace, Named)]
    assert names == ["G.0.weight", "G.0.bias", "D.0.weight", "D.0.bias"]
    made = [event for event in of(trace, TensorMade) if event.how == "Parameter"]
    assert len(made) == 4
    assert len({trace.sites[event.site].place.col for event in made}) == 2


def test_an_op_of_several_nodes_is_one_op(record: Record) -> None:
    def program() -> None:
        x = torch.ones(1, 3, requires_grad=True)
        torch.nn.functional.cross_entropy(x, torch.tensor([1])).backward()

    trace = record(program)
    (op,) = of(trace, OpRan)
    assert op.op == "cross_entropy"
    assert [event.grad_fn for event in of(trace, NodeMade)] == ["LogSoftmaxBackward0", "NllLossBackward0"]
    assert len(of(trace, Produced)) == 2


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam"])
@pytest.mark.parametrize("foreach", [True, False])
def test_every_optimizer_is_told_with_the_values_it_left(record: Record, name: str, foreach: bool) -> None:
    left: list[list[float]] = []

    def program() -> None:
        w = torch.ones(3, requires_grad=True)
        optimizer = getattr(torch.optim, name)([w], lr=0.1, foreach=foreach)
        (w * 2).sum().backward()
        optimizer.step()
        left.append(w.tolist())

    trace = record(program)
    (written,) = of(trace, Mutated)
    assert written.how == name
    assert trace.snapshot(written.tensor, written.index).array.tolist() == left[0]
    assert [event.op for event in of(trace, OpRan)] == ["mul", "sum"]


def test_a_grad_made_with_create_graph_has_its_own_node_and_a_second_pass_begins_there(record: Record) -> None:
    def program() -> None:
        x = torch.tensor(5.0, requires_grad=True)
        (x**3).backward(create_graph=True)
        grad = x.grad
        x.grad = None
        grad.backward()

    trace = record(program)
    query = Query(trace)
    first, second = [event for event in trace if isinstance(event, Accumulated)]
    assert first.grad != first.gradient
    assert query.nodes.name(query.nodes.grad_fn(first.grad, first.index)) == "CopyBackwards"
    assert trace.snapshot(first.grad, first.index).array == 75
    (root,) = query.passes.began(2).roots
    assert (query.nodes.name(root.node), root.tensor) == ("CopyBackwards", first.grad)
    assert trace.snapshot(second.grad, second.index).array == 30


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        (lambda x: torch.log(x**3), [("div", 0.008), ("pow", 25), ("mul", 75), ("mul", 0.6), ("copy", 0.6)]),
        (lambda x: x**3, [("pow", 25), ("mul", 75), ("mul", 75), ("copy", 75)]),
        (torch.sin, [("cos", 0.2836622), ("mul", 0.2836622), ("copy", 0.2836622)]),
    ],
)
def test_what_goes_between_the_ops_of_a_derivative_has_its_values(
    function: Callable[[torch.Tensor], torch.Tensor], steps: list[tuple[str, float]], record: Record
) -> None:
    def program() -> None:
        x = torch.tensor(5.0, requires_grad=True)
        function(x).backward(create_graph=True)
        x.grad = None

    trace = record(program)
    ops = [event for event in of(trace, OpRan) if event.in_pass]
    values = [trace.snapshot(event.outputs[0], event.index).array for event in ops]
    assert [event.op for event in ops] == [name for name, _ in steps]
    assert [float(value) for value in values] == pytest.approx([value for _, value in steps])


def test_the_numbers_of_the_ops_of_a_derivative_are_their_arguments(record: Record) -> None:
    def program() -> None:
        x = torch.tensor(5.0, requires_grad=True)
        (x**3).backward(create_graph=True)
        x.grad = None

    ops = [event for event in of(record(program), OpRan) if event.in_pass]
    assert [event.args for event in ops] == ["2.0", "3.0", "", ""]


def test_a_second_pass_with_create_graph_adds_with_a_node(record: Record) -> None:
    def program() -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        y = (x**3).sum()
        y.backward(create_graph=True)
        y.backward(create_graph=True)

    trace = record(program)
    query = Query(trace)
    first, second = [event for event in trace if isinstance(event, Accumulated)]
    (added,) = [event for event in of(trace, OpRan) if event.op == "add"]
    assert added.inputs == (first.grad, second.gradient)
    assert trace.snapshot(second.grad, second.index).array.tolist() == [6, 24]
    assert query.nodes.name(query.nodes.grad_fn(second.grad, second.index)) == "AddBackward0"


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_running_statistics_are_those_that_a_normalisation_wrote(engine: str, tmp_path: Path) -> None:
    library: Any = torch if engine == "torch" else engine_module
    for layer in (library.nn.BatchNorm1d(3), library.nn.InstanceNorm1d(3, track_running_stats=True)):
        with gradviz.record(tmp_path / "run.gradviz"):
            layer(library.ones(4, 3, 5) * 2)
            mean = layer.running_mean.tolist()
            layer(library.ones(4, 3, 5) * 4)
            layer.eval()
            layer(library.ones(4, 3, 5) * 8)
        with gradviz.open(tmp_path / "run.gradviz") as trace:
            query = Query(trace)
            (buffer,) = [event.tensor for event in of(trace, Named) if event.name == "layer.running_mean"]
            written = [event.index for event in of(trace, Mutated) if event.tensor == buffer]
            values = [query.memory.value(buffer, event) for event in written]
            arrays = [value.array.tolist() for value in values if value is not None and value.array is not None]
            changes = [array for array, _ in itertools.groupby(arrays)]  # 2.5 writes the same again in evaluation
            assert changes == [mean, layer.running_mean.tolist()]


@pytest.mark.parametrize("numbers", [(0.0, -0.0), (complex(1, 0.0), complex(1, -0.0))], ids=["real", "complex"])
def test_numbers_that_differ_in_the_sign_of_a_zero_are_told_apart(
    record: Record, numbers: tuple[complex, complex]
) -> None:
    z = torch.ones(2, dtype=torch.complex64)
    with record(lambda: [z * number for number in (*numbers, *numbers)]) as trace:
        assert [op.args for op in of(trace, OpRan)] == [repr(number) for number in (*numbers, *numbers)]


def test_arguments_of_pytorchs_own_are_not_told(record: Record) -> None:
    def run() -> None:
        torch.nn.functional.softmax(torch.ones(2, 3, requires_grad=True), dim=1)

    (op,) = (event for event in record(run) if isinstance(event, OpRan))
    assert (op.op, op.args) == ("softmax", "dim=1")
