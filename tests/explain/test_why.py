"""`why`: a gradient as a sum over paths. The contributions are those of all paths taken one by one, and add up."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gradviz as package
import gradviz.engine as torch
from gradviz.explain.origin import NoAnswer, _addition, why
from gradviz.query import Query
from gradviz.query.gradient_paths import MOST_PATHS, Missing, Paths
from gradviz.tracefile import open_trace
from gradviz.words.stop import UnknownName
from tests.invoked import invoked

Command = Callable[..., CompletedProcess[str]]

# Ops with their local derivatives for each operand, as functions of the operands.
OPS = [
    (lambda a, b: a.sin(), [lambda a, b: math.cos(a)]),
    (lambda a, b: a * 3, [lambda a, b: 3.0]),
    (lambda a, b: a.exp() * 0.1, [lambda a, b: math.exp(a) * 0.1]),
    (lambda a, b: a**2, [lambda a, b: 2 * a]),
    (lambda a, b: a.clone(), [lambda a, b: 1.0]),
    (lambda a, b: a * b, [lambda a, b: b, lambda a, b: a]),
    (lambda a, b: a + b, [lambda a, b: 1.0, lambda a, b: 1.0]),
    (lambda a, b: a - b, [lambda a, b: 1.0, lambda a, b: -1.0]),
]
GRAPHS = st.lists(
    st.tuples(st.integers(0, len(OPS) - 1), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=11
)
NUMBERS = st.floats(0.1, 1.5)


def contributions(graph, values) -> list[float]:
    """The product of the local derivatives along every path from the root to the leaf, path by path."""
    found: list[float] = []

    def follow(at: int, product: float) -> None:
        if at == 0:
            found.append(product)
            return
        op, *operands = graph[at - 1]
        operands = [operand % at for operand in operands]
        for operand, local in zip(operands, OPS[op][1], strict=False):
            follow(operand, product * local(*(values[one] for one in operands)))

    follow(len(graph), 1.0)
    return sorted(found, key=abs, reverse=True)


@settings(max_examples=80)
@given(GRAPHS, NUMBERS)
def test_contributions_are_those_of_all_paths_and_add_up(tmp_path_factory, graph, number) -> None:
    file = tmp_path_factory.mktemp("why") / "run.gradviz"
    with package.record(file):
        x = torch.tensor(number, dtype=torch.float64, requires_grad=True)
        made = [x]
        for op, a, b in graph:
            made.append(OPS[op][0](made[a % len(made)], made[b % len(made)]))
        made[-1].backward()
    # What exp can take.
    assume(math.isfinite(x.grad.item()) and all(abs(tensor.item()) < 700 for tensor in made))
    expected = contributions(graph, [float(tensor.detach()) for tensor in made])
    with open_trace(file) as trace:
        reason, few = why(trace, "x", most=5000), why(trace, "x", most=2)
    total = sum(map(abs, expected)) or 1.0
    assert reason.adds_up
    assert few.adds_up
    assert reason.paths == few.paths == len(expected)
    assert float(reason.gradient) == pytest.approx(sum(expected), abs=1e-9 * total)
    if all(contribution.exact for contribution in reason.contributions):
        told = [float(contribution.value) for contribution in reason.contributions]
        assert list(map(abs, told)) == pytest.approx(list(map(abs, expected)), abs=1e-6 * total)
        assert [float(one.value) for one in few.contributions] == pytest.approx(told[:2], abs=1e-9 * total)


def test_gradients_that_cancel_but_for_rounding_give_no_exact_shares(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        y = x.sin()
        (y * 3 - (y + y + y)).backward()  # 3 and three times −1: a third of 3 is not a third when it is rounded
    reason = why(tmp_path / "run.gradviz", "x", most=9)
    assert float(reason.gradient) == 0
    assert reason.adds_up
    assert [contribution.exact for contribution in reason.contributions] == [False] * 4


SHAPES = [(3,), (2, 3), (1,), (2, 1)]
TENSOR_OPS = [
    lambda a, b: a * b.sum(),
    lambda a, b: a.sin() + a,
    lambda a, b: a * b.mean() - a,
    lambda a, b: torch.nn.functional.softmax(a, -1) * a,
    lambda a, b: a @ a.t() @ a if a.dim() == 2 else a * a,
    lambda a, b: torch.stack([a, a * 2]).sum(0) + b.sum(),
    lambda a, b: a + a.unbind(0)[0].mean(),
]


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.sampled_from(SHAPES),
    st.lists(
        st.tuples(st.integers(0, len(TENSOR_OPS) - 1), st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=8
    ),
    st.booleans(),
)
def test_contributions_to_tensors_and_elements_add_up(tmp_path_factory, shape, graph, element) -> None:
    file = tmp_path_factory.mktemp("why") / "run.gradviz"
    with package.record(file):
        values = np.linspace(0.1, 1.0, math.prod(shape), dtype=np.float32).reshape(shape)
        x = torch.tensor(values, requires_grad=True)
        made = [x * 1]
        for op, a, b in graph:
            made.append(TENSOR_OPS[op](made[a % len(made)], made[b % len(made)]))
        made[-1].sum().backward()
    assume(np.isfinite(x.grad.numpy()).all())  # there is no sum that is infinite
    index = ", ".join("0" for _ in shape)
    with open_trace(file) as trace:
        reason = why(trace, f"x[{index}]" if element else "x", most=3)
    assert reason.adds_up
    expected = x.grad.numpy()[(0,) * len(shape)] if element else x.grad.numpy()
    total = sum(one.value for one in reason.contributions) + reason.rest
    size = 1 + abs(expected).max()
    assert np.allclose(total, expected, atol=1e-4 * size * len(graph))


def test_an_element_is_followed_through_elementwise_ops(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        y = w * torch.tensor([1.0, 0.0, 2.0]) + 0.0
        (y * y + y.exp() * torch.tensor([[0.0], [1.0]])).sum().backward()
    reason = why(tmp_path / "run.gradviz", "w[2]")
    assert [one.exact for one in reason.contributions] == [True] * 3
    told = sorted(float(one.value) for one in reason.contributions)
    assert told == pytest.approx([24.0, 24.0, math.exp(6) * 2])  # 2 · y twice for both rows, and exp(y)


def test_a_gradient_of_zeros_has_a_sum_of_values_and_no_shares(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.ones(3, requires_grad=True)
        (w * torch.zeros(3)).sum().backward()
    told = _addition(why(tmp_path / "run.gradviz", "w"))
    assert told == "[0, 0, 0] = [0, 0, 0]"


def test_the_graph_is_gone_through_once_though_it_has_2_to_the_60_paths(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        x = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        y = x * 1
        for _ in range(60):
            y = y * 0.25 + y * 0.75
        y.backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        reason = why(trace, "x", most=4)
        query = Query(trace)
        node = next(iter(query.nodes.leaves))
        meetings = Paths(query, 1, node, 0).meetings
        assert len(meetings) == len(query.deliveries(1).received[0])
    assert reason.paths == MOST_PATHS
    assert [float(one.value) for one in reason.contributions] == pytest.approx(
        [0.75**60, *[0.75**59 * 0.25] * 3], rel=1e-6
    )
    assert reason.adds_up


def test_a_node_that_ran_twice_in_a_pass_gives_no_gradient_to_one_that_ran_before(tmp_path: Path) -> None:
    """As a damaged trace may say."""
    with package.record(tmp_path / "run.gradviz"):
        x = torch.tensor(2.0, requires_grad=True)
        (x.exp() * 3).backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        flow = query.deliveries(1)
        nodes, events = flow.received
        flow.received = np.append(nodes, nodes[:1]), np.append(events, events[-1:])
        leaf = next(iter(query.nodes.leaves))
        assert len(Paths(query, 1, leaf, 0).meetings) < len(nodes)


def test_gradients_that_cannot_be_added_meet_nowhere(tmp_path: Path) -> None:
    """As a damaged trace may say."""
    with package.record(tmp_path / "run.gradviz"):
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        (x * x + x).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        flow = query.deliveries(1)
        leaf = next(iter(query.nodes.leaves))
        came = np.flatnonzero(flow.targets == leaf)
        own, event = int(flow.gradients[came[0]]), int(flow.events[came[-1]])
        sound = Paths(query, 1, leaf, 0)
        assert len(sound.meetings[sound.target].arrivals) == len(came)
        flow.gradients[came[0]] = flow.gradients[0]  # of the root, a number
        with pytest.raises(Missing):
            Paths(query, 1, leaf, 0).decomposed(own, event, 5)


@pytest.mark.slow
def test_of_many_equal_paths_some_are_found_at_once(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        x = torch.tensor(1.0, requires_grad=True)
        y = x * 1
        for _ in range(400):
            y = y * 0.5 + y * 0.5
        y.backward()
    reason = why(tmp_path / "run.gradviz", "x", most=3)
    assert reason.adds_up
    assert len({tuple(hop.node for hop in one.hops) for one in reason.contributions}) == 3


def test_what_a_hook_on_the_tensor_adds_is_a_term(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        w.register_hook(lambda g: g * 10)
        (w * w + w).sum().backward()
    reason = why(tmp_path / "run.gradviz", "w")
    assert reason.hooks.tolist() == [27.0, 45.0]
    assert reason.adds_up


def test_a_path_ends_where_the_elements_of_gradients_that_meet_were_not_kept(tmp_path: Path) -> None:
    with package.record(tmp_path / "run.gradviz"):
        w = torch.tensor(2.0, requires_grad=True)
        y = w * torch.ones(100)
        (y * y + y).sum().backward()
    reason = why(tmp_path / "run.gradviz", "w")
    assert [(one.cut, one.share) for one in reason.contributions] == [(True, 1.0)]
    assert reason.adds_up


PROGRAM = """\
import torch
w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
v = torch.ones(20, 20, requires_grad=True)
unused = torch.ones(1, requires_grad=True)
h = (w * 2).sum()
loss = h * 3 + h.exp() * 1e-9 + v.sum()
loss.backward()
"""


@pytest.fixture
def run(gradviz_here: Command, tmp_path: Path) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM)
    gradviz_here("trace", "program.py")
    return tmp_path / "program.gradviz"


def test_the_command_shows_each_path_from_the_root_with_places_and_derivatives(
    gradviz_here: Command, run: Path
) -> None:
    done = gradviz_here("why", run.name, "w[1, 0]")
    assert done.returncode == 0
    assert "gradient of w[1, 0] = 6.97033  in pass 1" in done.stdout
    assert "2 paths from loss" in done.stdout
    assert "1. 86.1 %  6" in done.stdout
    assert "line 6" in done.stdout
    assert "∂(h * 3)/∂h = 3" in done.stdout
    assert "sum     6 + 0.97033 = 6.97033: it is the recorded gradient" in done.stdout
    assert done.stdout.index("line 7") < done.stdout.index("line 6") < done.stdout.index("line 5")


def test_json_has_the_paths_as_data(gradviz_here: Command, run: Path) -> None:
    told = json.loads(gradviz_here("why", "w[1, 0]", "--format", "json", "--paths", 1).stdout)
    (path,) = told["contributions"]
    assert (told["paths"], told["adds_up"], path["exact"]) == (2, True, True)
    assert path["value"] == pytest.approx(6.0)
    assert [step["line"] for step in path["steps"]] == [7, 6, 6, 6, 5, 5]
    assert path["value"] + told["rest"] == pytest.approx(told["gradient"])


@pytest.mark.parametrize(
    ("tensor", "says"),
    [
        ("v[0, 0]", "the elements of the gradient of v were not recorded: record with gradviz trace --values full"),
        ("unused", "no pass gave unused a gradient"),
        ("w[2, 0]", "w has no element [2, 0]: its shape is (2, 2)"),
        ("w[0, 0, 0]", "w has no element"),
        ("weight", "no tensor is called weight"),
    ],
)
def test_what_cannot_be_told_is_one_line(gradviz_here: Command, run: Path, tensor: str, says: str) -> None:
    done = gradviz_here("why", run.name, tensor)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_pass_that_there_is_not_is_one_line(gradviz_here: Command, run: Path) -> None:
    assert "there is no pass 9: the trace has 1" in gradviz_here("why", "w", "--pass", 9).stderr


def test_a_trace_without_a_tensor_is_one_line(gradviz_here: Command, run: Path) -> None:
    asked = gradviz_here("why", str(run))
    assert asked.returncode == 2
    assert asked.stderr == f"gradviz: {run} is a file: name a tensor, too, as in: gradviz why {run} TENSOR\n"


def test_the_same_on_pytorch(gradviz_here: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(PROGRAM)
    told = []
    for engine in ("torch", "numpy"):
        gradviz_here("trace", "--engine", engine, "-o", "run.gradviz", "program.py")
        told.append(json.loads(gradviz_here("why", "run.gradviz", "w", "--format", "json").stdout))
    assert told[0]["paths"] == told[1]["paths"] == 2
    for one, other in zip(*(run["contributions"] for run in told), strict=True):
        assert np.allclose(one["value"], other["value"], rtol=1e-5)
    assert told[0]["adds_up"]


def test_python_has_it_too(run: Path) -> None:
    reason = package.why(run, "w", most=1)
    assert reason.paths == 2
    with pytest.raises(NoAnswer):
        package.why(run, "unused")
    with pytest.raises(UnknownName):
        package.why(run, "nothing")


@pytest.mark.filterwarnings("error")
def test_a_gradient_too_large_for_its_norm_is_told_without_a_warning(tmp_path: Path) -> None:
    with package.record(tmp_path / "large.gradviz", values="full"):
        x = torch.ones(100, dtype=torch.float64, requires_grad=True)
        (x * 3 + x * 2).backward(torch.full((100,), 1e200, dtype=torch.float64))
    told = package.why(tmp_path / "large.gradviz", "x")
    assert "norm" in str(told)


def test_other_leaves_of_the_name_that_was_asked_for_are_told_apart(tmp_path: Path) -> None:
    def of(value: float) -> torch.Tensor:
        w = torch.full((2,), value, requires_grad=True)
        return (w * w).sum()

    with package.record(tmp_path / "run.gradviz"):
        (of(2.0) + of(5.0)).backward()
    asked = invoked(["why", str(tmp_path / "run.gradviz"), "w"])
    found = re.search(r"this is (t\d+); (t\d+) is called w, too", asked.stdout)
    assert found is not None
    assert "= [10, 10]" in asked.stdout
    assert "= [4, 4]" in invoked(["why", str(tmp_path / "run.gradviz"), found[2]]).stdout
    with package.record(tmp_path / "run.gradviz"):
        of(2.0).backward()
    assert "called w, too" not in invoked(["why", str(tmp_path / "run.gradviz"), "w"]).stdout
