"""A collective that a gradient went through is a gate in the picture of its pass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)

import gradviz  # noqa: E402
from gradviz.cli.drawing import write_page  # noqa: E402
from gradviz.events.kinds import CollectiveCalled, Kind  # noqa: E402
from gradviz.graph.build import build  # noqa: E402
from gradviz.graph.fold import folded  # noqa: E402
from gradviz.graph.joined import over_ranks  # noqa: E402
from gradviz.graph.model import Scope  # noqa: E402
from gradviz.pictures.node_text import exchange_told  # noqa: E402
from gradviz.pictures.scene import Scene, scene_of  # noqa: E402
from gradviz.query import Query  # noqa: E402
from gradviz.query.collective_calls import calls_around, sums  # noqa: E402
from gradviz.query.curves import gradients_of_modules  # noqa: E402
from gradviz.query.flow import sources  # noqa: E402
from gradviz.query.ranks import same_pass  # noqa: E402
from gradviz.sources.torch_recorder.collectives import WRITTEN  # noqa: E402
from gradviz.tracefile import open_trace  # noqa: E402

pytestmark = pytest.mark.torch
dist, nn = torch.distributed, torch.nn


@pytest.fixture
def group() -> Iterator[None]:
    """This process as a group of one."""
    hook = sys.excepthook  # which PyTorch replaces for good
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


@pytest.fixture
def drawn(tmp_path: Path, group: None) -> Callable[..., Scene]:
    """Draws a pass of a program."""

    def draw(run: Callable[[], None], number: int = 1, depth: int | None = None, show: str = "both") -> Scene:
        path = tmp_path / "run.gradviz"
        with gradviz.record(path):
            run()
        with open_trace(path) as trace:
            graph = build(Query(trace), number, show)
            return scene_of(graph if depth is None else folded(graph, depth))

    return draw


class Gathered(torch.autograd.Function):
    """Gathers a part from all ranks, and sums the gradient over them."""

    @staticmethod
    def forward(ctx: Any, part: Any) -> Any:
        parts = [torch.empty_like(part)]
        dist.all_gather(parts, part.detach())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        whole = gradient.clone()
        dist.all_reduce(whole)
        return whole


def gathers() -> None:
    part = torch.ones(3, requires_grad=True)
    dist.all_reduce(torch.ones(1))  # inside no op of the pass
    (Gathered.apply(part) * 2).sum().backward()


@pytest.mark.slow
def test_the_collectives_inside_a_function_stand_at_its_op_and_its_node(drawn: Callable[..., Scene]) -> None:
    inside = {
        thing.lines[0][1]: [text for role, text in thing.lines if text.startswith("all_")]
        for thing in drawn(gathers).things.values()
    }
    assert {name: texts for name, texts in inside.items() if texts} == {
        "Gathered": ["all_gather"],
        "GatheredBackward": ["all_reduce"],
    }


@pytest.mark.slow
def test_the_page_says_them_at_the_op_and_at_the_box_of_its_place(group: None, tmp_path: Path, browser: Any) -> None:
    with gradviz.record(path := tmp_path / "run.gradviz"):
        gathers()
    with open_trace(path) as trace:
        write_page(trace, lambda number: build(trace, number), 1, tmp_path / "page.html")
    tab = browser.new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    tab.wait_for_selector("body[data-ready]")
    lines = (
        "[...document.querySelectorAll('#nodes > g')].filter((box) => box.querySelector('.exchange'))"
        ".map((box) => [box, ...box.querySelectorAll('text')].slice(1).map((text) => text.textContent))"
    )
    assert tab.evaluate(lines) == [["Gathered", "all_gather"], ["GatheredBackward", "all_reduce"]]
    fills = tab.evaluate(
        "(() => { const op = document.querySelector('.op:has(.exchange)');"
        " return [...op.querySelectorAll('text')].map((text) => getComputedStyle(text).fill); })()"
    )
    assert fills[0] == fills[1]  # light on a dark box, as the name
    tab.keyboard.press("r")
    ((_, *told),) = tab.evaluate(lines)
    assert told[-2:] == ["all_gather", "all_reduce"]
    tab.close()


def test_a_graph_looks_at_the_collectives_around_its_own_pass(
    tmp_path: Path, group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gradviz.record(path := tmp_path / "run.gradviz"):
        for _ in range(5):
            gathers()
    looked_at = []

    def noting(*asked: Any) -> list[CollectiveCalled]:
        looked_at.append([*calls_around(*asked)])
        return looked_at[-1]

    monkeypatch.setattr("gradviz.graph.node_values.calls_around", noting)
    with open_trace(path) as trace:
        graphs = [build(Query(trace), number) for number in range(1, 6)]
    assert [len(calls) for calls in looked_at] == [5, 5, 5, 5, 3]  # with those before the next pass
    for graph in graphs:
        told = {node.name: [one.how for one in node.exchanges] for node in graph.nodes.values() if node.exchanges}
        assert [*told.values()] == [["all_gather"], ["all_reduce"]]


def first_stage() -> None:
    w, upstream = torch.ones(2, requires_grad=True), torch.ones(2)
    y = w * 3
    dist.send(y.detach(), 1)
    dist.recv(upstream, 1)
    y.backward(upstream)


def last_stage() -> None:
    x = torch.zeros(2)
    dist.recv(x, 0)
    x.requires_grad_().exp().sum().backward()
    dist.send(x.grad, 0)


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, Query]:
    """The traces of two ranks of a pipeline. Neither waits for the other: nothing is really sent."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which PyTorch replaces for good
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg", reason="not in this PyTorch")
    for rank, run in enumerate((first_stage, last_stage)):
        dist.init_process_group("fake", store=fake.FakeStore(), rank=rank, world_size=2)
        try:
            with gradviz.record(tmp_path / f"{rank}.gradviz"):
                run()
        finally:
            dist.destroy_process_group()
    return {rank: Query(open_trace(tmp_path / f"{rank}.gradviz")) for rank in range(2)}


