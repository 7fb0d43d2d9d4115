"""The workloads in plain NumPy: forward keeping what backward needs, and backward as one would write it on paper.

The loss is computed too, as it is by the libraries."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from workloads import data as d

Arrays = list[np.ndarray]


def chain() -> Arrays:
    """x · c · c ..."""
    h = np.ones(4, np.float32)
    saved = []
    for _ in range(d.CHAIN):
        saved.append(h)
        h = h * d.FACTOR
    g = np.ones(4, np.float32)
    while saved:
        saved.pop()
        g = g * d.FACTOR
    return [g]


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean cross entropy and its gradient with respect to the logits."""
    shifted = logits - logits.max(1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    at = np.arange(len(labels)), labels
    loss = -log_p[at].mean()
    g = np.exp(log_p)
    g[at] -= 1
    return loss, g / np.float32(len(labels))


def mlp() -> Arrays:
    """784-256-10 with ReLU and cross entropy."""
    h = d.PIXELS @ d.W1 + d.B1
    r = np.maximum(h, 0)
    _, g = cross_entropy(r @ d.W2 + d.B2, d.DIGITS)
    w2, b2 = r.T @ g, g.sum(0)
    g = (g @ d.W2.T) * (h > 0)
    return [d.PIXELS.T @ g, g.sum(0), w2, b2]


def products() -> Arrays:
    """h ← h W, ten times, then the sum."""
    h, saved = d.STATE, []
    for _ in range(d.PRODUCTS):
        saved.append(h)
        h = h @ d.SQUARE
    h.sum()
    g, w = np.ones_like(h), np.zeros_like(d.SQUARE)
    while saved:
        w += saved.pop().T @ g
        g = g @ d.SQUARE.T
    return [g, w]


def attention() -> Arrays:
    """Self-attention of four heads and its projection, then the mean of the squares."""
    n, t, c = d.WORDS.shape
    size = c // d.HEADS

    def heads(x: np.ndarray) -> np.ndarray:
        return x.reshape(n, t, d.HEADS, size).transpose(0, 2, 1, 3)

    def joined(x: np.ndarray) -> np.ndarray:
        return x.transpose(0, 2, 1, 3).reshape(n * t, c)

    x = d.WORDS.reshape(n * t, c)
    q, k, v = heads(x @ d.WQ), heads(x @ d.WK), heads(x @ d.WV)
    scale = np.float32(size**-0.5)
    s = (q @ k.transpose(0, 1, 3, 2)) * scale
    e = np.exp(s - s.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    mixed = joined(p @ v)
    out = mixed @ d.WO
    (out**2).mean()
    g = out * np.float32(2 / out.size)
    wo = mixed.T @ g
    g = heads(g @ d.WO.T)
    gv, gp = p.transpose(0, 1, 3, 2) @ g, g @ v.transpose(0, 1, 3, 2)
    gs = (gp - (gp * p).sum(-1, keepdims=True)) * p * scale
    gq, gk, gv = joined(gs @ k), joined(gs.transpose(0, 1, 3, 2) @ q), joined(gv)
    gx = gq @ d.WQ.T + gk @ d.WK.T + gv @ d.WV.T
    return [gx.reshape(n, t, c), x.T @ gq, x.T @ gk, x.T @ gv, wo]


def convolve(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The convolution, and the columns (im2col) that its backward needs."""
    windows = sliding_window_view(x, (3, 3), axis=(2, 3))
    n, c, height, width = windows.shape[:4]
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, c * 9)
    out = columns @ w.reshape(len(w), -1).T + b
    return out.reshape(n, height, width, -1).transpose(0, 3, 1, 2), columns


def convolve_weights_back(g: np.ndarray, columns: np.ndarray, w: np.ndarray) -> Arrays:
    """The gradients of the weight and bias."""
    rows = g.transpose(0, 2, 3, 1).reshape(-1, g.shape[1])
    return [(rows.T @ columns).reshape(w.shape), rows.sum(0)]


def convolve_input_back(g: np.ndarray, w: np.ndarray, shape: tuple) -> np.ndarray:
    """The gradient of the input."""
    n, out, height, width = g.shape
    parts = g.transpose(0, 2, 3, 1).reshape(-1, out) @ w.reshape(out, -1)
    parts = parts.reshape(n, height, width, shape[1], 3, 3)
    whole = np.zeros(shape, np.float32)
    for i in range(3):
        for j in range(3):
            whole[:, :, i : i + height, j : j + width] += parts[..., i, j].transpose(0, 3, 1, 2)
    return whole


def convnet() -> Arrays:
    """Two convolutions with ReLU, a pool between them, a linear layer, cross entropy."""
    n = len(d.IMAGES)
    c1, columns1 = convolve(d.IMAGES, d.C1, d.D1)
    r1 = np.maximum(c1, 0)
    quads = r1.reshape(n, 16, 13, 2, 13, 2).transpose(0, 1, 2, 4, 3, 5).reshape(n, 16, 13, 13, 4)
    best = quads.argmax(-1)[..., None]
    pooled = np.take_along_axis(quads, best, -1)[..., 0]
    c2, columns2 = convolve(pooled, d.C2, d.D2)
    r2 = np.maximum(c2, 0)
    flat = r2.reshape(n, -1)
    _, g = cross_entropy(flat @ d.C3 + d.D3, d.LABELS)
    last = [flat.T @ g, g.sum(0)]
    g = (g @ d.C3.T).reshape(r2.shape) * (r2 > 0)
    middle = convolve_weights_back(g, columns2, d.C2)
    spread = np.zeros_like(quads)
    np.put_along_axis(spread, best, convolve_input_back(g, d.C2, pooled.shape)[..., None], -1)
    g = spread.reshape(n, 16, 13, 13, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(r1.shape) * (r1 > 0)
    return [*convolve_weights_back(g, columns1, d.C1), *middle, *last]


STEPS = {"chain": chain, "mlp": mlp, "products": products, "attention": attention, "convnet": convnet}
