"""The waist carries any engine: what a source that knows no engine tells is what every view says."""

from __future__ import annotations

import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gradviz.events.field_types import Group, Living, Rule
from gradviz.events.kinds import (
    LEAF,
    REQUIRES_GRAD,
    VIEW,
    WHOLE,
    GradRead,
    GradsCleared,
    GradsClipped,
    GraphsAlive,
    NumberRead,
    OptimizerHolds,
    Scheduled,
    ScopeEntered,
    Stepped,
    TensorMade,
)
from gradviz.events.listener import State
from gradviz.events.site import Place
from gradviz.graph.build import build
from gradviz.graph.model import to_json
from gradviz.query import Query
from gradviz.tracefile import Trace
from gradviz.words import Stop, Words
from gradviz.words.rows import rows
from gradviz.words.sentences import sentence
from tests.events.stand_in import READER, Distant, StandIn, read, told

Tell = Callable[[StandIn], object]


@pytest.fixture
def trace_of(tmp_path: Path) -> Callable[..., Trace]:
    """The trace of what a function tells."""

    def make(tell: Tell, **settings: object) -> Trace:
        path = tmp_path / "run.gradviz"
        with told(path, **settings) as source:
            tell(source)
        return read(path)

    return make


def cross_entropy(source: StandIn) -> tuple[int, int]:
    """One op that makes two nodes, as PyTorch's does; returns the loss and its node."""
    x = source.leaf([1.0, 2.0, 3.0])
    accumulate = source.node_number()
    (loss,) = source.op("cross_entropy", [x], [0.4])
    log_softmax = source.node("LogSoftmaxBackward0", [0], [(accumulate, 0, x)], [(loss, 0)])
    node = source.node("NllLossBackward0", [loss], [(log_softmax, 0, 0)])
    return loss, node


# --- nodes


def test_an_op_may_make_several_nodes_and_walking_back_finds_them_all(trace_of: Callable[..., Trace]) -> None:
    def tell(source: StandIn) -> None:
        loss, node = cross_entropy(source)
        source.begin(node, loss)
        source.listener.pass_ended(1)

    with trace_of(tell) as trace:
        backward = build(trace, show="backward")
        names = [node.name for node in backward.nodes.values()]
        assert names == ["NllLossBackward0", "LogSoftmaxBackward0", "AccumulateGrad"]
        whole = build(trace)
        (op,) = (node for node in whole.nodes.values() if node.kind == "op")
        assert op.grad_fn == "NllLossBackward0"
        assert Query(trace).nodes.of_op(op.number) == [2, 3]
        assert not [edge for edge in whole.edges if edge.cut]


def test_a_tensor_has_the_node_that_was_made_for_it(trace_of: Callable[..., Trace]) -> None:
    with trace_of(cross_entropy) as trace:
        query = Query(trace)
        loss = query.tensors.outputs.values[0]
        assert query.nodes.name(query.at(trace.count - 1).grad_fn(loss)) == "NllLossBackward0"


def test_flags_belong_to_each_output(trace_of: Callable[..., Trace]) -> None:
    def tell(source: StandIn) -> None:
        x = source.leaf([3.0, 5.0])
        accumulate = source.node_number()
        flags = (REQUIRES_GRAD, LEAF)
        value, _ = source.op("max", [x], [5.0, Distant(np.array(1), "int64")], flags)
        source.node("MaxBackward0", [value], [(accumulate, 0, x)])

    with trace_of(tell) as trace:
        value, index = Query(trace).tensors.outputs.values.tolist()
        moment = Query(trace).at(trace.count - 1)
        assert [moment.state(tensor).requires_grad for tensor in (value, index)] == [True, False]
        drawn = {node.number: node for node in build(trace).nodes.values() if node.kind in ("leaf", "tensor")}
        assert (drawn[value].grad_fn, drawn[index].grad_fn) == ("MaxBackward0", None)
        assert drawn[index].dtype == "int64"


