"""What a program asks of `torch.cuda` before it settles for the CPU. There is no GPU here."""

from typing import Any

from gradviz.engine.basics.missing import says_what_is_missing


def is_available() -> bool:
    """False: gradviz computes on the CPU."""
    return False


def device_count() -> int:
    """0."""
    return 0


def manual_seed(seed: int) -> None:
    """Nothing: there is no generator on a GPU to seed."""


manual_seed_all = manual_seed


def empty_cache() -> None:
    """Nothing: there is no memory on a GPU to free."""


def synchronize(device: Any = None) -> None:
    """Nothing: everything is done when it returns."""


__getattr__ = says_what_is_missing(__name__, globals())
