"""`--scope`: detail only inside modules and Functions of one name, on both engines."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradviz
from gradviz.events.kinds import Accumulated, NodeMade, OpRan, PassBegan, Received, ScopeEntered, ScopeLeft
from gradviz.graph.build import build
from gradviz.query import Query
from gradviz.tracefile import Trace

ENGINES = [pytest.param("gradviz.engine", id="numpy"), pytest.param("torch", id="torch", marks=pytest.mark.torch)]


@pytest.fixture(params=ENGINES)
def torch(request: pytest.FixtureRequest) -> Any:
    return pytest.importorskip(request.param) if request.param == "torch" else importlib.import_module(request.param)


Record = Callable[..., Trace]


@pytest.fixture
def record(tmp_path: Path) -> Record:
    """Records a function's run, in a file of its own each time."""

    def run(function: Callable[[], object], **settings: Any) -> Trace:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gradviz"
        with gradviz.record(path, values="full", **settings):
            function()
        return gradviz.open(path)

    return run


def of(trace: Trace, *kinds: type[Any]) -> list[Any]:
    return [event for event in trace if isinstance(event, kinds)]


def training(torch: Any, steps: int = 2) -> Callable[[], None]:
    """Some steps of a net of three parts."""
    nn = torch.nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return torch.tanh(self.fc(x)) * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block, self.last = nn.Linear(3, 4), Block(), nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            return self.last(self.block(torch.relu(self.first(x))))

    def train() -> None:
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            optimizer.zero_grad()
            (net(torch.ones(2, 3)) ** 2).mean().backward()
            optimizer.step()

    return train


INSIDE = ["t", "addmm", "tanh", "mul"]


@pytest.mark.parametrize("name", ["net.block", "block", "Block"])
def test_ops_and_nodes_are_those_inside_and_the_path_is_whole(torch: Any, record: Record, name: str) -> None:
    trace = record(training(torch), scope=name)
    assert [event.op for event in of(trace, OpRan)] == 2 * INSIDE
    assert len(of(trace, NodeMade)) == 8
    entered = [event.name for event in of(trace, ScopeEntered)]
    assert entered == 2 * ["net", "net.block", "net.block.fc"]
    assert len(of(trace, ScopeLeft)) == len(entered)
    (tanh, _) = (event for event in of(trace, OpRan) if event.op == "tanh")
    assert Query(trace).scopes.path(tanh.index) == "net/block"


def test_gradients_inside_are_those_of_a_whole_recording(torch: Any, record: Record) -> None:
    part, whole = record(training(torch), scope="block"), record(training(torch))
    flows: list[list[tuple[str, list[Any]]]] = []
    for trace in (part, whole):
        scopes, nodes = Query(trace).scopes, Query(trace).nodes
        flows.append(
            [
                (event.grad_fn, [trace.snapshot(g, event.index).array.tolist() for g in event.gradients])
                for event in of(trace, Received)
                if (made := nodes.made(event.node)) is not None and "block" in scopes.path(made)
            ]
        )
    assert flows[0] == flows[1]
    assert [name for name, _ in flows[0]] == 2 * ["MulBackward0", "TanhBackward0", "AddmmBackward0", "TBackward0"]


def test_every_leaf_has_its_gradient_inside_or_not(torch: Any, record: Record) -> None:
    part, whole = record(training(torch), scope="block"), record(training(torch))
    found = []
    for trace in (part, whole):
        names = Query(trace).names
        found.append(
            {
                (event.in_pass, names.of(event.tensor)): trace.snapshot(event.grad, event.index).array.tolist()
                for event in of(trace, Accumulated)
            }
        )
    assert found[0] == found[1]
    assert len(found[0]) == 12


def test_a_picture_shows_what_is_inside(torch: Any, record: Record) -> None:
    trace = record(training(torch), scope="block")
    graph = build(trace)
    assert [n.name for n in graph.nodes.values() if n.kind == "op"] == INSIDE
    leaves = {node.name for node in graph.nodes.values() if node.kind == "leaf"}
    assert leaves == {"net.block.fc.weight", "net.block.fc.bias"}
    (root,) = (node for node in graph.nodes.values() if node.root and node.kind == "grad_fn")
    assert root.name == "MulBackward0"


def test_a_pass_is_marked_as_not_recorded_whole(torch: Any, record: Record) -> None:
    trace = record(training(torch), scope="block")
    assert [run.recorded for run in trace.passes] == [0, 0]
    report = gradviz.check(trace)
    assert not report.findings
    assert "--scope" in dict(report.not_checked)["unused-parameter"]


def test_scope_and_passes_go_together(torch: Any, record: Record) -> None:
    trace = record(training(torch, 3), scope="block", passes={2})
    (second,) = (event for event in of(trace, PassBegan) if event.number == 2)
    ops = of(trace, OpRan)
    assert [event.op for event in ops] == INSIDE
    assert ops[-1].index < second.index
    assert {event.in_pass for event in of(trace, Received)} == {2}
    assert len(of(trace, Accumulated)) == 18


def test_a_function_is_a_scope_with_its_own_op(torch: Any, record: Record) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2

    def program() -> None:
        x = torch.ones(2, requires_grad=True)
        y = Double.apply(x.exp())
        y.sum().backward()

    trace = record(program, scope="Double")
    assert [event.op for event in of(trace, OpRan)][-1] == "Double"
    assert [event.grad_fn for event in of(trace, NodeMade)] == ["DoubleBackward"]
    assert [event.grad_fn for event in of(trace, Received)] == ["DoubleBackward"]


def test_the_program_computes_the_same(torch: Any, record: Record, tmp_path: Path) -> None:
    left: list[Any] = []

    def program() -> None:
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        net(torch.randn(4, 3)).sum().backward()
        left.append([p.grad.tolist() for p in net.parameters()] + [torch.rand(2).tolist()])

    program()
    record(program, scope="Tanh")
    assert left[0] == left[1]


@pytest.mark.slow
def test_a_scope_is_left_only_if_it_was_told_to_be_entered(torch: Any, record: Record) -> None:
    """A module whose forward runs passes itself: detail begins or ends while it is open."""

    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.nn.Linear(1, 1)

        def forward(self) -> None:
            for _ in range(3):
                self.part(torch.ones(1, 1)).sum().backward()

    for passes in ({1}, {2}, {3}):
        trace = record(lambda: Loop()(), passes=passes)
        opened: list[int] = []
        for event in of(trace, ScopeEntered, ScopeLeft):
            if isinstance(event, ScopeEntered):
                opened.append(event.scope)
            else:
                assert event.scope == opened.pop()
        assert not opened


def test_a_name_that_is_nobodys_is_said(gradviz_here: Any, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import gradviz.engine as torch\nnet = torch.nn.Linear(1, 1)\nnet(torch.ones(1, 1)).sum().backward()\n"
    )
    done = gradviz_here("trace", "--scope", "block", "net.py")
    assert done.returncode == 0
    assert "no module or Function named block was entered; those entered were net" in done.stderr
    assert "named" not in gradviz_here("trace", "--scope", "net", "net.py").stderr
