"""What programs ask of `torch.cuda` before they use the CPU. There is no GPU here."""

from typing import Any

from gradviz.engine.basics.missing import says_what_is_missing


def is_available() -> bool:
    """False: gradviz computes on the CPU."""
    return False


def device_count() -> int:
    """0."""
    return 0


def manual_seed(seed: int) -> None:
    """Do nothing: there is no GPU whose generator could be seeded."""


manual_seed_all = manual_seed


def empty_cache() -> None:
    """Do nothing: there is no memory of a GPU."""


def synchronize(device: Any = None) -> None:
    """Do nothing: all operations are finished when they return."""


__getattr__ = says_what_is_missing(__name__, globals())
