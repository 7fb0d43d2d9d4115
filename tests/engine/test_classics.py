"""The cases that other autograd engines are known by: micrograd's scalar expressions and small networks, HIPS
autograd's nested derivatives, loops and products of Hessians. The numbers are worked out here, or by mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gradviz.engine as torch
from gradviz.engine.autograd import grad
from gradviz.engine.autograd.functional import hessian, hvp, jacobian
from gradviz.engine.func import grad as grad_of


def scalar(value: float) -> Any:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def derivative(function: Callable, order: int = 1) -> Callable:
    """The function that is the order-th derivative of a scalar function."""
    for _ in range(order):
        function = _differentiated(function)
    return function


def _differentiated(function: Callable) -> Callable:
    def call(x: Any) -> Any:
        (g,) = grad(function(x), x, create_graph=True)
        return g

    return call


# --- scalar expressions, as in micrograd


def test_a_neuron_of_two_inputs() -> None:
    x1, x2, w1, w2 = (scalar(v) for v in (2.0, 0.0, -3.0, 1.0))
    b = scalar(6.8813735870195432)
    out = torch.tanh(x1 * w1 + x2 * w2 + b)
    out.backward()
    assert out.item() == pytest.approx(math.sqrt(0.5))
    assert [x.grad.item() for x in (x1, x2, w1, w2)] == pytest.approx([-1.5, 0.5, 1.0, 0.0])


def test_a_neuron_with_its_tanh_taken_apart_has_the_same_gradients() -> None:
    inputs = [scalar(v) for v in (2.0, -3.0, 6.8813735870195432)]
    whole = torch.tanh(inputs[0] * inputs[1] + inputs[2])
    e = (2 * (inputs[0] * inputs[1] + inputs[2])).exp()
    apart = (e - 1) / (e + 1)
    for a, b in zip(grad(whole, inputs), grad(apart, inputs), strict=True):
        assert a.item() == pytest.approx(b.item())


def test_a_value_used_twice_gets_both_gradients() -> None:
    a = scalar(3.0)
    (a + a).backward()
    assert a.grad.item() == 2
    a.grad = None
    b = a * a
    (b + b * a).backward()
    assert a.grad.item() == 2 * 3 + 3 * 9


def test_a_tangle_of_every_operator() -> None:
    def tangle(a: Any, b: Any) -> Any:
        c = a + b
        d = a * b + b**3
        c = c + c + 1
        c = c + 1 + c - a
        d = d + d * 2 + torch.relu(b + a)
        d = d + 3 * d + torch.relu(b - a)
        e = c - d
        f = e**2
        g = f / 2.0
        return g + 10.0 / f

    a, b = scalar(-4.0), scalar(2.0)
    tangle(a, b).backward()
    h = 1e-6
    for x, other, first in ((a, b, True), (b, a, False)):
        at = [(x.item() + s * h, other.item()) for s in (1, -1)]
        values = [tangle(*(torch.tensor(v, dtype=torch.float64) for v in (p if first else p[::-1]))) for p in at]
        assert x.grad.item() == pytest.approx((values[0] - values[1]).item() / (2 * h), rel=1e-6)
    assert [a.grad.item(), b.grad.item()] == pytest.approx([138.8338192419825, 645.5772594752186])


def test_a_network_of_scalars_learns_exclusive_or() -> None:
    rng = np.random.default_rng(3)
    hidden = [[scalar(v) for v in rng.normal(size=3)] for _ in range(4)]
    last = [scalar(v) for v in rng.normal(size=5)]
    parameters = [w for row in [*hidden, last] for w in row]
    data = [((-1, -1), -1), ((-1, 1), 1), ((1, -1), 1), ((1, 1), -1)]

    def network(x: tuple[int, int]) -> Any:
        h = [torch.tanh(w[0] * x[0] + w[1] * x[1] + w[2]) for w in hidden]
        return torch.tanh(sum((w * v for w, v in zip(last, h, strict=False)), last[-1]))

    for _ in range(80):
        loss: Any = sum((network(x) - y) ** 2 for x, y in data)
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                p -= 0.15 * p.grad
                p.grad = None
    assert loss.item() < 0.1
    assert all(np.sign(network(x).item()) == y for x, y in data)


# --- derivatives of derivatives, loops and branches, as in HIPS autograd


@pytest.mark.parametrize("order", range(7))
def test_derivatives_of_tanh_of_every_order(order: int) -> None:
    t = math.tanh(0.3)
    polynomial = np.polynomial.Polynomial([0.0, 1.0])  # tanh' = 1 − tanh²
    for _ in range(order):
        polynomial = polynomial.deriv() * np.polynomial.Polynomial([1.0, 0.0, -1.0])
    assert derivative(torch.tanh, order)(scalar(0.3)).item() == pytest.approx(polynomial(t))


def test_the_fourth_derivative_of_sine_is_sine() -> None:
    assert derivative(torch.sin, 4)(scalar(0.7)).item() == pytest.approx(math.sin(0.7))


def test_a_series_summed_until_it_has_converged() -> None:
    def sine(x: Any) -> Any:
        term = total = x
        k = 1
        while abs(term.item()) > 1e-14:
            term = -term * x * x / ((2 * k) * (2 * k + 1))
            total = total + term
            k += 1
        return total

    x = scalar(1.1)
    assert derivative(sine)(x).item() == pytest.approx(math.cos(1.1))
    assert derivative(sine, 2)(x).item() == pytest.approx(-math.sin(1.1))


@pytest.mark.parametrize(("x", "slope"), [(3.0, 6.0), (-3.0, -1.0)])
def test_only_the_branch_that_was_taken_is_differentiated(x: float, slope: float) -> None:
    def function(x: Any) -> Any:
        return x * x if x > 0 else -x

    assert derivative(function)(scalar(x)).item() == slope


def test_a_derivative_within_a_function_that_is_differentiated() -> None:
    # d/dx [x · d/dy (x + y²) at y = 1] = 2: the inner derivative must not see the outer x as its own
    def outer(x: Any) -> Any:
        return x * grad_of(lambda y: x + y * y)(torch.tensor(1.0, dtype=torch.float64))

    assert grad_of(outer)(scalar(5.0)).item() == 2


def test_a_derivative_that_passes_through_another_derivative() -> None:
    # d/dx d/dy (x² y³) = 6 x y²
    y = torch.tensor(3.0, dtype=torch.float64)
    mixed = grad_of(lambda x: grad_of(lambda y: x**2 * y**3)(y))
    assert mixed(torch.tensor(2.0, dtype=torch.float64)).item() == 108


def rosenbrock(x: Any) -> Any:
    return torch.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def test_the_gradient_and_hessian_of_rosenbrocks_function() -> None:
    a, b = -1.2, 1.0
    x = torch.tensor([a, b], dtype=torch.float64, requires_grad=True)
    (g,) = grad(rosenbrock(x), x)
    np.testing.assert_allclose(g.numpy(), [-400 * a * (b - a * a) - 2 * (1 - a), 200 * (b - a * a)])
    expected = [[1200 * a * a - 400 * b + 2, -400 * a], [-400 * a, 200]]
    np.testing.assert_allclose(hessian(rosenbrock, x).detach().numpy(), expected)


def test_a_product_with_the_hessian_needs_no_hessian() -> None:
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=6), requires_grad=True)
    v = torch.tensor(rng.normal(size=6))
    _, product = hvp(rosenbrock, x, v)
    np.testing.assert_allclose(product.numpy(), hessian(rosenbrock, x).detach().numpy() @ v.numpy())


def test_the_hessian_of_a_quadratic_form_is_its_symmetric_part_twice() -> None:
    a = np.random.default_rng(1).normal(size=(4, 4))
    form = torch.tensor(a)
    x = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    np.testing.assert_allclose(hessian(lambda x: x @ form @ x, x).numpy(), a + a.T)


def test_the_jacobian_of_a_linear_map_is_its_matrix() -> None:
    a = np.random.default_rng(2).normal(size=(3, 5))
    x = torch.tensor(np.ones(5))
    np.testing.assert_allclose(jacobian(lambda x: torch.tensor(a) @ x, x).numpy(), a)


def test_the_gradient_of_log_det_is_the_inverse_transposed() -> None:
    a = np.random.default_rng(4).normal(size=(4, 4)) + 4 * np.eye(4)
    x = torch.tensor(a, requires_grad=True)
    torch.logdet(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), np.linalg.inv(a).T)


def test_a_saturated_logistic_loss_stays_finite() -> None:
    x = torch.tensor([-1000.0, 0.0, 1000.0], dtype=torch.float64, requires_grad=True)
    torch.nn.functional.softplus(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.0, 0.5, 1.0])


def test_newtons_iterations_are_differentiated_like_what_they_find() -> None:
    def root(a: Any) -> Any:
        x = a
        for _ in range(30):
            x = (x + a / x) / 2
        return x

    assert derivative(root)(scalar(2.0)).item() == pytest.approx(1 / (2 * math.sqrt(2)))
    assert derivative(root, 2)(scalar(2.0)).item() == pytest.approx(-1 / (4 * 2**1.5))


def test_a_recursive_function_is_differentiated() -> None:
    def power(x: Any, n: int) -> Any:
        if n == 0:
            return torch.ones_like(x)
        half = power(x, n // 2)
        return half * half * x if n % 2 else half * half

    assert derivative(lambda x: power(x, 13))(scalar(1.1)).item() == pytest.approx(13 * 1.1**12)


def test_an_objects_state_may_hold_what_is_differentiated() -> None:
    class Integrator:
        def __init__(self, velocity: Any) -> None:
            self.position, self.velocity = torch.zeros_like(velocity), velocity

        def step(self, dt: float) -> None:
            self.velocity = self.velocity - dt * self.position
            self.position = self.position + dt * self.velocity

    start = scalar(1.0)
    system = Integrator(start)
    for _ in range(1000):
        system.step(0.001)
    (slope,) = grad(system.position, start)
    assert slope.item() == pytest.approx(math.sin(1.0), abs=1e-3)


def test_numpys_functions_are_differentiated_as_they_stand() -> None:
    x = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
    np.sum(np.exp(np.sin(x)) * np.tanh(x)).backward()
    v = np.array([0.5, 1.5])
    expected = np.exp(np.sin(v)) * (np.cos(v) * np.tanh(v) + 1 - np.tanh(v) ** 2)
    np.testing.assert_allclose(x.grad.numpy(), expected)
