"""Corners of PyTorch's autograd under the recorder: hooks and their order, graphs that are kept, writes through views,
several outputs, roots that are not contiguous, passes within passes, exceptions in hooks. Each program computes the
same, in the same order, and the trace says what happened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import gradviz  # noqa: E402
from gradviz.events.kinds import (  # noqa: E402
    Accumulated,
    ErrorRaised,
    Hooked,
    NodeMade,
    OpRan,
    PassBegan,
    PassEnded,
    Received,
    Retained,
    TensorMade,
)
from gradviz.query import Query  # noqa: E402
from gradviz.query.overview import leaves  # noqa: E402
from gradviz.tracefile import Trace  # noqa: E402

pytestmark = pytest.mark.torch
Both = Callable[[Callable[[], Any]], tuple[Any, Trace]]


@pytest.fixture
def both(tmp_path: Path) -> Both:
    """Runs a program twice, and once of them recorded: what it returned, the same both times, and its trace."""

    def run(program: Callable[[], Any]) -> tuple[Any, Trace]:
        plain = program()
        with gradviz.record(tmp_path / "run.gradviz", values="full"):
            traced = program()
        assert traced == plain
        return traced, gradviz.open(tmp_path / "run.gradviz")

    return run


def of(trace: Trace, kind: type[Any]) -> list[Any]:
    return [event for event in trace if isinstance(event, kind)]


def value(trace: Trace, tensor: int, event: Any) -> Any:
    return trace.snapshot(tensor, event.index).array.tolist()


def test_hooks_run_in_their_order(both: Both) -> None:
    def program() -> Any:
        ran: list[str] = []

        def told(name: str) -> Callable[..., None]:
            return lambda *_: ran.append(name)

        x = torch.ones(2, requires_grad=True)
        y = x * 2
        x.register_hook(told("leaf"))
        x.register_post_accumulate_grad_hook(told("accumulated"))
        y.register_hook(told("tensor 1"))
        y.register_hook(told("tensor 2"))
        y.grad_fn.register_prehook(told("pre"))
        y.grad_fn.register_hook(told("post"))
        y.retain_grad()
        y.sum().backward()
        return ran, x.grad.tolist(), y.grad.tolist()

    (ran, *_), trace = both(program)
    assert ran == ["tensor 1", "tensor 2", "pre", "post", "leaf", "accumulated"]
    assert not of(trace, Hooked)
    (retained,) = of(trace, Retained)
    assert value(trace, retained.grad, retained) == [1, 1]


def test_a_hook_that_changes_a_sum_is_told_with_the_sum_before(both: Both) -> None:
    def halve(gradient: Any) -> Any:
        return gradient / 2

    def program() -> Any:
        x = torch.ones(2, requires_grad=True)
        y = x * 1
        y.register_hook(halve)
        (y * 3 + y * 5).sum().backward()
        x.grad = None
        x.register_hook(halve)
        (x * 3 + x * 5).sum().backward()
        hooks = [*x._backward_hooks.values(), *y._backward_hooks.values()]
        assert hooks == [halve, halve]  # nothing of ours stays
        return x.grad.tolist()

    left, trace = both(program)
    assert left == [4, 4]
    first, second = of(trace, Hooked)
    for event in (first, second):
        assert event.hook.endswith("halve")
        assert value(trace, event.before, event) == [8, 8]
        assert value(trace, event.after, event) == [4, 4]
    names = Query(trace).names
    assert [names.of(first.tensor), names.of(second.tensor)] == ["y", "x"]


def test_a_hook_on_a_sum_that_changes_nothing_is_not_told(both: Both) -> None:
    def program() -> Any:
        seen: list[Any] = []
        x = torch.ones(2, requires_grad=True)
        x.register_hook(lambda g: seen.append(g.tolist()))
        (x * 3 + x * 5).sum().backward()
        return seen

    seen, trace = both(program)
    assert seen == [[8, 8]]
    assert not of(trace, Hooked)


def test_a_graph_that_is_retained_is_gone_through_again(both: Both) -> None:
    def program() -> Any:
        x = torch.ones(2, requires_grad=True)
        y = x.exp().sum()
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        return x.grad.tolist()

    _, trace = both(program)
    assert [event.retain_graph for event in of(trace, PassBegan)] == [True, False, False]
    assert [run.nodes for run in trace.passes][:2] == [3, 3]
    (error,) = of(trace, ErrorRaised)
    assert Query(trace).nodes.name(error.node) == "ExpBackward0"
    assert len(of(trace, NodeMade)) == 2


def test_writes_through_views_of_views(both: Both) -> None:
    def program() -> Any:
        x = torch.ones(4, requires_grad=True)
        base = x * 1
        base[1:][1:].mul_(3)
        base.view(2, 2).t()[0].add_(1)
        (base * base).sum().backward()
        return base.tolist(), x.grad.tolist()

    _, trace = both(program)
    query = Query(trace)
    roots = [root.node for root in query.passes.began(1).roots]
    assert [query.nodes.name(node) for node in query.nodes.walk(roots)].count("CopySlices") == 2


def test_several_outputs_of_which_some_are_used(both: Both) -> None:
    def program() -> Any:
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        a, b, c = x.unbind(1)
        values, _ = (a * c).sort()
        values[0].backward()
        return x.grad.tolist(), b.tolist()

    _, trace = both(program)
    query = Query(trace)
    (unbind,) = (event for event in of(trace, Received) if event.grad_fn == "UnbindBackward0")
    assert [bool(gradient) for gradient in unbind.gradients] == [True, False, True]
    assert len(query.nodes.outputs(unbind.node)) == 3


def test_a_leaf_that_is_the_root_accumulates(both: Both) -> None:
    def program() -> Any:
        loss = torch.tensor(3.0, requires_grad=True)
        loss.backward()
        loss.backward()
        return loss.grad.item()

    grad, trace = both(program)
    accumulated = of(trace, Accumulated)
    assert [value(trace, event.grad, event) for event in accumulated] == [1.0, 2.0]
    assert grad == 2.0
    assert [run.nodes for run in trace.passes] == [1, 1]


def test_a_root_that_is_not_contiguous(both: Both) -> None:
    def program() -> Any:
        x = torch.ones(2, 3, requires_grad=True)
        y = (x * 2).t()
        y.backward(torch.arange(6.0).reshape(2, 3).t())
        return x.grad.tolist()

    left, trace = both(program)
    (accumulated,) = of(trace, Accumulated)
    assert value(trace, accumulated.grad, accumulated) == left


def test_a_pass_within_a_pass(both: Both) -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = ctx.x**2
            return ctx.y.detach()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            ctx.y.backward(gradient)
            return ctx.x.grad

    def program() -> Any:
        x = torch.full((2,), 3.0, requires_grad=True)
        (Twice.apply(x) * 2).sum().backward()
        return x.grad.tolist()

    left, trace = both(program)
    assert left == [12, 12]
    order = [(type(event).__name__, event.number) for event in trace if isinstance(event, (PassBegan, PassEnded))]
    assert order == [("PassBegan", 1), ("PassBegan", 2), ("PassEnded", 2), ("PassEnded", 1)]
    inner = {Query(trace).nodes.name(event.node) for event in of(trace, Received) if event.in_pass == 2}
    assert inner == {"PowBackward0", "AccumulateGrad"}


@pytest.mark.parametrize("place", ["tensor", "pre", "post", "leaf", "accumulated"])
def test_an_exception_in_a_hook_leaves_the_pass(both: Both, place: str) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("not today")

    def program() -> Any:
        x = torch.ones(2, requires_grad=True)
        y = x.exp()
        putting = {
            "tensor": y.register_hook, "pre": y.grad_fn.register_prehook, "post": y.grad_fn.register_hook,
            "leaf": x.register_hook, "accumulated": x.register_post_accumulate_grad_hook,
        }  # fmt: skip
        handle = putting[place](fail)
        with pytest.raises(ZeroDivisionError):
            (y * 2).sum().backward()
        handle.remove()
        x.grad = None
        (x * 3).sum().backward()
        return x.grad.tolist()

    left, trace = both(program)
    assert left == [3, 3]
    (error,) = of(trace, ErrorRaised)
    assert (error.type, error.message, error.in_pass) == ("ZeroDivisionError", "not today", 1)
    guilty = Query(trace).nodes.name(error.node)
    assert guilty == ("AccumulateGrad" if place in ("leaf", "accumulated") else "ExpBackward0")
    assert [run.last is not None for run in trace.passes] == [True, True]


def test_inputs_that_are_asked_for_and_unused_ones(both: Both) -> None:
    def program() -> Any:
        x, w, z = (torch.ones(2, requires_grad=True) for _ in range(3))
        y = (x * w).sum()
        gradients = torch.autograd.grad(y, (x, z), allow_unused=True, retain_graph=True)
        y.backward(inputs=[w])
        return gradients[0].tolist(), gradients[1], w.grad.tolist(), x.grad

    _, trace = both(program)
    first, second = of(trace, PassBegan)
    assert (first.how, len(first.inputs)) == ("grad", 2)
    assert (second.how, len(second.inputs)) == ("backward", 1)
    assert [event.in_pass for event in of(trace, Accumulated)] == [2]


def test_hooks_that_are_removed_or_put_during_a_pass(both: Both) -> None:
    def program() -> Any:
        ran: list[str] = []
        x = torch.ones(2, requires_grad=True)
        y = x * 1
        z = y * 2 + y * 3

        def once(gradient: Any) -> Any:
            ran.append("once")
            handle.remove()
            x.register_hook(lambda g: ran.append("late"))
            return gradient * 2

        handle = y.register_hook(once)
        z.sum().backward(retain_graph=True)
        z.sum().backward()
        return ran, x.grad.tolist()

    (ran, left), trace = both(program)
    assert ran[0] == "once"
    assert ran.count("once") == 1
    assert left == [15, 15]
    assert [value(trace, event.after, event) for event in of(trace, Hooked)] == [[10, 10]]


def test_a_call_of_an_overload_has_the_name_of_the_op(both: Both) -> None:
    def program() -> Any:
        x = torch.ones(2, requires_grad=True)
        return torch.ops.aten.softmax.int(torch.ops.aten.mul.Tensor(x, x), 0).tolist()

    _, trace = both(program)
    assert [event.op for event in of(trace, OpRan)][:2] == ["mul", "softmax"]


def test_a_node_is_told_of_in_the_pass_that_it_runs_in_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.gradviz"
    called: list[Any] = []

    def differentiate(gradient: Any) -> None:
        called.append(gradient)
        if len(called) == 1:  # the pass that it begins comes here again
            with torch.enable_grad():
                torch.autograd.grad(doubled.sum(), w, retain_graph=True)

    with gradviz.record(path):
        w = torch.ones(3, requires_grad=True)
        doubled = w * 2
        doubled.register_hook(differentiate)
        doubled.exp().sum().backward()
    with gradviz.open(path) as trace:
        received = [(event.in_pass, event.grad_fn) for event in trace if type(event).__name__ == "Received"]
    assert received.count((1, "MulBackward0")) == 1
    assert received.count((2, "MulBackward0")) == 1


def test_a_tensor_that_broadcast_tensors_returns_as_it_is_is_not_its_input(tmp_path: Path) -> None:
    x, s = torch.ones(3, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    with gradviz.record(tmp_path / "run.gradviz"):
        y = x * 2
        for _ in range(3):
            a, b = torch.broadcast_tensors(y, s)
            (a * b).sum().backward(retain_graph=True)
    trace = gradviz.open(tmp_path / "run.gradviz")
    made = of(trace, NodeMade)
    calls = [op for op in of(trace, OpRan) if op.op == "broadcast_tensors"]
    assert [op.inputs for op in calls] == [(made[1].edges[0].tensor,)] * 3


def test_memory_that_nothing_was_written_to_has_no_value(tmp_path: Path) -> None:
    torch.full((9, 9), float("nan"))  # which may be in the memory that follows
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        raw = torch.empty(9, 9)
        weight = torch.nn.Parameter(raw)
        torch.nn.init.ones_(weight)
        weight.sum().backward()
    trace = gradviz.open(tmp_path / "run.gradviz")
    made = of(trace, TensorMade)
    assert trace.snapshot(made[0].tensor, made[0].index).stats is None
    assert trace.snapshot(made[1].tensor).array.tolist() == [[1.0] * 9] * 9


def test_views_of_memory_that_nothing_was_written_to_have_no_value(tmp_path: Path) -> None:
    torch.full((9, 9), float("nan"))
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        for _ in range(3):  # the calls after the first are recorded by its likeness
            raw = torch.empty(9, 9)
            rows = raw.view(-1)[:9]
            raw.fill_(2.0)
            filled = raw.view(-1)
    trace = gradviz.open(tmp_path / "run.gradviz")
    assert (rows.shape, filled.shape) == ((9,), (81,))
    seen = [trace.snapshot(op.outputs[0], op.index).stats for op in of(trace, OpRan) if op.op in ("view", "getitem")]
    assert [None if stats is None else stats.max for stats in seen] == [None, None, 2.0] * 3


def test_data_of_memory_that_nothing_was_written_to_has_no_value(tmp_path: Path) -> None:
    torch.full((9, 9), float("nan"))
    with gradviz.record(tmp_path / "run.gradviz", values="full"):
        weight = torch.nn.Parameter(torch.empty(9, 9))
        weight.data.fill_(2.0)
        weight.data.sum()
    trace = gradviz.open(tmp_path / "run.gradviz")
    seen = [trace.snapshot(op.outputs[0], op.index).stats for op in of(trace, OpRan)]
    assert [None if stats is None else stats.max for stats in seen] == [None, 2.0, 2.0, 162.0]


def test_a_gradient_that_a_hook_takes_away_was_accumulated_before(both: Both) -> None:
    """As an optimizer does that steps while the pass runs."""

    def program() -> Any:
        w, v = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        optimizers = {leaf: torch.optim.SGD([leaf], lr=0.5) for leaf in (w, v)}
        v.register_hook(lambda gradient: gradient * 3)

        def step(leaf: torch.Tensor) -> None:
            optimizers[leaf].step()
            optimizers[leaf].zero_grad()

        for leaf in (w, v):
            leaf.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            (w * w + w + v * 2).sum().backward()
        kept = [list(leaf._post_accumulate_grad_hooks.values()) == [step] for leaf in (w, v)]
        return w.tolist(), v.tolist(), kept

    (w, v, kept), trace = both(program)
    assert (w, v, kept) == ([-0.5, -0.5], [-5.0, -4.0], [True, True])
    accumulated, steps = of(trace, Accumulated), [event.index for event in trace if type(event).__name__ == "Stepped"]
    assert [value(trace, event.gradient, event) for event in accumulated] == [[6, 6], [3, 5], [6, 6], [0, 0]]
    assert [event.index < step for event, step in zip(accumulated, steps, strict=True)] == [True] * 4
    assert [leaf.is_cleared for leaf in leaves(Query(trace))] == [True, True]


def test_an_operator_with_a_backward_of_its_own_is_one_op(both: Both) -> None:
    @torch.library.custom_op("gradviz_tests::cubed", mutates_args=())
    def cubed(x: torch.Tensor) -> torch.Tensor:
        return x**3

    cubed.register_autograd(
        lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )

    def program() -> Any:
        x = torch.tensor([1.0, 2.0], requires_grad=True)
        for _ in range(3):
            (cubed(x * 1) * 2).sum().backward()
        return x.grad.tolist()

    gradient, trace = both(program)
    assert gradient == [18.0, 72.0]
    assert [op.op for op in of(trace, OpRan) if not op.in_pass] == ["mul", "cubed", "mul", "sum"] * 3
    query = Query(trace)
    calls = [op for op in of(trace, OpRan) if op.op == "cubed"]
    assert [len(query.nodes.of_op(op.index)) for op in calls] == [1, 1, 1]
    assert all(query.tensors.requires_grad(op.outputs[0], op.index) for op in calls)


def test_what_make_fx_writes_down_is_not_run(both: Both) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def program() -> Any:
        w = torch.tensor([1.0, 2.0], requires_grad=True)

        def gradient(x: Any) -> Any:
            return torch.autograd.grad((w * x).sum(), w)[0]

        graph = make_fx(gradient)(torch.ones(2))
        return graph(torch.full((2,), 5.0)).tolist()

    gradient, trace = both(program)
    assert gradient == [5.0, 5.0]
    assert trace.passes == []


@pytest.mark.slow
def test_fake_tensors_in_the_backward_of_cond_are_no_leaves(both: Both) -> None:
    pytest.importorskip("torch", minversion="2.6", reason="PyTorch 2.5 makes them outside of the mode of fake tensors")

    def program() -> list[float]:
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        y = torch.cond(w.sum() > 0, lambda x: (x * w).sin(), lambda x: x * w, (torch.ones(2),))
        y.sum().backward()
        assert w.grad is not None
        return [round(value, 4) for value in w.grad.tolist()]

    gradient, trace = both(program)
    assert gradient == [0.5403, -0.4161]
    assert [(leaf.name, leaf.has_grad) for leaf in leaves(Query(trace))] == [("w", True)]


def test_a_view_of_a_leaf_without_grad_mode_is_not_listed_beside_it(both: Both) -> None:
    def program() -> None:
        w = torch.ones(2, 2, requires_grad=True)
        of_data = torch.arange(4.0).view(2, 2).requires_grad_()
        with torch.no_grad():
            assert w.T.requires_grad
            assert w.T.is_leaf
        (w * of_data).sum().backward()

    _, trace = both(program)
    assert [(leaf.name, leaf.has_grad) for leaf in leaves(Query(trace))] == [("w", True), ("of_data", True)]


def test_no_view_of_a_leaf_stands_in_the_table_of_leaves(both: Both) -> None:
    def program() -> None:
        w = torch.ones(2, 2, requires_grad=True)
        with torch.no_grad():
            turned = w.T
        own = torch.nn.Parameter(w)
        (w * own).sum().backward()
        assert turned.requires_grad

    _, trace = both(program)
    query = Query(trace)
    (made,) = [made for made in of(trace, TensorMade) if made.how == "Parameter"]
    w = query.names.tensor_called("w", trace.count)
    assert query.at(trace.count - 1).leaves == [w, made.tensor]
    assert [leaf.tensor for leaf in leaves(query)] == [w, made.tensor]
