"""The workloads in HIPS autograd. It has no pooling, and so no convnet here."""

from __future__ import annotations

from collections.abc import Callable

import autograd.numpy as anp
import numpy as np
from autograd import grad

from workloads import data as d


def chain_of(x: np.ndarray) -> np.ndarray:
    """x · c · c ..., summed."""
    for _ in range(d.CHAIN):
        x = x * d.FACTOR
    return anp.sum(x)


def mlp_of(params: tuple) -> np.ndarray:
    """784-256-10 with ReLU and cross entropy."""
    w1, b1, w2, b2 = params
    z = anp.maximum(d.PIXELS @ w1 + b1, 0) @ w2 + b2
    z = z - anp.max(z, axis=1, keepdims=True)
    log_p = z - anp.log(anp.sum(anp.exp(z), axis=1, keepdims=True))
    return -anp.mean(log_p[np.arange(d.BATCH), d.DIGITS])


def products_of(params: tuple) -> np.ndarray:
    """h ← h W, ten times, then the sum."""
    h, w = params
    for _ in range(d.PRODUCTS):
        h = anp.dot(h, w)
    return anp.sum(h)


def attention_of(params: tuple) -> np.ndarray:
    """Self-attention of four heads and its projection, then the mean of the squares."""
    x, wq, wk, wv, wo = params
    n, t, c = x.shape
    size = c // d.HEADS
    q, k, v = (anp.transpose(anp.reshape(anp.matmul(x, w), (n, t, d.HEADS, size)), (0, 2, 1, 3)) for w in (wq, wk, wv))
    s = anp.matmul(q, anp.transpose(k, (0, 1, 3, 2))) * np.float32(size**-0.5)
    e = anp.exp(s - anp.max(s, axis=-1, keepdims=True))
    p = e / anp.sum(e, axis=-1, keepdims=True)
    out = anp.matmul(anp.reshape(anp.transpose(anp.matmul(p, v), (0, 2, 1, 3)), (n, t, c)), wo)
    return anp.mean(out**2)


def _step(function: Callable, start: object) -> Callable[[], list[np.ndarray]]:
    gradient = grad(function)

    def step() -> list[np.ndarray]:
        found = gradient(start)
        return list(found) if isinstance(found, tuple) else [found]

    return step


STEPS = {
    "chain": _step(chain_of, np.ones(4, np.float32)),
    "mlp": _step(mlp_of, (d.W1, d.B1, d.W2, d.B2)),
    "products": _step(products_of, (d.STATE, d.SQUARE)),
    "attention": _step(attention_of, (d.WORDS, d.WQ, d.WK, d.WV, d.WO)),
}