def test_two_ops_of_one_node_name_have_formulas_of_their_own(trace_of: Callable[..., Trace]) -> None:
    training = Rule((("x", "γ/σ · (upstream − mean)"),))
    evaluating = Rule((("x", "γ / √(var + ε)"),), elementwise=True)

    def tell(source: StandIn) -> None:
        x = source.leaf([1.0, 2.0])
        for rule in (training, evaluating):
            (out,) = source.op("batch_norm", [x], [[0.0, 1.0]], rule=rule)
            source.node("NativeBatchNormBackward0", [out], [(1, 0, x)], rule=rule)

    with trace_of(tell) as trace:
        words = Words(trace)
        locals_ = [row.text for k in range(trace.count) for row in rows(Stop(words, k)) if row.label == "local"]
        assert len(locals_) == 2
        assert "(upstream − mean)" in locals_[0]
        assert "√(var + ε)" in locals_[1]


# --- operations in place, views, memory


def add_in_place(source: StandIn) -> int:
    x = source.leaf([1.0, 2.0])
    (y,) = source.op("mul", [x], [[2.0, 4.0]])
    source.node("MulBackward0", [y], [(source.node_number(), 0, x)])
    value = source.known(y, [3.0, 5.0])
    source.listener.op(None, "add_", "1", Rule(()), 0, True, [y, 0], [y], [value], [REQUIRES_GRAD], [1], [0])
    source.node("AddBackward0", [y], [(2, 0, y)])
    return y


def test_an_op_in_place_has_its_tensor_at_a_new_version_and_no_cycle(trace_of: Callable[..., Trace]) -> None:
    with trace_of(add_in_place) as trace:
        graph = build(trace)
        order = {name: place for place, name in enumerate(graph.nodes)}
        assert all(order[e.source] < order[e.target] for e in graph.edges if e.kind in ("data", "mutation"))
        versions = [node for node in graph.nodes.values() if node.number == 2 and node.kind == "tensor"]
        assert [(node.version, node.grad_fn) for node in versions] == [(0, "MulBackward0"), (1, "AddBackward0")]
        written = Query(trace).tensors.writes(2)
        told_ = sentence(Stop(Words(trace), written[0]))
        assert "[2, 4] → [3, 5], version 1 (AddBackward0)" in told_
        moment = Query(trace).at(trace.count - 1)
        assert moment.value(2).array.tolist() == [3.0, 5.0]


def test_what_is_a_view_of_the_whole_is_told_not_guessed_from_a_name(trace_of: Callable[..., Trace]) -> None:
    def tell(source: StandIn) -> None:
        x = source.leaf([1.0, 2.0, 3.0, 4.0])
        flags = (LEAF | VIEW | WHOLE,)
        (whole,) = source.op("enblock", [x], [[[1.0, 2.0], [3.0, 4.0]]], flags, bases=[x])
        value = source.known(whole, [[5.0, 6.0], [7.0, 8.0]])
        source.listener.mutated(None, "someone", State(whole, value, *flags, 1, x))

    with trace_of(tell) as trace:
        moment = Query(trace).at(trace.count - 1)
        assert moment.value(1).array.tolist() == [5.0, 6.0, 7.0, 8.0]
        graph = build(trace, whole=True)
        assert "detach" in {edge.cut for edge in graph.edges if edge.kind == "data"}


# --- passes, threads


def one_pass(source: StandIn, loss: int, node: int, threads: bool) -> None:
    """A pass whose nodes run on the thread that began it, or on another."""
    seed = source.begin(node, loss)
    number = source.passes

    def work() -> None:
        gradients = [source.number() for _ in range(3)]
        value = Distant(np.ones(3, np.float32))
        source.listener.received(node, "NllLossBackward0", number, [seed], [None])
        source.listener.produced(node, number, [node - 1, gradients[0]], [value])
        source.listener.received(node - 1, "LogSoftmaxBackward0", number, [gradients[0]], [None])
        source.listener.produced(node - 1, number, [1, gradients[1]], [value])

    if threads:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    source.listener.pass_ended(number)


