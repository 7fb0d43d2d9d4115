"""What all libraries compute with: the same numbers."""

from __future__ import annotations

import numpy as np

CHAIN, PRODUCTS = 1000, 10
BATCH, HEADS = 64, 4

_rng = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    """Normally distributed float32 numbers."""
    return (scale * _rng.normal(size=shape)).astype(np.float32)


FACTOR = np.full(4, 1.0001, np.float32)

PIXELS, DIGITS = normal(BATCH, 784), _rng.integers(0, 10, BATCH)
W1, B1, W2, B2 = normal(784, 256, scale=0.05), normal(256), normal(256, 10, scale=0.1), normal(10)

SQUARE, STATE = normal(512, 512, scale=512**-0.5), normal(512, 512)

# attention: 8 sequences of 64 words, 64 features in 4 heads
WORDS = normal(8, 64, 64)
WQ, WK, WV, WO = (normal(64, 64, scale=0.125) for _ in range(4))

# a small convnet: two convolutions, a pool, a linear layer
IMAGES, LABELS = normal(32, 1, 28, 28), _rng.integers(0, 10, 32)
C1, D1 = normal(16, 1, 3, 3, scale=0.3), normal(16, scale=0.1)
C2, D2 = normal(32, 16, 3, 3, scale=0.1), normal(32, scale=0.1)
C3, D3 = normal(32 * 121, 10, scale=0.02), normal(10, scale=0.1)
