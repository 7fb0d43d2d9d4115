"""Transforms of `torch.func` under the recorder: the passes of `grad` and `vjp`, the tangents of `jvp`, the tensors
that stand for others inside. Each program computes the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.diagnose import check  # noqa: E402
from gradviz.events.kinds import OpRan, PassBegan, Received, TangentPushed, TensorMade  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.graph.model import DATA, LEAF, OP  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402

pytestmark = pytest.mark.torch
func: Any = torch.func


def recorded(tmp_path: Path, program: Callable[[], Any]) -> tuple[Any, Trace]:
    """What a program returned, the same with and without a recorder, and its trace."""
    plain = program()
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        traced = program()
    assert traced == plain
    return traced, gradviz.open(tmp_path / "run.gradviz")


def of(trace: Trace, kind: type[Any]) -> list[Any]:
    return [event for event in trace if isinstance(event, kind)]


def value(trace: Trace, tensor: int, event: Any) -> Any:
    return trace.snapshot(tensor, event.index).array.tolist()


def of_grad(torch: Any = torch) -> Any:
    w = torch.tensor([0.5, -1.0])

    def scaled(x: Any) -> Any:
        h = x * w
        return (h * h).sum()

    slope = torch.func.grad(scaled)(torch.tensor([1.0, 2.0]))
    return (slope + 0).tolist()


@pytest.mark.parametrize("engine", ["torch", "gradviz.engine"])
def test_both_engines_tell_the_same_of_grad(tmp_path: Path, engine: str) -> None:
    slope, trace = recorded(tmp_path, lambda: of_grad(import_module(engine)))
    assert slope == [0.5, 4.0]
    [inside, *_] = [made for made in of(trace, TensorMade) if made.how == "torch.func"]
    [began] = of(trace, PassBegan)
    assert (began.how, began.inputs, inside.source) == ("grad", (inside.tensor,), of(trace, TensorMade)[1].tensor)
    labels = Query(trace).labels
    assert labels.of(inside.tensor) == "x"
    ops = [(op.op, labels.of(op.outputs[0])) for op in of(trace, OpRan) if not op.in_pass]
    assert ops == [("mul", "h"), ("mul", "h * h"), ("sum", "(h * h).sum()"), ("add", "slope + 0")]


def test_the_pass_of_grad_has_its_nodes_values_and_names(tmp_path: Path) -> None:
    slope, trace = recorded(tmp_path, of_grad)
    assert slope == [0.5, 4.0]
    (began,) = of(trace, PassBegan)
    assert (began.how, len(began.inputs)) == ("grad", 1)
    query = Query(trace)
    names = [query.labels.of(op.outputs[0]) for op in of(trace, OpRan) if not op.in_pass][:3]
    assert names == ["h", "h * h", "(h * h).sum()"]
    assert [node.grad_fn for node in of(trace, Received)] == [
        "SumBackward0", "MulBackward0", "MulBackward0", "AccumulateGrad"
    ]  # fmt: skip
    last = of(trace, Received)[-1]
    assert value(trace, last.gradients[0], last) == [0.5, 4.0]
    assert value(trace, began.inputs[0], began) == [1.0, 2.0]
    assert query.labels.of(began.inputs[0]) == "x"
    assert query.tensors.is_leaf_that_requires_grad(began.inputs[0], trace.count - 1)


def test_what_enters_and_what_leaves_a_transform_has_its_source(tmp_path: Path) -> None:
    _, trace = recorded(tmp_path, of_grad)
    inside, outside = (made for made in of(trace, TensorMade) if made.how == "torch.func")
    given, gradient = of(trace, TensorMade)[1], of(trace, Received)[-1].gradients[0]
    assert (inside.source, outside.source) == (given.tensor, gradient)
    assert Query(trace).labels.of(outside.tensor) == "slope"


def test_the_leaf_outside_gets_no_gradient_from_a_transform(tmp_path: Path) -> None:
    def program() -> Any:
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        return func.grad(lambda w: (w * 3).sum())(w).tolist()

    gradient, trace = recorded(tmp_path, program)
    assert gradient == [3.0, 3.0]
    made = of(trace, TensorMade)[0]
    assert Query(trace).tensors.is_leaf_that_requires_grad(made.tensor, trace.count - 1)
    assert not Query(trace).tensors.grad(made.tensor, trace.count - 1)
    assert not check(trace).findings


def test_under_vmap_there_is_a_pass_without_values(tmp_path: Path) -> None:
    def program() -> Any:
        return func.vmap(func.grad(lambda x: (x * x).sum()))(torch.eye(2)).tolist()

    each, trace = recorded(tmp_path, program)
    assert each == [[2.0, 0.0], [0.0, 2.0]]
    (began,) = of(trace, PassBegan)
    inside = trace.snapshot(began.inputs[0], began.index)
    assert inside is not None
    assert (inside.shape, inside.array, inside.stats) == ((2,), None, None)


def of_an_ensemble() -> Any:
    torch.manual_seed(0)
    w = torch.randn(4, 3, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        out = func.vmap(lambda v, x: x @ (v * 2), in_dims=(0, None))(w, torch.ones(5, 3))
        (out - 1).square().mean().backward()
        optimizer.step()
    return w.tolist()


def of_a_gradient_of_a_batch() -> Any:
    torch.manual_seed(0)
    net = torch.nn.Linear(2, 1)
    parameters = dict(net.named_parameters())

    def loss(parameters: Any) -> Any:
        each = func.vmap(lambda row: func.functional_call(net, parameters, (row,)).square().sum())
        return each(torch.eye(2)).mean()

    return func.grad(loss)(parameters)["weight"].tolist()


def of_a_residual_beside_an_edge() -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def u(x: Any) -> Any:
        return net(x.unsqueeze(0)).squeeze()

    for _ in range(3):
        residual = func.vmap(func.grad(u))(torch.linspace(0, 1, 5)) + func.vmap(u)(torch.linspace(0, 1, 5))
        loss = residual.pow(2).mean() + u(torch.tensor(0.0)).pow(2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_a_pass_reaches_the_leaf_through_what_ran_under_vmap(tmp_path: Path) -> None:
    _, trace = recorded(tmp_path, of_an_ensemble)
    query = Query(trace)
    graph = build(query, 1)
    (leaf,) = [node for node in graph.nodes.values() if node.kind == LEAF and node.requires_grad]
    inside = {edge.target for edge in graph.edges if edge.source == leaf.id and edge.kind == DATA}
    assert [(node.is_leaf, node.requires_grad, node.shape) for node in map(graph.nodes.__getitem__, inside)] == [
        (False, True, (3,))
    ]
    ops = {node.op: node for node in graph.nodes.values() if node.kind == OP}
    assert {"mul", "mv", "sub"} <= ops.keys()
    assert [graph.nodes[ops[name].pair].grad_fn for name in ("mul", "mv")] == ["MulBackward0", "MmBackward0"]
    assert not any(op.astray for op in ops.values())


def test_jvp_pushes_tangents(tmp_path: Path) -> None:
    def program() -> Any:
        x, direction = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
        return [one.tolist() for one in func.jvp(lambda z: z * z, (x,), (direction,))]

    (_, tangent), trace = recorded(tmp_path, program)
    assert tangent == [2.0, 0.0]
    first, last = of(trace, TangentPushed)
    assert value(trace, first.tangent, first) == [1.0, 0.0]
    assert value(trace, last.tangent, last) == [2.0, 0.0]


def of_vjp() -> Any:
    out, pull = func.vjp(lambda x: x.sin(), torch.tensor([0.5]))
    return out.tolist(), [one.tolist() for one in pull(torch.ones(1))]


def of_grad_of_grad() -> Any:
    return func.grad(func.grad(lambda x: x**3))(torch.tensor(2.0)).tolist()


def of_jacobians() -> Any:
    x = torch.tensor([1.0, 2.0])
    return [make(lambda z: z**2)(x).tolist() for make in (func.jacrev, func.jacfwd, func.hessian)]


def of_functions_without_writes() -> Any:
    def changed(x: Any) -> Any:
        y = x * 2
        y.add_(1)
        return (y * x).sum()

    x = torch.tensor([1.0, 2.0])
    return [
        transform(x).tolist() for transform in (func.functionalize(changed), func.grad(func.functionalize(changed)))
    ]


def of_a_directional_derivative_of_a_gradient() -> Any:
    x = torch.tensor([1.0, 2.0])
    return func.jvp(func.grad(lambda z: (z**4).sum()), (x,), (torch.ones(2),))[1].tolist()


def of_training_with_a_gradient_inside() -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x = torch.randn(8, 2)
    for _ in range(3):
        loss = (func.grad(lambda z: net(z).sum())(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [p.tolist() for p in net.parameters()]


def of_parameters_in_a_dictionary() -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    x, y = torch.randn(8, 2), torch.randn(8, 1)

    def loss_of(parameters: Any) -> Any:
        return (func.functional_call(net, parameters, (x,)) - y).pow(2).mean()

    for _ in range(3):
        gradients, _ = func.grad_and_value(loss_of)(parameters)
        parameters = {name: p - 0.1 * gradients[name] for name, p in parameters.items()}
    return [p.tolist() for p in parameters.values()]


def of_a_failing_transform() -> Any:
    try:
        func.grad(lambda x: x * 2)(torch.ones(2))
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize(
    ("program", "passes"),
    [
        (of_vjp, 1), (of_grad_of_grad, 2), (of_jacobians, 2), (of_functions_without_writes, 1),
        (of_a_directional_derivative_of_a_gradient, 1), (of_training_with_a_gradient_inside, 6),
        (of_parameters_in_a_dictionary, 3), (of_a_failing_transform, 0), (of_an_ensemble, 2),
        (of_a_gradient_of_a_batch, 1), (of_a_residual_beside_an_edge, 6),
    ],
)  # fmt: skip
def test_a_sound_program_over_transforms_is_recorded_and_not_accused(
    tmp_path: Path, program: Callable[[], Any], passes: int
) -> None:
    _, trace = recorded(tmp_path, program)
    assert (len(of(trace, PassBegan)), check(trace).findings) == (passes, ())