@pytest.mark.slow
def test_what_is_sent_and_received_stands_at_the_tensors(stages: dict[int, Query]) -> None:
    exchanges = {
        node.name: [*map(exchange_told, node.exchanges)]
        for query in stages.values()
        for node in build(query, 1).nodes.values()
        if node.exchanges
    }
    assert exchanges == {
        "y": ["sent to rank 1"],
        "MulBackward0": ["gradient received from rank 1"],
        "x": ["received from rank 0", ".grad sent to rank 0"],
    }


def in_the_background() -> None:
    x = torch.zeros(2)
    dist.irecv(x, group_src=0).wait()
    x.requires_grad_().exp().sum().backward()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, x.grad, 0)]):
        work.wait()


def test_what_is_sent_and_received_in_the_background_is_told_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which PyTorch replaces for good
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg", reason="not in this PyTorch")
    dist.init_process_group("fake", store=fake.FakeStore(), rank=1, world_size=2)
    try:
        with gradviz.record(tmp_path / "run.gradviz"):
            in_the_background()
    finally:
        dist.destroy_process_group()
    with open_trace(tmp_path / "run.gradviz") as trace:
        called = [event for event in trace if isinstance(event, CollectiveCalled)]
        (x,) = (node for node in build(Query(trace), 1).nodes.values() if node.name == "x")
        (norms,) = gradients_of_modules(Query(trace), lambda leaf: "")
    assert [(event.how, event.args) for event in called] == [("recv", "src=0, async"), ("send", "dst=0, async")]
    assert [*map(exchange_told, x.exchanges)] == ["received from rank 0", ".grad sent to rank 0"]
    assert norms.values.tolist() == [pytest.approx(2**0.5)]  # though what x received is not known


def test_the_argument_that_a_collective_writes_to_is_among_its_parameters() -> None:
    known = {name: inspect.signature(getattr(dist, name)) for name in WRITTEN if hasattr(dist, name)}
    assert len(known) > 10
    assert [name for name, one in known.items() if WRITTEN[name] and WRITTEN[name] not in one.parameters] == []


