"""Arrays of random numbers. They are equal to PyTorch's to the last bit.

A float takes 24 bits of one draw, a double 53 bits of two draws (`aten/src/ATen/core/TransformationHelper.h`).
`normal` follows Box and Muller, as PyTorch does, differently for fewer than 16 elements and for more.
"""

from __future__ import annotations

import numpy as np

from gradviz.engine.rng.generator import stream


def _float32(n: int) -> np.ndarray:
    draws = stream().draws(n) & np.uint64((1 << 24) - 1)
    return draws.astype(np.float32) * np.float32(2.0**-24)


def _float64(n: int) -> np.ndarray:
    draws = stream().draws(2 * n).reshape(n, 2)
    whole = (draws[:, 0] << np.uint64(32)) | draws[:, 1]
    return (whole & np.uint64((1 << 53) - 1)).astype(np.float64) * 2.0**-53


def uniform(size: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of uniform numbers on [0, 1)."""
    n = int(np.prod(size, dtype=np.int64))
    return (_float64(n) if dtype == np.float64 else _float32(n).astype(dtype)).reshape(size)


def normal(size: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array of standard normal numbers."""
    n = int(np.prod(size, dtype=np.int64))
    values = _few_normals(n) if n < 16 else _many_normals(n, dtype)
    return values.astype(dtype).reshape(size)


def _few_normals(n: int) -> np.ndarray:
    values = np.empty(n)
    for i in range(n):
        if stream().next_normal is not None:
            values[i], stream().next_normal = stream().next_normal, None
            continue
        u1, u2 = _float64(2)
        radius, angle = np.sqrt(-2.0 * np.log1p(-u2)), 2.0 * np.pi * u1
        values[i] = radius * np.cos(angle)
        stream().next_normal = float(radius * np.sin(angle))
    return values


def _many_normals(n: int, dtype: np.dtype) -> np.ndarray:
    draw = _float64 if dtype == np.float64 else _float32
    values = draw(n)
    starts = list(range(0, n - 15, 16))
    for start in starts:
        values[start : start + 16] = _box_muller(values[start : start + 16])
    if n % 16:
        values[n - 16 :] = _box_muller(draw(16))
    return values


def _box_muller(u: np.ndarray) -> np.ndarray:
    radius = np.sqrt(-2 * np.log(1 - u[:8]))
    angle = 2 * np.pi * u[8:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def bernoulli(size: tuple[int, ...], p: float) -> np.ndarray:
    """A bool array, True with probability p."""
    n = int(np.prod(size, dtype=np.int64))
    return (_float64(n) < p).reshape(size)


def uniform_to_compare(size: tuple[int, ...], chances: np.ndarray) -> np.ndarray:
    """Uniform numbers on [0, 1), as PyTorch draws them to compare with a tensor of probabilities."""
    return uniform(size, chances.dtype)


def integers(low: int, high: int, size: tuple[int, ...]) -> np.ndarray:
    """An int64 array of integers from low to high − 1."""
    n = int(np.prod(size, dtype=np.int64))
    return (stream().draws(n) % np.uint64(high - low)).astype(np.int64).reshape(size) + low


def seed_of_a_stream() -> int:
    """An integer of 63 bits, as PyTorch draws the seed of another generator."""
    high, low = stream().draws(2).tolist()
    return (high << 32 | low) % 2**63


def permutation(n: int) -> np.ndarray:
    """0 ... n−1 in random order (Fisher and Yates), as an int64 array."""
    order = np.arange(n)
    draws = stream().draws(max(n - 1, 0))
    for i in range(n - 1):
        j = i + int(draws[i]) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order