def test_a_pass_that_runs_on_another_thread_is_whole(trace_of: Callable[..., Trace]) -> None:
    def tell(source: StandIn) -> None:
        for threads in (True, False):
            loss, node = cross_entropy(source)
            one_pass(source, loss, node, threads)
            source.nodes = 0

    with trace_of(tell) as trace:
        first, second = trace.passes
        assert (first.nodes, second.nodes) == (2, 2)
        assert first.digest == second.digest
        query = Query(trace)
        ran = [event.index for event in trace if getattr(event, "in_pass", 0) == 1]
        assert len(ran) == 4
        assert {query.at(k).pass_info.number for k in ran} == {1}
        assert len({trace.event(k).thread for k in (first.first, ran[0])}) == 2
        assert query.at(ran[1]).waiting


@pytest.mark.parametrize("length", [2, 80])
def test_the_digest_of_a_pass_tells_its_nodes_by_name(trace_of: Callable[..., Trace], length: int) -> None:
    """Short passes are summed up one way, long ones another."""

    def tell(source: StandIn) -> None:
        for last in ("SinBackward0", "CosBackward0", "SinBackward0"):
            x = source.leaf([1.0])
            node, before = source.node_number(), x
            for i in range(length):
                (out,) = source.op("f", [before], [1.0])
                node = source.node(last if i == 0 else "ExpBackward0", [out], [(node, 0, before)])
                before = out
            gradient = source.begin(node, before)
            for run in range(node, node - length, -1):
                name = last if run == node - length + 1 else "ExpBackward0"
                following = source.number()
                source.listener.ran(run, name, source.passes, gradient, None, [run - 1, following], [None])
                gradient = following
            source.listener.pass_ended(source.passes)

    with trace_of(tell) as trace:
        sin, cos, again = (run.digest for run in trace.passes)
        assert sin == again
        assert sin != cos


# --- values


def test_a_distant_value_is_fetched_with_many_others_in_one_trip(trace_of: Callable[..., Trace]) -> None:
    READER.trips.clear()

    def tell(source: StandIn) -> None:
        x = source.leaf(np.arange(1000.0))
        for i in range(50):
            (x,) = source.op("step", [x], [np.full(1000, float(i))])

    with trace_of(tell) as trace:
        assert sum(READER.trips) == 51
        assert len(READER.trips) < 10
        assert trace.snapshot(3).stats.max == 1.0
        assert trace.snapshot(3).device == "far:0"


def test_bfloat16_is_a_dtype_like_any_other(trace_of: Callable[..., Trace]) -> None:
    values = np.array([1.0, -2.5, np.inf], np.float32)
    with trace_of(lambda source: source.leaf(Distant(values, "bfloat16"))) as trace:
        snapshot = trace.snapshot(1)
        assert (snapshot.dtype, snapshot.array.tolist()) == ("bfloat16", values.tolist())
        assert trace.states.stats[0, 5] == 1
        assert to_json(build(trace, whole=True))["nodes"][0]["dtype"] == "bfloat16"
        assert "[1, -2.5, inf]" in rows(Stop(Words(trace), 0))[0].text


def test_a_dtype_that_numpy_has_not_is_shown_by_its_name(trace_of: Callable[..., Trace]) -> None:
    class Odd(Distant):
        pass

    with trace_of(lambda source: source.leaf(Distant(np.ones(2), "float8_e4m3")), values="none") as trace:
        assert trace.snapshot(1).dtype == "float8_e4m3"
        assert trace.snapshot(1).array is None


# --- places


def test_an_op_inside_a_function_has_its_own_line_and_its_caller(trace_of: Callable[..., Trace]) -> None:
    def inner(source: StandIn) -> list[int]:
        return source.op("mul", [1], [[2.0]])

    def tell(source: StandIn) -> None:
        source.leaf([1.0])
        inner(source)

    with trace_of(tell) as trace:
        event = trace.event(1)
        site = trace.sites[event.site]
        assert site.place.function.endswith("inner")
        assert trace.sites[site.parent].place.function.endswith("tell")


LIBRARY = """
def forward(source, here):
    return source.op("linear", [1], [[2.0]], where=here())
"""


