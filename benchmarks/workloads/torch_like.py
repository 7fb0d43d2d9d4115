"""The workloads in PyTorch's words; the same source runs on PyTorch and on gradviz."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from workloads import data as d


def steps(torch: Any, F: Any) -> dict[str, Callable[[], list[np.ndarray]]]:
    """The workloads, each a function that runs one step and returns the gradients."""

    def leaves(*arrays: np.ndarray) -> list[Any]:
        return [torch.tensor(array, requires_grad=True) for array in arrays]

    def gradients(loss: Any, tensors: list[Any], start: Any = None) -> list[np.ndarray]:
        for tensor in tensors:
            tensor.grad = None
        loss.backward(start)
        return [tensor.grad.numpy() for tensor in tensors]

    one = leaves(np.ones(4, np.float32))
    factor = torch.tensor(d.FACTOR)

    def chain() -> list[np.ndarray]:
        h = one[0]
        for _ in range(d.CHAIN):
            h = h * factor
        return gradients(h, one, torch.ones_like(h))

    pixels, digits = torch.tensor(d.PIXELS), torch.tensor(d.DIGITS)
    layers = leaves(d.W1, d.B1, d.W2, d.B2)

    def mlp() -> list[np.ndarray]:
        w1, b1, w2, b2 = layers
        return gradients(F.cross_entropy(torch.relu(pixels @ w1 + b1) @ w2 + b2, digits), layers)

    square = leaves(d.STATE, d.SQUARE)

    def products() -> list[np.ndarray]:
        h, w = square
        for _ in range(d.PRODUCTS):
            h = h @ w
        return gradients(h.sum(), square)

    projections = leaves(d.WORDS, d.WQ, d.WK, d.WV, d.WO)

    def attention() -> list[np.ndarray]:
        x, wq, wk, wv, wo = projections
        n, t, c = x.shape
        size = c // d.HEADS
        q, k, v = ((x @ w).view(n, t, d.HEADS, size).transpose(1, 2) for w in (wq, wk, wv))
        p = torch.softmax(q @ k.transpose(-2, -1) * size**-0.5, -1)
        out = (p @ v).transpose(1, 2).reshape(n, t, c) @ wo
        return gradients((out**2).mean(), projections)

    images, labels = torch.tensor(d.IMAGES), torch.tensor(d.LABELS)
    filters = leaves(d.C1, d.D1, d.C2, d.D2, d.C3, d.D3)

    def convnet() -> list[np.ndarray]:
        c1, d1, c2, d2, c3, d3 = filters
        h = F.max_pool2d(torch.relu(F.conv2d(images, c1, d1)), 2)
        h = torch.relu(F.conv2d(h, c2, d2)).flatten(1)
        return gradients(F.cross_entropy(h @ c3 + d3, labels), filters)

    return {"chain": chain, "mlp": mlp, "products": products, "attention": attention, "convnet": convnet}
