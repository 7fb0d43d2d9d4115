"""A step of a small convolutional network against the same with im2col written by hand in NumPy."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import interleaved, machine, table
from numpy.lib.stride_tricks import sliding_window_view

import gradviz as gv
from gradviz import nn
from gradviz.nn import functional as F

N = 32
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(N, 1, 28, 28)).astype(np.float32), RNG.integers(0, 10, N)
TX, TY = gv.tensor(X), gv.tensor(Y)
gv.manual_seed(0)
NET = nn.Sequential(
    *[nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2)],
    *[nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 121, 10)],
)
W1, B1, W2, B2, W3, B3 = (parameter.detach().numpy() for parameter in NET.parameters())


def convolve(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The convolution, and the columns that its backward needs."""
    windows = sliding_window_view(x, (3, 3), axis=(2, 3))
    n, c, height, width = windows.shape[:4]
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, c * 9)
    out = columns @ w.reshape(len(w), -1).T + b
    return out.reshape(n, height, width, -1).transpose(0, 3, 1, 2), columns


def weights_back(g: np.ndarray, columns: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradients of the weight and bias."""
    rows = g.transpose(0, 2, 3, 1).reshape(-1, g.shape[1])
    return (rows.T @ columns).reshape(w.shape), rows.sum(0)


def input_back(g: np.ndarray, w: np.ndarray, shape: tuple) -> np.ndarray:
    """The gradient of the input."""
    n, out, height, width = g.shape
    parts = g.transpose(0, 2, 3, 1).reshape(-1, out) @ w.reshape(out, -1)
    parts = parts.reshape(n, height, width, shape[1], 3, 3)
    whole = np.zeros(shape, np.float32)
    for i in range(3):
        for j in range(3):
            whole[:, :, i : i + height, j : j + width] += parts[..., i, j].transpose(0, 3, 1, 2)
    return whole


def by_hand() -> list[np.ndarray]:
    """Forward and backward."""
    c1, columns1 = convolve(X, W1, B1)
    r1 = np.maximum(c1, 0)
    quads = r1.reshape(N, 16, 13, 2, 13, 2).transpose(0, 1, 2, 4, 3, 5).reshape(N, 16, 13, 13, 4)
    best = quads.argmax(-1)[..., None]
    pooled = np.take_along_axis(quads, best, -1)[..., 0]
    c2, columns2 = convolve(pooled, W2, B2)
    r2 = np.maximum(c2, 0)
    flat = r2.reshape(N, -1)
    z = flat @ W3.T + B3
    e = np.exp(z - z.max(1, keepdims=True))
    g = e / e.sum(1, keepdims=True)
    g[np.arange(N), Y] -= 1
    g /= N
    w3, b3 = g.T @ flat, g.sum(0)
    g = (g @ W3).reshape(r2.shape) * (r2 > 0)
    w2, b2 = weights_back(g, columns2, W2)
    spread = np.zeros_like(quads)
    np.put_along_axis(spread, best, input_back(g, W2, pooled.shape)[..., None], -1)
    g = spread.reshape(N, 16, 13, 13, 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(r1.shape) * (r1 > 0)
    return [*weights_back(g, columns1, W1), w2, b2, w3, b3]


def recorded() -> None:
    """The same as modules."""
    NET.zero_grad()
    F.cross_entropy(NET(TX), TY).backward()


if __name__ == "__main__":
    print(machine())
    recorded()
    for expected, parameter in zip(by_hand(), NET.parameters(), strict=True):
        np.testing.assert_allclose(parameter.grad.numpy(), expected, atol=1e-5)
    times = interleaved({"hand": by_hand, "gradviz": recorded})
    rows = [(name, f"{taken * 1e3:.1f}", f"{taken / times['hand']:.2f}") for name, taken in times.items()]
    table(f"two convolutions, a pool, a linear layer, batch of {N}", rows, ("what", "ms a step", "ratio"))
