"""Every row of the table of derivatives against finite differences, in all modes and orders."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import gradviz.engine as torch
from gradviz.engine.autograd import forward_ad
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.table import kernels
from gradviz.engine.table.derivatives import TABLE
from tests.engine.derivative_samples import DIFFERENTIABLE, RNG, leaves, run, samples

EPS = 1e-6

NOT_SMOOTH_TWICE = {
    "maximum",
    "minimum",
    "max_all",
    "min_all",
    "amax",
    "amin",
    "median_all",
    "clamp_min",
    "clamp_max",
    "fmax",
    "fmin",
}  # ties aside their second derivative is 0
CASES = [(key, i) for key in DIFFERENTIABLE for i in range(len(samples(key)))]


def numerical(function: Callable[[list[np.ndarray]], float], arrays: list[np.ndarray], i: int) -> np.ndarray:
    """Central differences of a scalar function in its i-th array."""
    gradient = np.zeros_like(arrays[i])
    for at in np.ndindex(*arrays[i].shape):
        moved = [array.copy() for array in arrays]
        moved[i][at] += EPS
        up = function(moved)
        moved[i][at] -= 2 * EPS
        gradient[at] = (up - function(moved)) / (2 * EPS)
    return gradient


@pytest.mark.parametrize(("key", "i"), CASES)
def test_the_rule_is_the_derivative(key: str, i: int) -> None:
    arrays, args = samples(key)[i]
    op = TABLE[key]
    cotangent = RNG.normal(size=run(op, leaves(arrays), args).array.shape)
    inputs = leaves(arrays)
    run(op, inputs, args).backward(torch.tensor(cotangent))

    def weighted(moved: list[np.ndarray]) -> float:
        return float(np.sum(run(op, leaves(moved), args).array * cotangent))

    for position, tensor in enumerate(inputs):
        assert tensor.grad is not None
        assert tensor.grad.shape == tensor.shape
        np.testing.assert_allclose(tensor.grad.array, numerical(weighted, arrays, position), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("key", "i"), CASES)
def test_the_rule_differentiates_itself(key: str, i: int) -> None:
    arrays, args = samples(key)[i]
    op = TABLE[key]
    weights = RNG.normal(size=run(op, leaves(arrays), args).array.shape)
    second = [RNG.normal(size=array.shape) for array in arrays]

    def first_gradients(tensors: list[Tensor], create_graph: bool) -> list[Tensor]:
        out = run(op, tensors, args)
        cotangent = torch.tensor(weights, requires_grad=True)
        return list(torch.autograd.grad(out, tensors, cotangent, create_graph=create_graph))

    def weighted(moved: list[np.ndarray]) -> float:
        gradients = first_gradients(leaves(moved), create_graph=False)
        return float(sum(np.sum(g.array * w) for g, w in zip(gradients, second, strict=True)))

    inputs = leaves(arrays)
    gradients = first_gradients(inputs, create_graph=True)
    total = sum(((g * torch.tensor(w)).sum() for g, w in zip(gradients, second, strict=True)), torch.tensor(0.0))
    found = torch.autograd.grad(total, inputs, allow_unused=True, materialize_grads=True)
    for position, gradient in enumerate(found):
        expected = numerical(weighted, arrays, position)
        if key in NOT_SMOOTH_TWICE:
            assert not np.any(expected)
        np.testing.assert_allclose(gradient.array, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("key", "i"), CASES)
def test_forward_mode_agrees_with_reverse_mode(key: str, i: int) -> None:
    arrays, args = samples(key)[i]
    op = TABLE[key]
    tangents = [RNG.normal(size=array.shape) for array in arrays]
    cotangent = RNG.normal(size=run(op, leaves(arrays), args).array.shape)
    inputs = leaves(arrays)
    gradients = torch.autograd.grad(run(op, inputs, args), inputs, torch.tensor(cotangent))
    with forward_ad.dual_level():
        duals = [
            forward_ad.make_dual(torch.tensor(array), torch.tensor(tangent))
            for array, tangent in zip(arrays, tangents, strict=True)
        ]
        pushed = forward_ad.unpack_dual(run(op, duals, args)).tangent
    assert pushed is not None
    backward = sum(float(np.sum(g.array * t)) for g, t in zip(gradients, tangents, strict=True))
    np.testing.assert_allclose(float(np.sum(pushed.array * cotangent)), backward, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("key", "i"), CASES)
def test_the_rule_takes_what_hooks_gave_back(key: str, i: int) -> None:
    arrays, args = samples(key)[i]
    op = TABLE[key]
    inputs = leaves(arrays)
    packed: list[np.ndarray] = []

    def pack(tensor: Tensor) -> np.ndarray:
        packed.append(tensor.array.copy())
        return packed[-1]

    def both_gradients() -> list[Tensor]:
        out = run(op, inputs, args)
        cotangent = torch.tensor(np.linspace(-1, 2, out.array.size).reshape(out.shape), requires_grad=True)
        first = torch.autograd.grad(out, inputs, cotangent, create_graph=True)
        total = sum(((g * g).sum() for g in first), torch.tensor(0.0))
        options = {"allow_unused": True, "materialize_grads": True}
        return [*first, *torch.autograd.grad(total, [*inputs, cotangent], **options)]

    expected = both_gradients()
    with torch.autograd.graph.saved_tensors_hooks(pack, torch.from_numpy):
        found = both_gradients()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a.array, b.array, rtol=1e-12)
    assert bool(packed) or not any(place.is_tensor for place in op.saved.values())


def test_every_row_says_its_derivative_in_words() -> None:
    for key in DIFFERENTIABLE:
        derivatives = TABLE[key].derivatives.values()
        assert all(variant.text for derivative in derivatives for variant in derivative.variants), key


def test_an_op_without_a_derivative_runs_and_its_backward_raises() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    for y in (x // 2, x // x, 7 // x):
        assert y.grad_fn.name() == "torch::autograd::NotImplemented"
        with pytest.raises(RuntimeError, match="derivative for aten::floor_divide is not implemented"):
            (y + x).sum().backward()


def test_ties_share_the_gradient() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([1.0, 1.0], requires_grad=True)
    torch.maximum(x, y).sum().backward()
    assert x.grad.tolist() == [0.5, 1.0]
    assert y.grad.tolist() == [0.5, 0.0]


# The functions whose gradient at NaN depends on how many elements a register of the processor holds.
BY_PROCESSOR = ("elu", "hardswish")
SELECTIVE = {
    "relu": lambda t, x, y: t.relu(x),
    "relu6": lambda t, x, y: t.nn.functional.relu6(x),
    "elu": lambda t, x, y: t.nn.functional.elu(x),
    "hardtanh": lambda t, x, y: t.nn.functional.hardtanh(x),
    "hardsigmoid": lambda t, x, y: t.nn.functional.hardsigmoid(x),
    "hardswish": lambda t, x, y: t.nn.functional.hardswish(x),
    "hardshrink": lambda t, x, y: t.nn.functional.hardshrink(x),
    "softshrink": lambda t, x, y: t.nn.functional.softshrink(x),
    "threshold": lambda t, x, y: t.nn.functional.threshold(x, 0.1, 2.0),
    "abs": lambda t, x, y: t.abs(x),
    "sign": lambda t, x, y: t.sign(x),
    "floor": lambda t, x, y: t.floor(x),
    "clamp": lambda t, x, y: x.clamp(-0.5, 1),
    "clamp by tensors": lambda t, x, y: x.clamp(y * 0, y * 0 + 1),
    "clamp_min": lambda t, x, y: x.clamp_min(0.0),
    "maximum": lambda t, x, y: t.maximum(x, y),
    "minimum": lambda t, x, y: t.minimum(x, y),
    "fmax": lambda t, x, y: t.fmax(x, y),
    "where": lambda t, x, y: t.where(x > 0, x, y),
    "masked_fill": lambda t, x, y: x.masked_fill(x > 0, 0.0),
    "x ** 0": lambda t, x, y: x**0,
    "x ** zeros": lambda t, x, y: x ** (y * 0),
    "max": lambda t, x, y: x.max(),
    "max along": lambda t, x, y: x.max(0).values,
    "median": lambda t, x, y: x.median(),
    "zero_": lambda t, x, y: (x * 1).zero_(),
    "nll_loss": lambda t, x, y: t.nn.functional.nll_loss(x.reshape(2, 4), t.tensor([1, 2])),
}


@pytest.mark.torch
@pytest.mark.parametrize("nan_in", ["the gradient", "the input"])
@pytest.mark.parametrize("name", SELECTIVE)
def test_nan_goes_where_it_goes_in_pytorch(name: str, nan_in: str) -> None:
    theirs = pytest.importorskip("torch")

    def gradient(t: ModuleType) -> np.ndarray:
        values = np.array([-3.0, -1.0, -0.5, 0.0, 0.3, 1.0, 2.0, 7.0])
        other = values[::-1].copy()
        if nan_in == "the input":
            values[[2, 5]] = np.nan, np.inf
        x = t.tensor(values, requires_grad=True)
        out = SELECTIVE[name](t, x, t.tensor(other))
        upstream = np.full(tuple(out.shape), np.nan if nan_in == "the gradient" else 1.0)
        return t.autograd.grad(out, x, t.tensor(upstream))[0].numpy()

    mine, right = gradient(torch), gradient(theirs)
    if name in BY_PROCESSOR and nan_in == "the input":
        mine, right = np.delete(mine, 2), np.delete(right, 2)
    np.testing.assert_allclose(mine, right)


KERNELS = {
    path.stem: import_module(f"{kernels.__name__}.{path.stem}")
    for path in sorted(Path(kernels.__path__[0]).glob("*.py"))
    if path.stem != "__init__"
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_that_is_a_row_is_that_rows_forward(name: str) -> None:
    rows = [value for value in vars(KERNELS[name]).values() if hasattr(value, "on_arrays")]
    for kernel in rows:
        assert TABLE[kernel.row].forward is kernel.on_arrays
        assert len(TABLE[kernel.row].inputs) == kernel.inputs


def test_no_two_kernels_have_one_name() -> None:
    own = [
        name
        for module in KERNELS.values()
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    ]
    assert sorted(own) == sorted(set(own))
