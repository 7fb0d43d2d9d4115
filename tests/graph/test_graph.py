"""The graph of a run: what is in it, which part of the run it shows, and that it is what `next_functions` gives."""

from __future__ import annotations

import gc
import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import gradviz
import gradviz.engine as torch
from gradviz.engine.autograd import forward_ad
from gradviz.graph.build import GraphError, build
from gradviz.graph.model import MUTATION, Graph, Node, no_collection, to_json
from gradviz.pictures.node_text import facts
from gradviz.sources.record import record
from gradviz.tracefile import Trace, open_trace

NODE_FIELDS = [
    *("id", "kind", "name", "op", "grad_fn", "is_leaf", "requires_grad", "shape", "dtype"),
    *("file", "line", "col", "end_col", "scope", "count"),
]  # fmt: skip
Traced = Callable[[Callable[[], Any]], Trace]


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    """Records a function, and opens the trace; `trace.result` is what the function returned."""

    def run(program: Callable[[], Any]) -> Trace:
        with record(tmp_path / "run.gradviz"):
            result = program()
        trace = open_trace(tmp_path / "run.gradviz")
        trace.result = result  # type: ignore[attr-defined]
        return trace

    return run


def named(graph: Graph, name: str) -> Node:
    """The one node of this name."""
    (node,) = (node for node in graph.nodes.values() if node.name == name)
    return node


def edges(graph: Graph, kind: str) -> set[tuple[str | None, str | None]]:
    return {(graph.nodes[e.source].name, graph.nodes[e.target].name) for e in graph.edges if e.kind == kind}


# --- programs


def logarithm_of_a_cube() -> Any:
    x = torch.tensor(5.0, requires_grad=True)
    y = x**3
    z = torch.log(y)
    z.backward()
    return [z]


def several_paths() -> Any:
    x = torch.tensor(5.0, requires_grad=True)
    q = torch.tensor(3.0, requires_grad=True)
    y = x**q
    w = x * x
    z = torch.log(y) + torch.sqrt(w)
    z.backward()
    return [z]


def twice_through_one_graph() -> Any:
    x = torch.tensor(5.0, requires_grad=True)
    z = torch.log(x**3)
    z.backward(retain_graph=True)
    z.backward()
    return [z]


def second_derivative() -> Any:
    x = torch.tensor(2.0, requires_grad=True)
    y = x**3 + torch.sin(x)
    (first,) = torch.autograd.grad(y, x, create_graph=True)
    first.backward()
    return [first]


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x


def custom_function() -> Any:
    x = torch.tensor(3.0, requires_grad=True)
    y = Squared.apply(x)
    z = y + 1
    z.backward()
    return [z]


def two_roots() -> Any:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    u, v = (x * 2).sum(), (x.exp()).sum()
    torch.autograd.backward([u, v])
    return [u, v]


def in_place() -> Any:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = x * 2
    y.mul_(3)
    z = y.sum()
    z.backward()
    return [z]


def network() -> Any:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = (net(torch.ones(2, 3)) ** 2).mean()
        loss.backward()
        optimizer.step()
    return [loss]


def detached() -> Any:
    x = torch.tensor(5.0, requires_grad=True)
    y = x * torch.tensor([2.0, 3.0])
    w = y.detach()
    w.requires_grad_()
    z = (w * w).sum()
    z.backward()
    return [z]


def control_flow() -> Any:
    x = torch.tensor(1.0, requires_grad=True)
    y = x
    while y < 20:
        y = y * 3 if y > 5 else y + 2
    y.backward()
    return [y]


PROGRAMS = [
    logarithm_of_a_cube,
    several_paths,
    twice_through_one_graph,
    second_derivative,
    custom_function,
    two_roots,
    in_place,
    network,
    detached,
    control_flow,
]
programs = pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)


# --- the contract


def walked(roots: list[Any]) -> tuple[Counter, Counter]:
    """Names of nodes and edges that `next_functions` leads to from live tensors."""
    seen = dict.fromkeys(root.grad_fn for root in roots)
    stack, found = list(seen), Counter()
    while stack:
        node = stack.pop()
        for target, _ in node.next_functions:
            if target is not None:
                found[type(node).__name__, type(target).__name__] += 1
                if target not in seen:
                    seen[target] = None
                    stack.append(target)
    return Counter(type(node).__name__ for node in seen), found


