"""PyTorch's CPU generator, so that a seeded lesson prints what its author saw.

It is the 32-bit Mersenne Twister (Matsumoto and Nishimura 1998), seeded as PyTorch seeds it.
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


def stream() -> Generator:
    """The generator to draw from: the one that the program named, else the common one."""
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