def test_a_librarys_line_stands_beside_the_line_that_called_it(trace_of: Callable[..., Trace]) -> None:
    import sys

    file = f"{sysconfig.get_paths()['purelib']}/some_models/model.py"
    library: dict[str, Callable] = {}
    exec(compile(LIBRARY, file, "exec"), library)

    def tell(source: StandIn) -> None:
        source.leaf([1.0])
        library["forward"](source, lambda: sys._getframe(1))

    with trace_of(tell) as trace:
        site = trace.sites[trace.event(1).site]
        assert Path(site.place.file) == Path(__file__)
        assert site.library is not None
        assert (site.library.file, site.library.line) == (file, 3)


def test_a_source_without_frames_gives_a_place(trace_of: Callable[..., Trace]) -> None:
    place = Place("kernel.cu", 7, 0, 7, 5, "kernel", ("y",), False)
    with trace_of(lambda s: (s.leaf([1.0]), s.op("k", [1], [[2.0]], where=place))) as trace:
        assert trace.sites[trace.event(1).site].place.line == 7
        assert Query(trace).names.of(2) == "y"


# --- what the rules of a diagnosis need to see


def test_a_training_step_is_told_whole(trace_of: Callable[..., Trace]) -> None:
    groups = [Group('{"lr": 0.1}', 1), Group('{"lr": 0.01, "momentum": 0.9}', 1)]

    def tell(source: StandIn) -> None:
        empty = source.leaf([0.0], how="empty")
        copy = source.leaf([0.0], how="deepcopy", source=empty)
        source.listener.scope_entered(None, 1, "module", "net.drop", "Dropout", training=True)
        source.listener.scope_left(1)
        source.listener.grads_cleared(None, "SGD", True, [empty, copy])
        source.listener.stepped(None, 1, "SGD", 12.5, groups, [empty, copy])
        source.listener.holds(None, 1, "SGD", groups, [empty, copy])
        source.listener.clipped(None, "clip_grad_norm_", [empty])
        source.listener.grad_read(None, copy)
        source.listener.number_read(None, copy, "item")
        source.listener.scheduled(None, 1, "StepLR", 3, "[0.05, 0.005]")
        source.listener.graphs_alive(0, [Living(1, 40), Living(2, 38)])  # passes from before the recording

    with trace_of(tell) as trace:
        found = list(trace)
        made = [event for event in found if isinstance(event, TensorMade)]
        assert [(event.how, event.source) for event in made] == [("empty", 0), ("deepcopy", 1)]
        (scope,) = (event for event in found if isinstance(event, ScopeEntered))
        assert (scope.name, scope.type, scope.training) == ("net.drop", "Dropout", True)
        (cleared,) = (event for event in found if isinstance(event, GradsCleared))
        assert (cleared.how, cleared.to_none, cleared.tensors) == ("SGD", True, (1, 2))
        (stepped,) = (event for event in found if isinstance(event, Stepped))
        assert (stepped.optimizer, stepped.time, stepped.groups) == (1, 12.5, tuple(groups))
        assert stepped.parameters == (1, 2)
        (scheduled,) = (event for event in found if isinstance(event, Scheduled))
        assert (scheduled.steps, scheduled.rates) == (3, "[0.05, 0.005]")
        (alive,) = (event for event in found if isinstance(event, GraphsAlive))
        assert alive.graphs == ((0, 40), (0, 38))
        words = Words(trace)
        assert (
            sentence(Stop(words, stepped.index))
            == "SGD steps: 2 parameters will change (lr=0.1; lr=0.01, momentum=0.9)"
        )
        told = [
            sentence(Stop(words, event.index))
            for event in found
            if isinstance(event, OptimizerHolds | GradsClipped | GradRead | NumberRead)
        ]
        assert told == [
            "SGD holds 2 parameters (lr=0.1; lr=0.01, momentum=0.9)",
            "clip_grad_norm_() is called for the gradients of empty",
            "copy.grad is read: it is None, because copy is not a leaf and does not retain its gradient",
            "copy is read as a plain number by item(): no gradient flows back through that number",
        ]
        assert sentence(Stop(words, alive.index)) == "78 nodes of 2 earlier passes are still alive"