@programs
def test_show_backward_is_exactly_what_walking_next_functions_gives(program: Callable[[], Any], traced: Traced) -> None:
    with traced(program) as trace:
        graph = to_json(build(trace, show="backward"))
        names = {node["id"]: node["name"] for node in graph["nodes"]}
        found = Counter((names[edge["source"]], names[edge["target"]]) for edge in graph["edges"])
        assert (Counter(names.values()), found) == walked(trace.result)  # type: ignore[attr-defined]
        assert {node["kind"] for node in graph["nodes"]} == {"grad_fn"}
        assert {edge["kind"] for edge in graph["edges"]} <= {"grad"}


@programs
@pytest.mark.parametrize("whole", [False, True])
def test_json_has_the_fields_and_kinds_of_the_contract_and_nothing_else(
    program: Callable[[], Any], whole: bool, traced: Traced
) -> None:
    with traced(program) as trace:
        graph = json.loads(json.dumps(to_json(build(trace, whole=whole))))
    assert list(graph) == ["nodes", "edges"]
    ids = [node["id"] for node in graph["nodes"]]
    assert len(ids) == len(set(ids))
    for node in graph["nodes"]:
        assert list(node) == NODE_FIELDS
        assert node["kind"] in {"leaf", "tensor", "op", "grad_fn"}
        assert node["count"] == 1
        assert (node["is_leaf"] is None) == (node["kind"] in {"op", "grad_fn"})
    for edge in graph["edges"]:
        assert list(edge) == ["source", "target", "kind"]
        assert edge["kind"] in {"data", "grad", "saved", "mutation", "view"}
        assert edge["source"] in ids
        assert edge["target"] in ids


@pytest.mark.slow
@programs
def test_the_same_run_has_the_same_graph(program: Callable[[], Any], traced: Traced) -> None:
    with traced(program) as trace:
        assert to_json(build(trace)) == to_json(build(trace, values=False))


@programs
def test_no_node_but_ops_and_grad_fns_stands_between_tensors(program: Callable[[], Any], traced: Traced) -> None:
    with traced(program) as trace:
        graph = build(trace, whole=True)
    kinds = {(graph.nodes[e.source].kind, graph.nodes[e.target].kind, e.kind) for e in graph.edges}
    held = ("leaf", "tensor")
    for source, target, kind in kinds:
        if kind == "data":
            assert (source in held) != (target in held)
            assert "op" in (source, target)
        elif kind == "saved":
            assert source in held
            assert target == "grad_fn"
        else:
            assert {source, target} <= ({"grad_fn"} if kind == "grad" else set(held))


def test_the_whole_run_has_the_gradients_of_each_pass(traced: Traced) -> None:
    def two_passes_of_three() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        (x * 3).backward()
        (x * 5).backward()
        x * 7

    with traced(two_passes_of_three) as trace:
        graph = build(trace, whole=True)
        last = build(trace, 2)
    ran = [node.ran for node in graph.nodes.values() if node.id[0] == "n" and node.name == "MulBackward0"]
    assert sorted(ran) == [False, True, True]
    assert sorted(float(edge.value.array) for edge in graph.edges if edge.value is not None) == [3, 5]
    assert [float(edge.value.array) for edge in last.edges if edge.value is not None] == [5]


# --- nodes


def test_a_tensor_node_says_what_the_tensor_is_and_where_it_was_made(traced: Traced) -> None:
    with traced(logarithm_of_a_cube) as trace:
        graph = build(trace)
    x, y = named(graph, "x"), named(graph, "y")
    assert (x.kind, x.is_leaf, x.requires_grad, x.grad_fn, x.shape, x.dtype) == (
        *("leaf", True, True, None, (), "float32"),
    )
    assert (y.kind, y.is_leaf, y.requires_grad, y.grad_fn, y.op) == (*("tensor", False, True, "PowBackward0", "pow"),)
    lines = Path(__file__).read_text().splitlines()
    assert y.file == __file__
    assert lines[y.line - 1][y.col : y.end_col] == "x**3"  # type: ignore[operator]


def test_values_and_gradients_are_those_at_the_end_of_the_shown_pass(traced: Traced) -> None:
    with traced(twice_through_one_graph) as trace:
        grads = [named(build(trace, number), "x").grad for number in (1, 2)]
        flows = [
            [float(edge.value.array) for edge in build(trace, number).edges if edge.kind == "grad"]  # type: ignore[union-attr,arg-type]
            for number in (1, 2)
        ]
    assert [float(grad.array) for grad in grads] == pytest.approx([0.6, 1.2])  # type: ignore[union-attr,arg-type]
    assert flows[0] == flows[1] == pytest.approx([0.008, 0.6])


