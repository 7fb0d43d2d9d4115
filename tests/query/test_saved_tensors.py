"""What nodes save: under PyTorch's names, in the hands of hooks, counted by version, freed by a pass."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gradviz
from gradviz import engine
from gradviz.engine.autograd import graph
from gradviz.events import kinds
from gradviz.graph.build import build
from gradviz.query import Query
from gradviz.step.plain import script
from gradviz.step.showing import describe
from gradviz.step.state import Session
from gradviz.tracefile import open_trace


def leaf(*values: float) -> Any:
    return engine.tensor(list(values), requires_grad=True)


def copies(log: list | None = None) -> Any:
    """Hooks that keep arrays outside the engine."""

    def pack(tensor: Any) -> np.ndarray:
        if log is not None:
            log.append(tensor)
        return tensor.detach().numpy().copy()

    return graph.saved_tensors_hooks(pack, engine.from_numpy)


# --- by name


def test_what_a_node_saved_is_shown_by_pytorchs_names() -> None:
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    product = x * y
    assert product.grad_fn._saved_self is x
    assert product.grad_fn._saved_other is y
    assert (x**3).grad_fn._saved_exponent == 3
    assert product.sum(0).grad_fn._saved_self_sym_sizes == (2,)
    assert x.exp().grad_fn._saved_result.tolist() == x.exp().tolist()
    assert (x * y.detach()).grad_fn._saved_self is None, "only what the gradients asked for need is saved"


def test_a_saved_output_is_where_it_was_in_the_graph() -> None:
    y = leaf(1.0).exp()
    assert y.grad_fn._saved_result.grad_fn is y.grad_fn


def test_a_freed_tensor_is_not_shown() -> None:
    y = leaf(1.0) ** 2
    y.backward()
    with pytest.raises(RuntimeError, match="directly access saved tensors after they have already been freed"):
        _ = y.grad_fn._saved_self


def test_a_tensor_that_was_written_over_is_not_shown() -> None:
    x = leaf(1.0).clone()
    y = x**2
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        _ = y.grad_fn._saved_self


# --- in the hands of hooks


def test_hooks_take_each_saved_tensor_and_give_it_back() -> None:
    x, log = leaf(1.0, 2.0), []
    with copies(log):
        y = (x * x).exp()
    assert [t.tolist() for t in log] == [[1, 2], [1, 2], y.tolist()]
    y.sum().backward()
    assert x.grad.tolist() == pytest.approx((2 * x * y).tolist())


def test_hooks_are_used_in_their_block_alone_and_the_innermost_pair() -> None:
    x, outer, inner = leaf(1.0), [], []
    with copies(outer):
        with copies(inner):
            x.sin()
        x.cos()
    x.tan()
    assert (len(outer), len(inner)) == (1, 1)


def test_hooks_of_one_thread_are_not_those_of_another() -> None:
    x, log = leaf(1.0), []
    with copies(log):
        thread = threading.Thread(target=lambda: x.sin())
        thread.start()
        thread.join()
    assert log == []


def test_numbers_of_the_program_are_not_packed() -> None:
    log: list = []
    with copies(log):
        leaf(1.0) * 2.0
    assert log == []


def test_gradients_of_gradients_flow_through_what_hooks_gave_back() -> None:
    x = leaf(1.0, 2.0)
    with copies():
        (first,) = engine.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = engine.autograd.grad(first.sum(), x)
    assert second.tolist() == [6, 12]


def test_the_old_value_of_what_is_written_over_is_packed() -> None:
    x, log = leaf(2.0), []
    with copies(log):
        y = x.clone()
        y.mul_(x)
    assert [t.item() for t in log] == [2, 2]
    y.backward()
    assert x.grad.item() == 4


def test_hooks_may_write_to_files_and_read_them_again(tmp_path: Path) -> None:
    def pack(tensor: Any) -> Any:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        np.save(path, tensor.detach().numpy())
        return path

    x = leaf(1.0, 2.0)
    with graph.saved_tensors_hooks(pack, lambda path: engine.from_numpy(np.load(path))):
        y = (x.sin() * x).sum()
    y.backward()
    assert len(list(tmp_path.iterdir())) == 3
    assert x.grad.tolist() == pytest.approx((x.cos() * x + x.sin()).tolist())


def test_a_pass_frees_what_hooks_hold() -> None:
    x = leaf(1.0)
    with copies() as _:
        y = x.sin()
    held = weakref.ref(y.grad_fn.rare.packing.entries[y.grad_fn.op.saved["self"]].thing)
    y.backward()
    assert held() is None
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_a_custom_functions_tensors_go_through_hooks() -> None:
    class Square(engine.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x, log = leaf(3.0), []
    with copies(log):
        y = Square.apply(x)
    y.backward()
    assert (len(log), x.grad.item()) == (1, 6)


def test_saved_tensors_may_be_written_over_where_that_is_allowed() -> None:
    x = leaf(1.0)
    with graph.allow_mutation_on_saved_tensors():
        y = x.clone()
        z = y**2
        y.zero_()
        z.backward()
    assert x.grad.item() == 2


def test_hooks_and_recording_go_together(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        x = leaf(1.0, 2.0)
        with copies():
            y = (x * x).sin()
        y.sum().backward()
    with open_trace(tmp_path / "run.gradviz") as trace:
        ran = [event.grad_fn for event in trace if isinstance(event, kinds.Received)]
        assert ran == ["SumBackward0", "SinBackward0", "MulBackward0", "AccumulateGrad"]
        (square,) = [event for event in trace if isinstance(event, kinds.OpRan) and event.op == "mul"]
        (node,) = [event for event in trace if isinstance(event, kinds.NodeMade) and event.op == square.index]
        assert [saved.tensor for saved in node.saved] == [*square.inputs]


def test_a_pass_from_one_edge_to_another_is_told_by_its_tensors(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        x = leaf(1.0, 2.0)
        y = x * x
        edge, end = graph.get_gradient_edge(y), graph.get_gradient_edge(x)
        engine.autograd.grad(edge, end, engine.ones(2), retain_graph=True)
        engine.autograd.grad(graph.GradientEdge(y.grad_fn, 0), end, engine.ones(2))
    with open_trace(tmp_path / "run.gradviz") as trace:
        (square,) = [event for event in trace if isinstance(event, kinds.OpRan)]
        passes = Query(trace).passes
        first, second = passes.began(1), passes.began(2)
        for began in (first, second):  # in the second, found by its node
            assert tuple(root.tensor for root in began.roots) == square.outputs
            assert began.inputs == square.inputs[:1]
        assert build(trace, 1).counts() == build(trace, 2).counts()
        for began in (first, second):
            assert "begins at y, with gradient [1, 1], for x" in describe(Session(trace, began.index).stop)


def test_a_pass_at_the_edge_of_a_leaf_names_no_tensor_that_is_not_there(tmp_path: Path) -> None:
    with gradviz.record(tmp_path / "run.gradviz"):
        x = leaf(1.0)
        z = leaf(2.0)
        accumulator = (x * z).grad_fn.next_functions[0][0]
        engine.autograd.backward(graph.GradientEdge(accumulator, 0), engine.ones(1))
    assert z.grad is None
    with open_trace(tmp_path / "run.gradviz") as trace:
        (began,) = [event for event in trace if isinstance(event, kinds.PassBegan)]
        assert "begins at a GradientEdge" in describe(Session(trace, began.index).stop)
        told = script(Session(trace), ["last", "why z"])
        assert "no path of grad_fns leads from the root to it" in "\n".join(told)


# --- as PyTorch does


def told(t: Any, tensor: Any) -> tuple:
    name = None if tensor.grad_fn is None else tensor.grad_fn.name()
    return tuple(tensor.shape), tensor.is_leaf, tensor.requires_grad, name, t.is_grad_enabled()


def logging_hooks(t: Any, log: list) -> Any:
    def hook(what: str) -> Callable:
        def seen(tensor: Any) -> Any:
            log.append((what, *told(t, tensor)))
            return tensor

        return seen

    return t.autograd.graph.saved_tensors_hooks(hook("pack"), hook("unpack"))


def ramp(t: Any, n: int = 3) -> Any:
    return t.arange(1.0, n + 1, dtype=t.float64).requires_grad_()


def square_then_exp(t: Any, log: list) -> Any:
    x = ramp(t)
    with logging_hooks(t, log):
        y = (x * x).exp().sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad.tolist()


def masks_and_indices(t: Any, log: list) -> Any:
    x = ramp(t)
    with logging_hooks(t, log):
        y = t.where(x > 1, x, 0.0).sum() + t.relu(x).sum() + x.max(0)[0] + x.index_select(0, t.tensor([1, 1])).sum()
    y.backward()
    return x.grad.tolist()


def layers(t: Any, log: list) -> Any:
    x = ramp(t, 12).reshape(3, 4).detach().requires_grad_()
    w = t.ones(2, 4, requires_grad=True, dtype=t.float64)
    with logging_hooks(t, log):
        y = t.nn.functional.linear(x, w, t.zeros(2, requires_grad=True, dtype=t.float64)).tanh()
        z = t.nn.functional.softmax(y, 1).log().mean()
    z.backward()
    return x.grad.shape, w.grad.shape


def twice_differentiated(t: Any, log: list) -> Any:
    x = ramp(t)
    with logging_hooks(t, log):
        (g,) = t.autograd.grad((x**3).sum(), x, create_graph=True)
    return t.autograd.grad(g.sum(), x)[0].tolist()


def pack_returns_no_tensor(t: Any, log: list) -> Any:
    with t.autograd.graph.saved_tensors_hooks(lambda tensor: 5, lambda packed: packed):
        y = ramp(t).sin().sum()
    y.backward()


def pack_writes(t: Any, log: list) -> Any:
    with t.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.mul_(2), lambda packed: packed):
        ramp(t).clone().sin()


def hooks_where_disabled(t: Any, log: list) -> Any:
    with t.autograd.graph.disable_saved_tensors_hooks("not here"), logging_hooks(t, log):
        pass


def disabled_where_hooks(t: Any, log: list) -> Any:
    with logging_hooks(t, log), t.autograd.graph.disable_saved_tensors_hooks("not here"):
        pass


def hooks_on_one_tensor(t: Any, log: list) -> Any:
    x = ramp(t)
    y = x**3
    pair = logging_hooks(t, log)
    y.grad_fn._raw_saved_self.register_hooks(pair.pack_hook, pair.unpack_hook)
    shown = told(t, y.grad_fn._saved_self)
    y.sum().backward()
    return shown, x.grad.tolist()


def hooks_on_one_tensor_twice(t: Any, log: list) -> Any:
    y = ramp(t) ** 3  # PyTorch crashes where the node is gone
    raw = y.grad_fn._raw_saved_self
    raw.register_hooks(lambda x: x, lambda x: x)
    raw.register_hooks(lambda x: x, lambda x: x)


def hooks_after_freeing(t: Any, log: list) -> Any:
    y = ramp(t) ** 3
    raw = y.grad_fn._raw_saved_self
    y.sum().backward()
    raw.register_hooks(lambda x: x, lambda x: x)


def edges(t: Any, log: list) -> Any:
    x = ramp(t)
    y = x * 2
    z = y.exp().sum()
    edge = t.autograd.graph.get_gradient_edge(y)
    assert isinstance(edge.node, t.autograd.graph.Node)
    assert edge == t.autograd.graph.GradientEdge(y.grad_fn, 0)
    ends = t.autograd.graph.get_gradient_edge(x)
    by_edge = t.autograd.grad(z, [edge, ends], retain_graph=True)
    from_edge = t.autograd.grad(edge, x, grad_outputs=t.ones(3, dtype=t.float64), retain_graph=True)
    t.autograd.backward(edge, t.ones(3, dtype=t.float64), retain_graph=True)
    log.append([[round(v, 3) for v in g.tolist()] for g in (*by_edge, *from_edge, x.grad)])
    t.autograd.grad(edge, x)


def edge_of_several_outputs(t: Any, log: list) -> Any:
    x = ramp(t)
    values, _ = x.sort()
    edge = t.autograd.graph.get_gradient_edge(values)
    return t.autograd.grad((values * values).sum(), edge)[0].tolist(), edge.output_nr


def edge_of_a_constant(t: Any, log: list) -> Any:
    t.autograd.graph.get_gradient_edge(t.ones(2))


def versions(t: Any, log: list) -> Any:
    x = t.ones(2)
    t.autograd.graph.increment_version(x)
    t.autograd.graph.increment_version([x, x])
    log.append(x._version)
    t.autograd.graph.increment_version(3)


def a_hook_on_all(t: Any, log: list) -> Any:
    a, b = (t.ones(2, requires_grad=True) for _ in range(2))
    c, d = a * b, a * 3

    def seen(gradients: Any) -> None:
        log.append([None if g is None else g.tolist() for g in gradients])

    handle = t.autograd.graph.register_multi_grad_hook([a, b, c, d], seen)
    c.sum().backward(retain_graph=True)
    (c.sum() + d.sum()).backward(retain_graph=True)
    c.sum().backward(retain_graph=True, inputs=[a])
    handle.remove()
    c.sum().backward(retain_graph=True)


def a_hook_on_any(t: Any, log: list) -> Any:
    a = t.ones(2, requires_grad=True)
    c, d = a * 2, a * 3
    t.autograd.graph.register_multi_grad_hook([c, d, a], lambda g: log.append(g.tolist()), mode="any")
    for _ in range(2):
        (c.sum() + d.sum()).backward(retain_graph=True)


def a_hook_of_no_mode(t: Any, log: list) -> Any:
    t.autograd.graph.register_multi_grad_hook([t.ones(2)], print, mode="some")


def a_hook_on_a_constant(t: Any, log: list) -> Any:
    t.autograd.graph.register_multi_grad_hook([t.ones(2)], print)


def written_over_outside(t: Any, log: list) -> Any:
    with t.autograd.graph.allow_mutation_on_saved_tensors():
        y = (ramp(t).clone() ** 2).sum()
    y.backward()


def saved_on_the_cpu(t: Any, log: list) -> Any:
    x = ramp(t)
    with t.autograd.graph.save_on_cpu():
        y = (x * x).sum()
    y.backward()
    return x.grad.tolist()


PROGRAMS = [
    square_then_exp, masks_and_indices, layers, twice_differentiated, pack_returns_no_tensor, pack_writes,
    hooks_where_disabled, disabled_where_hooks, hooks_on_one_tensor, hooks_on_one_tensor_twice, hooks_after_freeing,
    edges, edge_of_several_outputs, edge_of_a_constant, versions, a_hook_on_all, a_hook_on_any, a_hook_of_no_mode,
    a_hook_on_a_constant, written_over_outside, saved_on_the_cpu,
]  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_sees_what_it_sees_in_pytorch(program: Callable) -> None:
    torch = pytest.importorskip("torch")

    def run(t: Any) -> tuple:
        log: list = []
        try:
            return program(t, log), log
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            return type(error).__name__, str(error), log

    assert run(engine) == run(torch)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, mask: engine.where(mask, x, -x),
        lambda x, mask: x[mask],
        lambda x, mask: x.masked_fill(mask, 0.0),
        lambda x, mask: x.gather(0, mask.long()),
    ],
)
def test_what_an_op_reads_beside_its_operands_is_its_input_and_is_saved(tmp_path: Path, function: Callable) -> None:
    with gradviz.record(tmp_path / "t.gradviz"):
        function(leaf(0.0, 2.0), engine.tensor([True, False])).sum().backward()
    with open_trace(tmp_path / "t.gradviz") as trace:
        op = [event for event in trace if isinstance(event, kinds.OpRan) and event.op != "sum"][-1]
        (node,) = [event for event in trace if isinstance(event, kinds.NodeMade) and event.op == op.index]
        assert op.inputs[-1] in [saved.tensor for saved in node.saved]
        assert trace.shape(op.inputs[-1]) in (((2,), "bool"), ((2,), "int64"))
        assert "bool" not in op.args
