"""A module called with other parameters: `torch.func.functional_call`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradviz import engine

X = np.array([[1.0, -2.0], [0.5, 3.0]], np.float32)


def net(torch: Any) -> Any:
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 1))


def meta_gradients(torch: Any) -> list[np.ndarray]:
    """The gradients through one step of descent, as in meta-learning."""
    module, x = net(torch), torch.tensor(X)
    names, values = zip(*module.named_parameters(), strict=True)

    def loss(parameters: Any) -> Any:
        out = torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), x)
        return (out**2).sum()

    gradients = torch.autograd.grad(loss(values), values, create_graph=True)
    stepped = [value - 0.1 * gradient for value, gradient in zip(values, gradients, strict=True)]
    loss(stepped).backward()
    return [value.grad.numpy() for value in values]


@pytest.mark.torch
def test_gradients_through_a_step_of_descent_are_torchs() -> None:
    torch = pytest.importorskip("torch")
    for ours, theirs in zip(meta_gradients(engine), meta_gradients(torch), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


def test_the_module_has_its_own_parameters_again_even_after_an_error() -> None:
    module = net(engine)
    before = dict(module.named_parameters())
    zeros = {name: engine.zeros_like(value) for name, value in before.items()}
    assert engine.func.functional_call(module, zeros, (engine.tensor(X),)).tolist() == [[0.0], [0.0]]
    with pytest.raises(RuntimeError):
        engine.func.functional_call(module, zeros, engine.ones(2, 5))
    assert all(value is before[name] for name, value in module.named_parameters())


def test_buffers_are_replaced_too_and_dicts_come_together() -> None:
    module = net(engine).eval()
    x = engine.tensor(X)
    far = {"1.running_mean": engine.full((3,), 100.0)}
    changed = engine.func.functional_call(module, (dict(module.named_parameters()), far), x)
    assert not engine.allclose(changed, module(x))
    assert module[1].running_mean.tolist() == [0.0, 0.0, 0.0]


def test_a_tied_weight_is_replaced_under_all_its_names() -> None:
    module = engine.nn.Sequential(engine.nn.Linear(2, 2, bias=False), engine.nn.Linear(2, 2, bias=False))
    module[1].weight = module[0].weight
    x, double = engine.ones(1, 2), {"0.weight": 2 * engine.eye(2)}
    assert engine.func.functional_call(module, double, x).tolist() == [[4.0, 4.0]]
    once = engine.func.functional_call(module, double, x, tie_weights=False)
    assert engine.allclose(once, 2 * (x @ module[0].weight.mT))


def test_a_name_that_is_not_the_modules_is_named() -> None:
    with pytest.raises(AttributeError, match="has no parameter or buffer"):
        engine.func.functional_call(net(engine), {"7.weight": engine.ones(1)}, engine.tensor(X))
    with pytest.raises(RuntimeError, match="missing"):
        engine.func.functional_call(net(engine), {}, engine.tensor(X), strict=True)