def test_a_leaf_that_no_gradient_reached_has_no_grad(traced: Traced) -> None:
    with traced(detached) as trace:
        graph = build(trace)
    assert not named(graph, "x").has_grad
    assert named(graph, "w").has_grad
    assert (named(graph, "w").kind, named(graph, "w").op) == ("leaf", "detach")


def test_a_retained_gradient_is_there_and_marked(traced: Traced) -> None:
    def program() -> None:
        x = torch.tensor(5.0, requires_grad=True)
        y = x**3
        y.retain_grad()
        torch.log(y).backward()

    with traced(program) as trace:
        y = named(build(trace), "y")
    assert y.retained
    assert float(y.grad.array) == pytest.approx(1 / 125)  # type: ignore[union-attr,arg-type]


def test_a_tensor_that_was_written_over_is_a_node_for_each_version(traced: Traced) -> None:
    with traced(in_place) as trace:
        graph = build(trace)
    before, after = (node for node in graph.nodes.values() if node.name == "y")
    assert after.id == f"{before.id}v1"
    assert (after.written_by, after.grad_fn) == ("mul_", "MulBackward0")
    assert [value.tolist() for value in (before.value.array, after.value.array)] == [[2, 4], [6, 12]]  # type: ignore[union-attr]
    assert ("y", "y") in edges(graph, "mutation")
    assert ("y", "mul_") in edges(graph, "data")
    assert ("mul_", "y") in edges(graph, "data")
    assert after.id in {edge.source for edge in graph.edges if edge.kind == "data"}


def test_modules_are_scopes_and_parameters_belong_to_them(traced: Traced) -> None:
    with traced(network) as trace:
        graph = build(trace)
    assert named(graph, "net.0.weight").scope == "net/0"
    assert named(graph, "relu").scope == "net/1"
    assert named(graph, "mean").scope == ""


def test_tangents_of_forward_mode_are_on_the_tensors_that_carry_them(traced: Traced) -> None:
    def program() -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(torch.tensor(2.0), torch.tensor(1.0))
            out = dual * dual + torch.sin(dual)
        assert out is not None

    with traced(program) as trace:
        graph = build(trace)
    assert float(named(graph, "dual").tangent.array) == 1  # type: ignore[union-attr,arg-type]
    assert float(named(graph, "out").tangent.array) == pytest.approx(3.58385)  # type: ignore[union-attr,arg-type]


def test_an_error_is_marked_at_the_node_that_was_running(traced: Traced) -> None:
    def program() -> None:
        x = torch.tensor(5.0, requires_grad=True)
        z = torch.log(x**3)
        z.backward()
        with pytest.raises(RuntimeError):
            z.backward()

    with traced(program) as trace:
        assert "a second time" in named(build(trace), "LogBackward0").error
        assert not named(build(trace, 1), "LogBackward0").error


# --- cuts


def cuts(graph: Graph) -> dict[str | None, str]:
    return {graph.nodes[edge.target].name: edge.cut for edge in graph.edges if edge.cut}


def test_the_first_value_of_a_leaf_is_no_part_of_a_pass(traced: Traced) -> None:
    def run() -> None:
        w = (torch.randn(3) * 0.1).requires_grad_()
        (w + 1.0).sum().backward()

    with traced(run) as trace:
        assert [node.name for node in build(trace, 1).nodes.values() if node.kind == "op"] == ["add", "sum"]


def test_detach_cuts_and_what_lies_behind_is_still_shown(traced: Traced) -> None:
    with traced(detached) as trace:
        for graph in (build(trace), build(trace, 1)):
            assert cuts(graph) == {"detach": "detach"}
            assert named(graph, "x").requires_grad
            assert not named(graph, "y").has_grad


def test_no_grad_and_data_and_comparisons_cut(traced: Traced) -> None:
    def program() -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        with torch.no_grad():
            y = x * 2
        d = x.data
        positive = x > 0
        z = (x * y * d * positive).sum()
        z.backward()

    with traced(program) as trace:
        found = cuts(build(trace))
    assert found == {"mul": "no_grad", "d": "data", "gt": "not differentiable"}


# --- which part of a run


