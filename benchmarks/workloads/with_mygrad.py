"""The workloads in mygrad."""

from __future__ import annotations

from collections.abc import Callable

import mygrad as mg
import numpy as np
from mygrad.nnet.activations import softmax
from mygrad.nnet.layers import conv_nd, max_pool
from mygrad.nnet.losses import softmax_crossentropy

from workloads import data as d


def chain(x: mg.Tensor) -> mg.Tensor:
    """x · c · c ..."""
    for _ in range(d.CHAIN):
        x = x * d.FACTOR
    return x.sum()


def mlp(w1: mg.Tensor, b1: mg.Tensor, w2: mg.Tensor, b2: mg.Tensor) -> mg.Tensor:
    """784-256-10 with ReLU and cross entropy."""
    return softmax_crossentropy(mg.maximum(d.PIXELS @ w1 + b1, 0) @ w2 + b2, d.DIGITS)


def products(h: mg.Tensor, w: mg.Tensor) -> mg.Tensor:
    """h ← h W, ten times, then the sum."""
    for _ in range(d.PRODUCTS):
        h = h @ w
    return h.sum()


def attention(x: mg.Tensor, wq: mg.Tensor, wk: mg.Tensor, wv: mg.Tensor, wo: mg.Tensor) -> mg.Tensor:
    """Self-attention of four heads and its projection, then the mean of the squares."""
    n, t, c = x.shape
    size = c // d.HEADS
    q, k, v = ((x @ w).reshape(n, t, d.HEADS, size).transpose(0, 2, 1, 3) for w in (wq, wk, wv))
    p = softmax(q @ k.transpose(0, 1, 3, 2) * np.float32(size**-0.5))
    out = (p @ v).transpose(0, 2, 1, 3).reshape(n, t, c) @ wo
    return (out**2).mean()


def convnet(c1, d1, c2, d2, c3, d3) -> mg.Tensor:  # type: ignore[no-untyped-def]
    """Two convolutions with ReLU, a pool between them, a linear layer, cross entropy."""
    h = mg.maximum(conv_nd(d.IMAGES, c1, stride=1) + d1.reshape(1, -1, 1, 1), 0)
    h = max_pool(h, (2, 2), 2)
    h = mg.maximum(conv_nd(h, c2, stride=1) + d2.reshape(1, -1, 1, 1), 0)
    return softmax_crossentropy(h.reshape(len(d.IMAGES), -1) @ c3 + d3, d.LABELS)


def _step(function: Callable, *arrays: np.ndarray) -> Callable[[], list[np.ndarray]]:
    leaves = [mg.tensor(array) for array in arrays]

    def step() -> list[np.ndarray]:
        for leaf in leaves:
            leaf.null_grad()
        function(*leaves).backward()
        return [leaf.grad for leaf in leaves]

    return step


STEPS = {
    "chain": _step(chain, np.ones(4, np.float32)),
    "mlp": _step(mlp, d.W1, d.B1, d.W2, d.B2),
    "products": _step(products, d.STATE, d.SQUARE),
    "attention": _step(attention, d.WORDS, d.WQ, d.WK, d.WV, d.WO),
    "convnet": _step(convnet, d.C1, d.D1, d.C2, d.D2, d.C3, d.D3),
}
