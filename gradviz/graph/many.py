"""Speeds up the creation of very many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Turn off Python's garbage collector, as a context manager or decorator. While a graph is built there are no
    cycles to collect, and the repeated scans would take as long as the building. The new objects then count as old:
    otherwise the first scan afterwards would go through all of them."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():  # else this would thaw what the program has frozen
                gc.freeze()
                gc.unfreeze()
            gc.enable()