def test_a_pass_is_what_its_roots_were_computed_from(traced: Traced) -> None:
    with traced(network) as trace:
        last, first = build(trace, 3), build(trace, 1)
        with pytest.raises(GraphError, match=r"no pass 4 .*: it has 1 to 3"):
            build(trace, 4)
    assert (last.pass_number, first.pass_number) == (3, 1)
    assert last.counts() == first.counts()
    assert named(first, "net.0.weight").version == 0
    assert named(last, "net.0.weight").version == 2
    assert not [edge for edge in last.edges if edge.kind == "mutation"]  # what SGD did before is another story


@pytest.mark.slow
def test_a_pass_does_not_drag_in_what_an_earlier_one_differentiated(traced: Traced) -> None:
    def program() -> None:
        w = torch.tensor(0.5, requires_grad=True)
        state = torch.tensor(1.0)
        for _ in range(4):
            state = (state * w).tanh()
            (state**2).backward()
            state = state.detach()

    with traced(program) as trace:
        counts = [build(trace, number).counts()["op"] for number in (1, 2, 3, 4)]
    assert counts == [3, 4, 4, 4]


def test_a_gradient_that_the_program_clears_is_no_part_of_a_small_picture(traced: Traced) -> None:
    def program() -> None:
        x = torch.tensor(5.0, requires_grad=True)
        (x * 2).backward()
        x.grad.zero_()
        (x * 3).exp().backward()

    graph = build(traced(program))
    assert [node.name for node in graph.nodes.values() if node.kind == "op"] == ["mul", "mul", "exp"]


def test_a_small_run_shows_its_side_branches_unless_a_pass_is_asked_for(traced: Traced) -> None:
    def program() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        aside = x.exp()
        assert aside.requires_grad
        (x * 3).backward()
        torch.sqrt(x)

    with traced(program) as trace:
        shown = {whole: build(trace, whole=whole) for whole in (False, True)}
        asked = build(trace, 1)
    ops = {key: {n.name for n in graph.nodes.values() if n.kind == "op"} for key, graph in shown.items()}
    assert ops == {False: {"exp", "mul"}, True: {"exp", "mul", "sqrt"}}
    assert [shown[False].left_out, shown[True].left_out, asked.left_out] == [1, 0, 2]


def test_what_a_custom_function_does_inside_is_left_out_unless_all_is_asked_for(traced: Traced) -> None:
    with traced(custom_function) as trace:
        plain, whole = build(trace), build(trace, whole=True)
    assert [node.name for node in plain.nodes.values() if node.kind == "op"] == ["Squared", "add"]
    assert named(whole, "Squared").op == "Squared"
    assert sum(node.kind == "op" for node in whole.nodes.values()) > 2


def trained_by_hand() -> None:
    w = torch.tensor([1.0], requires_grad=True)
    for _ in range(3):
        (w * 2).sum().backward()
        with torch.no_grad():
            w -= 0.01 * w.grad
        w.grad.zero_()


def test_a_leaf_is_one_leaf_however_often_it_was_updated(traced: Traced) -> None:
    with traced(trained_by_hand) as trace:
        graph = build(trace, whole=True)
        third = build(trace, passes=3)
    assert graph.counts()["leaf"] == 1
    versions = [node for node in graph.nodes.values() if node.name == "w"]
    assert [(node.kind, node.version) for node in versions] == [
        ("leaf", 0), ("tensor", 1), ("tensor", 2), ("tensor", 3)
    ]  # fmt: skip
    assert all(node.is_leaf and node.requires_grad for node in versions)
    assert [node.overwritten for node in versions] == [True, True, True, False]
    assert [node.version for node in third.nodes.values() if node.kind == "leaf"] == [2]


def test_what_an_op_made_without_a_gradient_is_no_leaf_of_the_picture(traced: Traced) -> None:
    def program() -> None:
        x = torch.tensor([1.0, 2.0])
        y = x * 2  # noqa: F841
        z = (x * 3).detach().requires_grad_()
        (z * x).sum().backward()

    with traced(program) as trace:
        graph = build(trace, whole=True)
    assert {node.name for node in graph.nodes.values() if node.kind == "leaf"} == {"x", "z"}
    assert named(graph, "y").is_leaf, "as PyTorch has it"


def test_of_several_passes_of_a_small_run_that_with_the_infinity_is_shown(traced: Traced) -> None:
    def program() -> None:
        w = torch.tensor([0.0, 1.0], requires_grad=True)
        (torch.sqrt(w) * 2).sum().backward()
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        (x**2).sum().backward()

    graph = build(traced(program))
    assert (graph.pass_number, graph.why) == (1, "with the first infinity")