def test_a_pass_is_the_same_on_a_rank_that_differentiates_for_itself(tmp_path: Path) -> None:
    for rank in range(2):
        with gradviz.record(tmp_path / f"{rank}.gradviz"):
            w = torch.ones(2, requires_grad=True)
            if rank:
                torch.autograd.grad(w.exp().sum(), w)
            for _ in range(2):
                w.exp().sum().backward()
    with open_trace(tmp_path / "0.gradviz") as first, open_trace(tmp_path / "1.gradviz") as other:
        assert [same_pass(first, number, other) for number in (1, 2)] == [2, 3]
        assert [same_pass(other, number, first) for number in (1, 2, 3)] == [None, 1, 2]


@pytest.mark.slow
def test_the_stages_of_a_pipeline_have_a_frame_each_and_edges_between_them(stages: dict[int, Query]) -> None:
    graph = over_ranks({rank: build(query, 1) for rank, query in stages.items()}, stages)
    rank_of = {node.id: node.scope.partition("/")[0] for node in graph.nodes.values()}
    between = [edge for edge in graph.edges if rank_of[edge.source] != rank_of[edge.target]]
    ends = [(edge.kind, graph.nodes[edge.source].name, graph.nodes[edge.target].name) for edge in between]
    assert sorted(ends) == [("data", "y", "x"), ("grad", "AccumulateGrad", "MulBackward0")]
    assert set(rank_of.values()) == {"rank 0", "rank 1"}
    assert not any(node.apart for node in graph.nodes.values())


def test_modules_of_one_name_have_the_class_of_their_stage(stages: dict[int, Query]) -> None:
    graphs = {rank: build(query, 1) for rank, query in stages.items()}
    for graph, of_class in zip(graphs.values(), ("Linear", "ReLU"), strict=True):
        graph.scopes["net"] = Scope(of_class, 1)
        for node in graph.nodes.values():
            node.scope = "net"
    scopes = over_ranks(graphs, stages).scopes
    assert [scopes[f"rank {rank}/net"].type for rank in range(2)] == ["Linear", "ReLU"]


def gates(scene: Scene) -> dict[str, str]:
    """The gates of a picture, by the thing that leads to each."""
    sources = {link.target: link.source for link in scene.links}
    return {sources[one.id]: one.lines[0][1] for one in scene.things.values() if "gate" in one.classes}


def owners(scene: Scene) -> list[str]:
    """The leaves whose AccumulateGrad leads to a gate."""
    leaves = {one.pair: one for one in scene.things.values() if one.pair}
    return sorted(leaves[source].lines[0][1] for source in gates(scene))


def reduced(*chosen: int, data: bool = False) -> None:
    """A pass of a layer, some of whose gradients are reduced."""
    net = nn.Linear(2, 1)
    net(torch.ones(3, 2)).sum().backward()
    for number in chosen:
        grad = [*net.parameters()][number].grad
        dist.all_reduce(grad.data if data else grad)


def test_each_leaf_has_the_gate_of_its_gradient(drawn: Callable[..., Scene]) -> None:
    scene = drawn(lambda: reduced(0, 1))
    assert [*gates(scene).values()] == ["all_reduce", "all_reduce"]
    assert owners(scene) == ["net.bias", "net.weight"]


def test_a_leaf_that_was_left_out_has_none(drawn: Callable[..., Scene]) -> None:
    assert owners(drawn(lambda: reduced(1))) == ["net.bias"]


def test_a_gradient_is_followed_through_its_data(drawn: Callable[..., Scene]) -> None:
    assert owners(drawn(lambda: reduced(0, data=True))) == ["net.weight"]


def test_a_module_has_one_gate_for_its_leaves(drawn: Callable[..., Scene]) -> None:
    scene = drawn(lambda: reduced(0, 1), depth=0)
    assert [*gates(scene).values()] == ["all_reduce"]
    assert all(scene.things[source].lines[0][1].startswith("net") for source in gates(scene))


def test_the_gate_of_a_module_says_how_many_went_through(drawn: Callable[..., Scene]) -> None:
    assert [*gates(drawn(lambda: reduced(1), depth=0)).values()] == ["all_reduce, 1 of 2 gradients"]


