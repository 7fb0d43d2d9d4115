"""Random numbers. See PyTorch's `torch.random`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.rng.generator import default_generator, initial_seed, manual_seed

__all__ = [
    "default_generator",
    "fork_rng",
    "get_rng_state",
    "initial_seed",
    "manual_seed",
    "seed",
    "set_rng_state",
]


def seed() -> int:
    """Start with random numbers that nobody chose; returns their seed."""
    return default_generator.seed()


def get_rng_state() -> Tensor:
    """Where the random numbers are: a tensor of bytes, which PyTorch's `set_rng_state` takes too."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Go on from a state that `get_rng_state` gave. Raises TypeError and RuntimeError where it is none."""
    default_generator.set_state(new_state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **_: Any) -> Iterator[None]:
    """Draw in the block without the program's later draws being others."""
    state = get_rng_state() if enabled else None
    try:
        yield
    finally:
        if state is not None:
            set_rng_state(state)


__getattr__ = says_what_is_missing(__name__, globals())