def test_a_run_without_a_pass_is_shown_whole(traced: Traced) -> None:
    def program() -> None:
        x = torch.tensor(2.0, requires_grad=True)
        y = x * 3
        z = torch.sin(x)
        assert y.requires_grad
        assert z.requires_grad

    with traced(program) as trace:
        assert build(trace).pass_number is None
        ends = build(trace, show="backward")
    assert sorted(node.name or "" for node in ends.nodes.values()) == (
        ["AccumulateGrad", "MulBackward0", "SinBackward0"]
    )


def test_show_forward_has_no_grad_fns(traced: Traced) -> None:
    with traced(several_paths) as trace:
        graph = build(trace, show="forward")
    assert {node.kind for node in graph.nodes.values()} == {"leaf", "tensor", "op"}
    assert {edge.kind for edge in graph.edges} == {"data"}


def long_run(turns: int) -> Callable[[], None]:
    """A program of two ops a turn, each on the result of the last."""

    def program() -> None:
        x = torch.tensor([0.1, 0.2], requires_grad=True)
        y = x
        for _ in range(turns):
            y = y * 1.0001 + 0.001
        y.sum().backward()

    return program


@pytest.mark.slow
def test_a_long_run_is_built(traced: Traced) -> None:
    with traced(long_run(5000)) as trace:
        graph = build(trace, values=False)
    assert graph.counts() == {"leaf": 1, "tensor": 10_001, "op": 10_001, "grad_fn": 10_002}


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python a call runs, those of a loop once for each turn."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.slow
def test_the_work_to_build_a_graph_is_proportional_to_its_size(traced: Traced) -> None:
    work = []
    for turns in (10, 100, 200, 400):
        with traced(long_run(turns)) as trace:
            work.append(lines_run(lambda: build(trace)))
    _, *work = work  # the first has loaded what there is to load
    assert work[2] - work[1] < 2.2 * (work[1] - work[0])


@pytest.mark.slow
def test_what_is_made_without_the_collector_counts_as_old_and_what_was_frozen_stays_frozen() -> None:
    gc.collect()
    with no_collection():
        kept = [[number] for number in range(100_000)]
    assert len(kept) == 100_000
    assert gc.isenabled()
    assert gc.get_count()[0] < 10_000
    gc.freeze()
    frozen = gc.get_freeze_count()
    try:
        with no_collection():
            pass
        assert gc.get_freeze_count() == frozen
    finally:
        gc.unfreeze()


def test_the_gradient_of_a_leaf_stands_beside_it_in_the_whole_run(traced: Traced) -> None:
    def twice() -> None:
        a = torch.tensor([2.0, 2.0], requires_grad=True)
        y = (a * 2.5).sum()
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        a.grad.zero_()
        y.backward()
        a.grad.mul_(2)

    with traced(twice) as trace:
        graph = build(trace, whole=True)
    (leaf,) = [node for node in graph.nodes.values() if node.name == "a"]
    first, *later = [node for node in graph.nodes.values() if node.grad_of == "a"]
    assert first.pair == leaf.id
    assert [facts(node) for node in (first, *later)] == ["a.grad"] * 3
    assert [(node.version, node.value.array.tolist()) for node in later] == [(2, [0, 0]), (4, [5, 5])]
    writes = [edge.label for edge in graph.edges if edge.kind == MUTATION]
    assert writes == ["accumulated, zero_", "accumulated, mul_"]


@pytest.mark.torch
def test_each_accumulate_grad_stands_beside_its_leaf_though_no_recorded_op_reads_it(tmp_path: Path) -> None:
    weights = pytest.importorskip("torch", reason="pip install torch==2.13.0").ones(3, requires_grad=True)
    for _ in range(2):
        h = weights.exp()  # before the recording
        with gradviz.record(tmp_path / "run.gradviz"):
            (h * 2).sum().backward()
        with open_trace(tmp_path / "run.gradviz") as trace:
            graph = build(trace)
        accumulators = {node.id for node in graph.nodes.values() if node.name == "AccumulateGrad"}
        leaves = [node for node in graph.nodes.values() if node.pair in accumulators]
        assert len(accumulators) == len(leaves) == 1
        assert leaves[0].is_leaf
        assert leaves[0].value is not None
