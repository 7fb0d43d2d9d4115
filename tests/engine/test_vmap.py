"""Functions of batches: `torch.func.vmap`, and what it is used for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch

A = np.arange(6, dtype=np.float64).reshape(2, 3) / 5
B = np.array([[0.5, -1.0, 2.0], [0.1, 0.2, -0.3]])


def per_sample_gradients(t: Any, a: Any, b: Any) -> Any:
    def loss(parameters: dict[str, Any], x: Any, y: Any) -> Any:
        out = t.tanh(x @ parameters["w"]) * parameters["b"]
        return ((out - y) ** 2).mean()

    parameters = {"w": b.mT @ b, "b": b[0]}
    return t.func.vmap(t.func.grad(loss), in_dims=(None, 0, 0))(parameters, a, b)


PROGRAMS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "a product": lambda t, a, b: t.func.vmap(t.dot)(a, b),
    "by columns": lambda t, a, b: t.func.vmap(t.dot, in_dims=1)(a, b),
    "of other dimensions": lambda t, a, b: t.func.vmap(lambda x, y: x + y.sum(), in_dims=(0, 1))(a, b.mT),
    "one is whole": lambda t, a, b: t.func.vmap(lambda x, y: y @ x, in_dims=(0, None))(a, b),
    "stacked at the end": lambda t, a, b: t.func.vmap(lambda x: x * 2, out_dims=-1)(a),
    "several results": lambda t, a, b: t.func.vmap(lambda x, y: (x * y, (x + y).sum()), out_dims=(1, 0))(a, b),
    "a dict": lambda t, a, b: t.func.vmap(lambda d: {"s": d["x"] * d["y"]})({"x": a, "y": b}),
    "a dict of dimensions": lambda t, a, b: t.func.vmap(
        lambda d: d["x"] + d["y"], in_dims=({"x": 0, "y": None},)
    )({"x": a, "y": b[0]}),
    "keywords": lambda t, a, b: t.func.vmap(lambda x, *, y: x - y)(a, y=b),
    "numbers": lambda t, a, b: t.func.vmap(lambda x, n: x * n, in_dims=(0, None))(a, 3),
    "nested": lambda t, a, b: t.func.vmap(t.func.vmap(lambda x, y: x * y))(a, b),
    "all pairs": lambda t, a, b: t.func.vmap(
        lambda x: t.func.vmap(lambda y: ((x - y) ** 2).sum())(b)
    )(a),
    "what is the same for all": lambda t, a, b: t.func.vmap(lambda x: (x, b), out_dims=(0, None))(a),
    "per-sample gradients": per_sample_gradients,
    "a Jacobian": lambda t, a, b: t.func.vmap(t.func.vjp(lambda x: x**2, a[0])[1])(t.eye(3, dtype=t.float64)),
    "Hessians": lambda t, a, b: t.func.vmap(t.func.hessian(lambda x: (x**3).sum()))(a),
    "torch.vmap": lambda t, a, b: t.vmap(t.outer)(a, b),
}  # fmt: skip


def flat(tree: Any) -> list[np.ndarray]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in flat(tree[key])]
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in flat(part)]
    return [tree.detach().numpy()]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_vmap_gives_is_pytorchs(program: str) -> None:
    ours, theirs = (
        flat(PROGRAMS[program](library, library.tensor(A), library.tensor(B))) for library in (engine, torch)
    )
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)


def test_gradients_flow_through_vmap() -> None:
    seen = []
    for library in (engine, torch):
        a = library.tensor(A, requires_grad=True)
        library.func.vmap(lambda x: (x**3).sum())(a).sum().backward()
        seen.append(a.grad.numpy())
    np.testing.assert_allclose(seen[0], seen[1])


WRONG: dict[str, Callable[[Any], Any]] = {
    "a number": lambda t: t.func.vmap(abs)(3),
    "other sizes": lambda t: t.func.vmap(t.add)(t.ones(2), t.ones(3)),
    "no dimension": lambda t: t.func.vmap(t.sin, in_dims=None)(t.ones(2)),
    "a dimension that there is not": lambda t: t.func.vmap(t.sin, in_dims=3)(t.ones(2)),
    "too few dimensions": lambda t: t.func.vmap(t.add, in_dims=(0,))(t.ones(2), t.ones(2)),
    "too few dimensions of results": lambda t: t.func.vmap(lambda x: (x, x), out_dims=(0,))(t.ones(2)),
    "results that are no tensors": lambda t: t.func.vmap(lambda x: 3)(t.ones(2)),
}


def said(library: Any, name: str) -> tuple[str, str]:
    with pytest.raises(ValueError, match="vmap") as caught:
        WRONG[name](library)
    return type(caught.value).__name__, str(caught.value).split(". ")[0].split(" has structure")[0]


@pytest.mark.parametrize("name", WRONG)
def test_an_error_says_what_pytorchs_says(name: str) -> None:
    assert said(engine, name) == said(torch, name)


def test_draws_need_a_randomness() -> None:
    for library in (engine, torch):
        x = library.ones(3, 2)
        for draws in (lambda x, t=library: t.nn.functional.dropout(x, 0.5), lambda x, t=library: x * t.randn(2)):
            with pytest.raises(RuntimeError, match="called random operation while in randomness error mode"):
                library.vmap(draws)(x)
            assert library.vmap(draws, randomness="different")(x).shape == (3, 2)
            same = library.vmap(draws, randomness="same")(x)
            assert (same == same[0]).all()
        assert (library.vmap(lambda x, t=library: t.nn.functional.dropout(x, 0.5, False))(x) == x).all()
        with pytest.raises(RuntimeError, match="Only allowed values for randomness"):
            library.vmap(library.sin, randomness="none")(x)
