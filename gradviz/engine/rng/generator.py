"""PyTorch's CPU generator, so that a seeded program draws the same numbers as with PyTorch.

It is the 32-bit Mersenne Twister (Matsumoto and Nishimura 1998), and it is seeded as PyTorch seeds it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradviz.engine.basics.devices import device
from gradviz.engine.basics.turns import new_turn
from gradviz.engine.core.tensor import Tensor, new_tensor
from gradviz.engine.rng.generator_state import packed, unpacked


class Generator:
    """A stream of 32-bit draws that can be seeded. Threads take turns to draw."""

    def __init__(self, where: Any = None) -> None:
        self.lock = new_turn()
        self.device = device("cpu" if where is None else where)
        self.bits = np.random.MT19937()  # which takes 200 times as long as to seed it
        self.manual_seed(67280421310721)  # PyTorch's default

    def manual_seed(self, seed: int) -> Generator:
        """Seed the generator. Returns the generator."""
        self.initial = int(seed)
        self.bits._legacy_seeding(self.initial % 2**32)
        self.next_normal: float | None = None
        return self

    def initial_seed(self) -> int:
        """The last seed."""
        return self.initial

    def seed(self) -> int:
        """Seed the generator with a random number. Returns the seed."""
        return self.manual_seed(int(np.random.SeedSequence().generate_state(1)[0])).initial

    def get_state(self) -> Tensor:
        """The state of the generator, as a uint8 tensor. PyTorch's generator can continue from it."""
        return new_tensor(packed(self.initial, self.bits, self.next_normal))

    def set_state(self, new_state: Tensor) -> None:
        """Set the state. Raises TypeError for what is no uint8 tensor, RuntimeError for an invalid state."""
        if not isinstance(new_state, Tensor):
            raise TypeError(f"expected a torch.ByteTensor, but got {type(new_state).__name__}")
        if new_state.array.dtype != np.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        self.initial, self.bits, self.next_normal = unpacked(new_state.array)

    def draws(self, n: int) -> np.ndarray:
        """The next n draws, as a uint64 array."""
        with self.lock:
            return self.bits.random_raw(n).astype(np.uint64)


class _Chosen(threading.local):
    generator: Generator | None = None
    refusal = ""  # why nothing may be drawn now


default_generator = Generator()
default_generator.seed()
_chosen = _Chosen()


def stream() -> Generator:
    """The generator to draw from: the one that the program named, else the common one.

    Raises RuntimeError inside of `refusing_to_draw`."""
    if _chosen.refusal:
        raise RuntimeError(_chosen.refusal)
    return _chosen.generator or default_generator


@contextmanager
def drawing_from(generator: Generator | None) -> Iterator[None]:
    """Draw from this generator inside the block; None: from the default generator."""
    previous, _chosen.generator = _chosen.generator, generator
    try:
        yield
    finally:
        _chosen.generator = previous


@contextmanager
def refusing_to_draw(why: str) -> Iterator[None]:
    """Raise RuntimeError at draws inside the block; with "" they are allowed."""
    previous, _chosen.refusal = _chosen.refusal, why
    try:
        yield
    finally:
        _chosen.refusal = previous


def manual_seed(seed: int) -> Generator:
    """Start the random numbers that belong to `seed`."""
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed that the present stream began with."""
    return default_generator.initial
