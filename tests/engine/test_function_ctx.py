"""What a custom Function's methods are given: every name that PyTorch leaves to the program is the program's."""

from __future__ import annotations

from typing import Any

import pytest

from gradviz import engine
from gradviz.engine.core.function_node import FunctionNode

# What the node itself calls things, and the names that programs have put there.
NAMES = sorted(
    {name for name in {*dir(FunctionNode), *vars(FunctionNode())} if not name.startswith("_")}
    - {
        "mark_dirty", "metadata", "name", "needs_input_grad", "next_functions", "register_hook", "register_prehook",
        "saved_tensors",
    }
    | {"args", "dim", "shape", "x"}
)  # fmt: skip


def powers(t: Any, name: str) -> list[float]:
    """Gradients of x³ and 2x² through Functions that keep a number under that name."""

    class Power(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, n: int) -> Any:
            setattr(ctx, name, n)
            ctx.save_for_backward(x)
            return x**n

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            n = getattr(ctx, name)
            return g * n * x ** (n - 1), None

    x = t.tensor([1.0, 2.0], requires_grad=True)
    y = (Power.apply(x, 3) + Power.apply(x * 1, 2) * 2).sum()
    y.backward()
    return x.grad.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_the_engine_uses_too_is_the_programs(name: str) -> None:
    assert powers(engine, name) == [7.0, 20.0]


def test_a_name_that_is_pytorchs_is_not_written_over() -> None:
    with pytest.raises(AttributeError, match="'saved_tensors' of a custom Function's ctx is not writable"):
        powers(engine, "saved_tensors")


class Double(engine.autograd.Function):
    """2x, which notes what it was given."""

    @staticmethod
    def forward(ctx: Any, label: str, x: Any) -> Any:
        """Keep the label."""
        ctx.note = label
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        """Return twice the gradient."""
        return None, g * 2


def test_grad_fn_shows_what_the_program_noted() -> None:
    x = engine.ones(2, requires_grad=True)
    node = Double.apply("here", x * 1).grad_fn
    assert node.note == "here"
    assert (type(node).__name__, node.name()) == ("DoubleBackward", "DoubleBackward")
    assert [None if n is None else n.name() for n, _ in node.next_functions] == ["MulBackward0"]
    assert isinstance(node, engine.autograd.graph.Node)
    assert "note" in dir(node)
    del node.note
    with pytest.raises(AttributeError, match="'DoubleBackward' object has no attribute 'note'"):
        _ = node.note
    with pytest.raises(AttributeError, match="no attribute 'note'"):
        del node.note


def test_two_looks_at_one_node_are_equal() -> None:
    y = Double.apply("", engine.ones(1, requires_grad=True))
    z = y.sum()
    assert z.grad_fn.next_functions[0][0] == y.grad_fn
    assert len({z.grad_fn.next_functions[0][0], y.grad_fn}) == 1
    assert y.grad_fn != z.grad_fn


def test_hooks_on_a_functions_node_run() -> None:
    seen = []
    y = Double.apply("", engine.ones(1, requires_grad=True))
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs[-1].item(), outputs[0].item())))
    y.grad_fn.register_prehook(lambda outputs: (outputs[0] * 3,))
    y.grad_fn.metadata["by"] = "test"
    y.backward()
    assert seen == [(6.0, 3.0)]
    assert y.grad_fn.metadata == {"by": "test"}


def test_an_edge_to_a_functions_node_is_followed() -> None:
    x = engine.ones(2, requires_grad=True)
    y = Double.apply("", x)
    edge = engine.autograd.graph.get_gradient_edge(y)
    assert edge.node == y.grad_fn
    assert engine.autograd.grad((y * 3).sum(), edge, retain_graph=True)[0].tolist() == [3, 3]
    assert engine.autograd.grad(edge, x, engine.ones(2))[0].tolist() == [2, 2]


def test_a_graph_with_functions_is_freed_without_the_collector() -> None:
    import gc
    import weakref

    gc.disable()
    try:
        y = Double.apply("", engine.ones(1, requires_grad=True) * 1)
        node = weakref.ref(y._edge)
        del y
        assert node() is None
    finally:
        gc.enable()


@pytest.mark.torch
@pytest.mark.parametrize("name", ["number", "outputs", "function", "saved", "op", "x"])
def test_pytorch_gives_the_same(name: str) -> None:
    torch = pytest.importorskip("torch")
    assert powers(engine, name) == powers(torch, name)


def answers_to_shape(t: Any, given: tuple[int, ...], shape: tuple[int, ...]) -> list[Any]:
    """What comes of a backward that returns a gradient of one shape for an input of another: from a leaf and from a
    non-leaf, by backward() and by grad()."""

    class Wrong(t.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return t.ones(*given) if given else t.tensor(1.0)

    found: list[Any] = []
    for of_leaf in (True, False):
        for differentiate in (t.autograd.backward, t.autograd.grad):
            x = t.ones(*shape, requires_grad=True)
            y = Wrong.apply(x if of_leaf else x * 1).sum()
            try:
                result = differentiate(y, *((x,) if differentiate is t.autograd.grad else ()))
                found.append((result[0] if result else x.grad).tolist())
            except RuntimeError as error:
                found.append(str(error).splitlines()[0].replace("<locals>.", ""))
    return found


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ((4,), (3,)), ((2, 3), (3,)), ((3, 1), (3,)), ((), (3,)), ((1,), (3,)), ((2,), (3, 2)), ((5, 3, 2), (3, 2)),
        ((3, 1), (3, 2)), ((3, 4), (3, 1)),
    ],
)  # fmt: skip
def test_a_gradient_of_the_wrong_shape_is_summed_or_refused_as_in_pytorch(
    given: tuple[int, ...], shape: tuple[int, ...]
) -> None:
    torch = pytest.importorskip("torch")
    assert answers_to_shape(engine, given, shape) == answers_to_shape(torch, given, shape)
