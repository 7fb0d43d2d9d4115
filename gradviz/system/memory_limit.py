"""A limit on the memory that a block may take, where the system has one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SHARE = 0.75  # of the memory of the machine


@contextmanager
def limited_memory() -> Iterator[None]:
    """A context in which the process gets at most three quarters of the machine's memory: a larger allocation fails.
    On Linux only; other systems have no such limit."""
    if sys.platform != "linux":
        yield
        return
    import resource

    before, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _SHARE)
    if before == resource.RLIM_INFINITY or most < before:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, hard))
