"""Random numbers. See PyTorch's `torch.random`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gradviz.engine.basics.missing import says_what_is_missing
from gradviz.engine.core.tensor import Tensor
from gradviz.engine.rng.generator import default_generator, initial_seed, manual_seed

__all__ = ["default_generator", "fork_rng", "get_rng_state", "initial_seed", "manual_seed", "seed", "set_rng_state"]


def seed() -> int:
    """Seed the generator with a random number. Returns the seed."""
    return default_generator.seed()


def get_rng_state() -> Tensor:
    """The state of the generator: a uint8 tensor of 5056 bytes, which PyTorch's `set_rng_state` takes too."""
    return default_generator.get_state()


def set_rng_state(new_state: Tensor) -> None:
    """Set the state of the generator. Raises TypeError for what is no uint8 tensor, RuntimeError for an invalid
    state."""
    default_generator.set_state(new_state)


@contextmanager
def fork_rng(devices: Any = None, enabled: bool = True, **_: Any) -> Iterator[None]:
    """Restore the state of the generator at the end of the block."""
    state = get_rng_state() if enabled else None
    try:
        yield
    finally:
        if state is not None:
            set_rng_state(state)


__getattr__ = says_what_is_missing(__name__, globals())