def test_a_collective_that_is_called_twice_is_counted(drawn: Callable[..., Scene]) -> None:
    assert [*gates(drawn(lambda: reduced(1, 1))).values()] == ["all_reduce ×2"]


def test_the_forward_graph_has_no_gates(drawn: Callable[..., Scene]) -> None:
    assert gates(drawn(lambda: reduced(0, 1), show="forward")) == {}


def test_a_tensor_that_is_no_gradient_has_no_gate(drawn: Callable[..., Scene]) -> None:
    def run() -> None:
        w = torch.ones(2, requires_grad=True)
        loss = (w * 2).sum()
        loss.backward()
        dist.all_reduce(loss.detach())

    assert gates(drawn(run)) == {}


def accumulated() -> None:
    """Two passes, after which the gradient is averaged once."""
    w = torch.ones(2, requires_grad=True)
    for _ in range(2):
        (w * 2).sum().backward()
    dist.all_reduce(w.grad, op=dist.ReduceOp.SUM)


@pytest.mark.parametrize(("number", "shown"), [(1, []), (2, ["all_reduce SUM"])])
def test_the_gate_is_in_the_picture_of_the_last_pass_before_it(
    number: int, shown: list[str], drawn: Callable[..., Scene]
) -> None:
    assert [*gates(drawn(accumulated, number)).values()] == shown


def two_networks() -> None:
    """Both networks' passes run before the gradients of the first are averaged."""
    first, second = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    (first * 2).sum().backward()
    (second * 2).sum().backward()
    dist.all_reduce(first.grad)


@pytest.mark.parametrize(("number", "shown"), [(1, ["all_reduce"]), (2, [])])
def test_a_gradient_may_be_reduced_after_the_pass_of_another_network(
    number: int, shown: list[str], drawn: Callable[..., Scene]
) -> None:
    assert [*gates(drawn(two_networks, number)).values()] == shown


def flat_copy(back: str) -> None:
    """All gradients are averaged in one flat tensor, and come back one way or another."""
    net = nn.Linear(2, 1)
    other = torch.ones(2, requires_grad=True)
    (net(torch.ones(3, 2)).sum() + (other * 2).sum()).backward()
    grads = [parameter.grad for parameter in net.parameters()]
    flat = torch.cat([grad.reshape(-1) for grad in grads])
    dist.all_reduce(flat)
    flat /= 1
    at = 0
    for parameter in net.parameters():
        part = flat[at : at + parameter.numel()].view_as(parameter)
        if back == "copied":
            parameter.grad.copy_(part)
        elif back == "into its data":
            parameter.grad.data.copy_(part)
        elif back == "assigned":
            parameter.grad = part.clone()
        at += parameter.numel()


@pytest.mark.slow
@pytest.mark.parametrize("back", ["copied", "into its data", "assigned"])
def test_a_flat_copy_is_followed(back: str, drawn: Callable[..., Scene]) -> None:
    scene = drawn(lambda: flat_copy(back))
    assert {*gates(scene).values()} == {"all_reduce"}
    assert owners(scene) == ["net.bias", "net.weight"]


def test_a_flat_copy_that_does_not_come_back_is_no_gate(drawn: Callable[..., Scene]) -> None:
    assert gates(drawn(lambda: flat_copy("not at all"))) == {}


def test_the_flat_copy_of_pytorchs_own_functions_is_followed(drawn: Callable[..., Scene]) -> None:
    def run() -> None:
        net = nn.Linear(2, 1)
        net(torch.ones(3, 2)).sum().backward()
        grads = [parameter.grad for parameter in net.parameters()]
        flat = torch._utils._flatten_dense_tensors(grads)
        dist.all_reduce(flat)
        for grad, part in zip(grads, torch._utils._unflatten_dense_tensors(flat, grads), strict=True):
            grad.copy_(part)

    assert owners(drawn(run)) == ["net.bias", "net.weight"]


