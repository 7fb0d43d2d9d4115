"""Computing again in backward what forward has thrown away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradviz import engine
from gradviz.engine.utils.checkpoint import CheckpointError, checkpoint, checkpoint_sequential

BOTH = pytest.mark.parametrize("use_reentrant", [True, False], ids=["one node", "hooks"])


def leaf(*values: float) -> Any:
    return engine.tensor(list(values), requires_grad=True)


def gradient_of(function: Callable, x: Any) -> list[float]:
    x.grad = None
    function(x).sum().backward()
    return x.grad.tolist()


def curve(x: Any) -> Any:
    return (x.sin() * x).exp()


@BOTH
def test_gradients_are_those_without_a_checkpoint(use_reentrant: bool) -> None:
    x = leaf(0.5, 1.0)
    expected = gradient_of(curve, x)
    assert gradient_of(lambda x: checkpoint(curve, x, use_reentrant=use_reentrant), x) == expected


@BOTH
def test_the_function_runs_again_in_backward_and_saves_nothing_before(use_reentrant: bool) -> None:
    runs = []

    def seen(x: Any) -> Any:
        runs.append(x)
        return curve(x)

    x, saved = leaf(1.0), []
    with engine.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = checkpoint(seen, x, use_reentrant=use_reentrant)
    assert (len(runs), len(saved)) == (1, 1 if use_reentrant else 0), "one node saves its inputs"
    y.sum().backward()
    assert len(runs) == 2


@BOTH
def test_parameters_that_are_no_argument_get_their_gradients(use_reentrant: bool) -> None:
    engine.manual_seed(0)
    layer = engine.nn.Linear(2, 2)
    x = leaf(1.0, 2.0)
    gradient_of(layer, x)
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    gradient_of(lambda x: checkpoint(layer, x, use_reentrant=use_reentrant), x)
    assert layer.weight.grad.tolist() == expected.tolist()


@BOTH
def test_random_draws_are_the_same_both_times(use_reentrant: bool) -> None:
    x = engine.ones(100, requires_grad=True)
    engine.manual_seed(3)
    y = checkpoint(engine.nn.Dropout(0.5), x, use_reentrant=use_reentrant)
    after = engine.rand(1).item()
    y.sum().backward()
    assert x.grad.tolist() == y.tolist()
    engine.manual_seed(3)
    engine.nn.functional.dropout(x, 0.5)
    assert engine.rand(1).item() == after, "the program's own draws go on as they would"


def test_hooks_serve_gradients_of_gradients_too() -> None:
    x = leaf(0.5)
    y = checkpoint(lambda x: x**3, x, use_reentrant=False)
    (first,) = engine.autograd.grad(y, x, engine.ones(1), create_graph=True)
    (second,) = engine.autograd.grad(first, x, engine.ones(1))
    assert second.tolist() == [3.0]


def test_checkpoints_may_stand_in_one_another() -> None:
    x = leaf(0.5, 1.0)
    inner = lambda x: checkpoint(curve, x, use_reentrant=False).cos()
    expected = gradient_of(lambda x: curve(x).cos(), x)
    assert gradient_of(lambda x: checkpoint(inner, x, use_reentrant=False), x) == expected


def test_a_kept_graph_is_computed_again_each_time() -> None:
    runs, x = [], leaf(1.0)
    y = checkpoint(lambda x: runs.append(1) or x.sin(), x, use_reentrant=False)
    for _ in range(3):
        y.sum().backward(retain_graph=True)
    assert len(runs) == 4
    assert x.grad.item() == pytest.approx(3 * x.cos().item())


def test_the_second_run_stops_when_it_has_all_that_was_saved() -> None:
    reached, x = [], leaf(1.0)

    def long(x: Any) -> Any:
        y = x.sin()
        reached.append("end")
        return y + 1

    checkpoint(long, x, use_reentrant=False).sum().backward()
    checkpoint(long, x, use_reentrant=False, early_stop=False).sum().backward()
    assert len(reached) == 3


def test_another_second_run_is_told() -> None:
    runs, x = [], leaf(1.0)

    def fickle(x: Any) -> Any:
        runs.append(1)
        return x * 2 if len(runs) == 2 else x.sin()

    with pytest.raises(CheckpointError, match="A different number of tensors was saved"):
        checkpoint(fickle, x, use_reentrant=False).sum().backward()
    runs.clear()
    with pytest.raises(CheckpointError, match="different metadata"):
        checkpoint(
            lambda x: (x[0] if runs.append(1) or len(runs) == 2 else x).sin(), x, use_reentrant=False
        ).sum().backward()


def test_one_node_serves_backward_alone() -> None:
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match=r"incompatible with \.grad\(\)"):
        engine.autograd.grad(checkpoint(curve, x, use_reentrant=True), x)


def test_what_is_not_said_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="use_reentrant parameter should be passed explicitly"):
        checkpoint(curve, leaf(1.0))
    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        checkpoint(curve, engine.ones(1), use_reentrant=True)
    with pytest.raises(ValueError, match="Unexpected keyword arguments: x"):
        checkpoint(curve, x=leaf(1.0), use_reentrant=True)


@BOTH
@pytest.mark.parametrize("segments", [1, 2, 3, 5])
def test_segments_of_a_sequence(segments: int, use_reentrant: bool) -> None:
    engine.manual_seed(0)
    net = engine.nn.Sequential(*(engine.nn.Linear(3, 3) for _ in range(5)))
    x = leaf(1.0, 2.0, 3.0)
    expected = gradient_of(net, x)
    found = gradient_of(lambda x: checkpoint_sequential(net, segments, x, use_reentrant=use_reentrant), x)
    assert found == pytest.approx(expected)


def runs_and_gradients(t: Any, use_reentrant: bool) -> tuple:
    """How often each part of a net runs, and what comes of it."""
    from importlib import import_module

    checkpoint = import_module(f"{t.__name__}.utils.checkpoint").checkpoint
    counts: dict[str, int] = {}

    def part(name: str, function: Callable) -> Callable:
        def run(x: Any) -> Any:
            counts[name] = counts.get(name, 0) + 1
            return function(x)

        return lambda x: checkpoint(run, x, use_reentrant=use_reentrant)

    x = t.tensor([0.25, 0.5], requires_grad=True)
    y = part("b", lambda x: (x * x).sum())(part("a", lambda x: x.exp() * 2)(x))
    y.backward(retain_graph=True)
    y.backward()
    names = [y.grad_fn.name(), y.grad_fn.next_functions[0][0].name()]
    return counts, [round(v, 3) for v in x.grad.tolist()], names


@pytest.mark.torch
@BOTH
def test_parts_run_as_often_as_in_pytorch(use_reentrant: bool) -> None:
    torch = pytest.importorskip("torch")
    assert runs_and_gradients(engine, use_reentrant) == runs_and_gradients(torch, use_reentrant)
