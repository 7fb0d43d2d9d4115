"""A recorded operation on shape (4,), nobody listening: forward and backward against the same NumPy by hand."""

from __future__ import annotations

import os
import time
import tracemalloc

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import interleaved, machine, table

import gradviz.engine as gv

N = 1000


def by_hand() -> np.ndarray:
    """x · c · c ...: forward keeping what backward needs, then backward."""
    h = np.ones(4, np.float32)
    saved = []
    for _ in range(N):
        saved.append(h)
        h = h * C
    g = np.ones(4, np.float32)
    while saved:
        saved.pop()
        g = g * C
    return g


def recorded() -> None:
    """The same on Tensors."""
    h = X
    for _ in range(N):
        h = h * T
    X.grad = None
    h.backward(SEED)


C = np.full(4, 1.0001, np.float32)
X = gv.ones(4, requires_grad=True)
T = gv.tensor(C)
SEED = gv.ones(4)


def deep(n: int) -> float:
    """Seconds for a chain of n operations, forward and backward."""
    start = time.perf_counter()
    h = X
    for _ in range(n):
        h = h * T
    h.backward(SEED)
    return time.perf_counter() - start


def heap(n: int) -> float:
    """Bytes that the graph of one operation of the chain holds: tensor, array, node, bookkeeping."""
    tracemalloc.start()
    h = X * T
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(n):
        h = h * T
    held = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return held / n


if __name__ == "__main__":
    print(machine())
    times = interleaved({"hand": by_hand, "gradviz": recorded})
    rows = [(name, f"{taken / N * 1e6:.2f}", f"{taken / times['hand']:.2f}") for name, taken in times.items()]
    table("chain on (4,), forward + backward", rows, ("what", "µs an operation", "ratio"))
    rows = [(f"{n:,}", f"{deep(n):.2f} s") for n in (100_000, 1_000_000)]
    table("deep chains, no recursion", rows, ("operations", "forward + backward"))
    print(f"heap: {heap(10_000):.0f} bytes an operation on (4,)")