def test_a_module_whose_parameters_were_handed_out_shows_their_gradients(drawn: Callable[..., Scene]) -> None:
    def run() -> None:
        net = nn.parallel.DistributedDataParallel(nn.Linear(2, 1))
        net(torch.ones(3, 2)).sum().backward()

    scene = drawn(run, depth=1)
    told = [text for thing in scene.things.values() for _, text in thing.lines if ".grad" in text]
    assert told == [".grad norm 5.196"]
    assert [*gates(scene).values()] == ["all_reduce"]


@pytest.mark.slow
@pytest.mark.parametrize(("chosen", "told"), [((0, 1), "all_reduce"), ((1,), "all_reduce, 1 of 2 gradients")])
def test_the_page_says_it_in_the_box_of_a_module_and_of_a_leaf(
    chosen: tuple[int, ...], told: str, group: None, tmp_path: Path, browser: Any
) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        reduced(*chosen)
    with open_trace(tmp_path / "run.gradviz") as trace:
        write_page(trace, lambda number: build(trace, number), 1, tmp_path / "page.html")
    tab = browser.new_page()
    tab.goto((tmp_path / "page.html").as_uri())
    tab.wait_for_selector("body[data-ready]")
    shown = "[...document.querySelectorAll('#nodes > g text.gate')].map((text) => text.textContent)"
    if tab.get_attribute("#roll", "aria-pressed") != "true":
        tab.keyboard.press("r")  # modules, that can be closed
    seen = []
    for key in ("Shift+U", "u"):
        tab.keyboard.press(key)
        seen.append(tab.evaluate(shown))
    tab.close()
    assert seen == [[told], ["all_reduce"] * len(chosen)]


def test_a_collective_writes_the_tensors_that_it_is_given(tmp_path: Path, group: None) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        parts = [torch.zeros(2)]
        dist.gather(torch.ones(2), parts)
        torch.stack(parts).gather(1, torch.zeros(1, 2, dtype=torch.int64))  # no collective
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        of_ranks, stacked, of_elements = (trace.table(Kind.OP).object(event) for event in query.tensors.ops)
        assert query.tensors.writes(*of_ranks.outputs) == [of_ranks.index]
        assert sources(query, *of_ranks.outputs, through_memory=False) == of_ranks.inputs
        assert (stacked.op, of_elements.op) == ("stack", "gather")
        assert query.tensors.writes(*of_elements.outputs) == []
        assert query.tensors.maker(*of_elements.outputs) == of_elements.index


@pytest.mark.parametrize(
    ("made", "name", "is_sum"),
    [
        (dict, "", True),
        (lambda: {"op": dist.ReduceOp(dist.ReduceOp.SUM)}, "SUM", True),
        (lambda: {"op": dist._make_nccl_premul_sum(0.5)}, "PREMUL_SUM", False),  # which may be the mean
    ],
)
def test_a_reduction_that_was_made_is_called_by_its_name(
    made: Callable[[], dict[str, Any]], name: str, is_sum: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # which PyTorch replaces for good
    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        with gradviz.record(tmp_path / "run.gradviz"):
            w = nn.Parameter(torch.ones(2))
            w.sum().backward()
            dist.all_reduce(w.grad, **made())
    finally:
        dist.destroy_process_group()
    with open_trace(tmp_path / "run.gradviz") as trace:
        query = Query(trace)
        (event,) = query.tensors.ops[query.tensors.are_collectives].tolist()
        assert query.tensors.op(event).args == name
        assert [at for _, at in query.of(sums)] == [event] * is_sum


def test_a_gradient_that_is_taken_away_in_the_pass_is_told_as_that_which_came(tmp_path: Path) -> None:
    """As `fully_shard` does, which gives each rank its part of the gradient."""
    with gradviz.record(tmp_path / "run.gradviz"):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        w.register_post_accumulate_grad_hook(lambda leaf: setattr(leaf, "grad", None))
        (w * w).sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        (leaf,) = (node for node in build(Query(trace), 1).nodes.values() if node.name == "w")
    assert not leaf.has_grad
    assert leaf.reached is not None
    assert leaf.reached.array is not None
    assert leaf.reached.array.tolist() == [2, 4]
