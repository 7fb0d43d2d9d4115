"""Random numbers: PyTorch's CPU generator, so that a seeded lesson prints what its author saw.

The generator is the 32-bit Mersenne Twister (Matsumoto and Nishimura 1998), seeded as PyTorch seeds it; floats
take 24 bits of a draw, doubles 53 of two (`aten/src/ATen/core/TransformationHelper.h`). `normal` follows Box and
Muller as PyTorch does below and above 16 elements.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradviz.engine.basics.devices import device
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.rng.generator_state import packed, unpacked


class Generator:
    """A stream of 32-bit draws that can be seeded; draws are taken under a lock."""

    def __init__(self, where: Any = None) -> None:
        self.lock = threading.Lock()
        self.device = device("cpu" if where is None else where)
        self.manual_seed(67280421310721)  # PyTorch's default

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream that belongs to `seed` anew; returns the generator."""
        self.initial = int(seed)
        self.bits = np.random.MT19937()
        self.bits._legacy_seeding(self.initial % 2**32)
        self.next_normal: float | None = None
        return self

    def initial_seed(self) -> int:
        """The seed that the stream began with."""
        return self.initial

    def seed(self) -> int:
        """Start anew with a seed that nobody chose; returns it."""
        return self.manual_seed(int(np.random.SeedSequence().generate_state(1)[0])).initial

    def get_state(self) -> Tensor:
        """Where the stream is, as a tensor of bytes: PyTorch's generator can go on from it."""
        return new_tensor(packed(self.initial, self.bits, self.next_normal))

    def set_state(self, new_state: Tensor) -> None:
        """Go on from a state. Raises TypeError for what is no tensor of bytes, RuntimeError for what is no state."""
        if not isinstance(new_state, Tensor):
            raise TypeError(f"expected a torch.ByteTensor, but got {type(new_state).__name__}")
        if new_state.array.dtype != np.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        self.initial, self.bits, self.next_normal = unpacked(new_state.array)

    def draws(self, n: int) -> np.ndarray:
        """The next n draws."""
        with self.lock:
            return self.bits.random_raw(n).astype(np.uint64)


class _Chosen(threading.local):
    generator: Generator | None = None


default_generator = Generator()
default_generator.seed()
_chosen = _Chosen()


def _stream() -> Generator:
    """The generator that is drawn from: the one a program named, or the common one."""
    return _chosen.generator or default_generator


@contextmanager
def drawing_from(generator: Generator | None) -> Iterator[None]:
    """Draw from a generator of the program's own (None: from the common one)."""
    previous, _chosen.generator = _chosen.generator, generator
    try:
        yield
    finally:
        _chosen.generator = previous


def manual_seed(seed: int) -> Generator:
    """Start the random numbers that belong to `seed`."""
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed that the present stream began with."""
    return default_generator.initial


def _float32(n: int) -> np.ndarray:
    draws = _stream().draws(n) & np.uint64((1 << 24) - 1)
    return draws.astype(np.float32) * np.float32(2.0**-24)


def _float64(n: int) -> np.ndarray:
    draws = _stream().draws(2 * n).reshape(n, 2)
    whole = (draws[:, 0] << np.uint64(32)) | draws[:, 1]
    return (whole & np.uint64((1 << 53) - 1)).astype(np.float64) * 2.0**-53


def uniform(size: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Uniform on [0, 1)."""
    n = int(np.prod(size, dtype=np.int64))
    return (_float64(n) if dtype == np.float64 else _float32(n).astype(dtype)).reshape(size)


def normal(size: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Standard normal."""
    n = int(np.prod(size, dtype=np.int64))
    values = _few_normals(n) if n < 16 else _many_normals(n, dtype)
    return values.astype(dtype).reshape(size)


def _few_normals(n: int) -> np.ndarray:
    values = np.empty(n)
    for i in range(n):
        if _stream().next_normal is not None:
            values[i], _stream().next_normal = _stream().next_normal, None
            continue
        u1, u2 = _float64(2)
        radius, angle = np.sqrt(-2.0 * np.log1p(-u2)), 2.0 * np.pi * u1
        values[i] = radius * np.cos(angle)
        _stream().next_normal = float(radius * np.sin(angle))
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
    """True with probability p."""
    n = int(np.prod(size, dtype=np.int64))
    return (_float64(n) < p).reshape(size)


def uniform_to_compare(size: tuple[int, ...], chances: np.ndarray) -> np.ndarray:
    """Uniform on [0, 1), as PyTorch draws them to compare with probabilities that are a tensor."""
    return uniform(size, chances.dtype)


def integers(low: int, high: int, size: tuple[int, ...]) -> np.ndarray:
    """Integers from low to high, high excluded."""
    n = int(np.prod(size, dtype=np.int64))
    return (_stream().draws(n) % np.uint64(high - low)).astype(np.int64).reshape(size) + low


def seed_of_a_stream() -> int:
    """A whole number of 63 bits, as PyTorch draws the seed of a stream of its own."""
    high, low = _stream().draws(2).tolist()
    return (high << 32 | low) % 2**63


def permutation(n: int) -> np.ndarray:
    """0 ... n−1 in random order (Fisher and Yates)."""
    order = np.arange(n)
    draws = _stream().draws(max(n - 1, 0))
    for i in range(n - 1):
        j = i + int(draws[i]) % (n - i)
        order[i], order[j] = order[j], order[i]
    return order
