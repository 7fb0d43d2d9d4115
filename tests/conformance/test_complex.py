"""Gradients of complex functions, and of those gradients, are PyTorch's; `unique` has none in both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradviz import engine

torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")

pytestmark = pytest.mark.torch

Z = np.array([[1 + 2j, 0.5 - 1j], [-0.3 + 0.2j, 2j]])
W = np.array([[0.2 - 1j, 1j], [1.5, -0.7 + 0.1j]])
FUNCTIONS: dict[str, Callable] = {
    "mul": lambda t, z, w: z * w,
    "div": lambda t, z, w: z / w,
    "exp": lambda t, z, w: z.exp() + w,
    "log": lambda t, z, w: z.log() * w,
    "matmul": lambda t, z, w: z @ w,
    "power": lambda t, z, w: z**w,
    "conj": lambda t, z, w: t.conj(z) * w,
    "real": lambda t, z, w: z.real * w,
    "imag": lambda t, z, w: (z * w).imag,
    "abs": lambda t, z, w: (z * w).abs(),
    "angle": lambda t, z, w: (z * w).angle(),
    "prod": lambda t, z, w: z.prod() * w,
    "inverse": lambda t, z, w: t.linalg.inv(z + w * 3),
    "chunks": lambda t, z, w: z.chunk(2)[0] * w.chunk(2)[1],
}


def array(tensor: Any) -> np.ndarray:
    return tensor.detach().resolve_conj().numpy()


def gradients(t: Any, name: str) -> list[np.ndarray]:
    z, w = t.tensor(Z, requires_grad=True), t.tensor(W, requires_grad=True)
    out = FUNCTIONS[name](t, z, w)
    weight = np.arange(1.0, out.numel() + 1).reshape(out.shape) * (1 + 2j if out.is_complex() else 1)
    first = t.autograd.grad(out, [z, w], t.tensor(weight), create_graph=True)
    second = t.autograd.grad(sum((g.abs() ** 2).sum() for g in first), [z, w], allow_unused=True)
    return [array(out), *map(array, first), *[np.zeros(Z.shape) if g is None else array(g) for g in second]]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_complex_gradients_are_pytorchs(name: str) -> None:
    for mine, theirs in zip(gradients(engine, name), gradients(torch, name), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("t", [torch, engine], ids=["torch", "gradviz"])
def test_unique_has_no_derivative(t: Any) -> None:
    with pytest.raises(NotImplementedError, match="the derivative for '_unique2' is not implemented"):
        t.unique(t.ones(2, requires_grad=True)).sum().backward()
