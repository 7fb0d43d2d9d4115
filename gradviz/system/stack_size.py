"""The stack of the main thread, which a deep graph needs."""

from __future__ import annotations

import sys

_DEEP = 10_000  # nodes; PyTorch frees some 45,000 in the 8 MB that are usual
# Linux keeps 128 MB free below the stack of a program's start; a stack may grow to a limit that is set later.
_SIZE_BYTES = 112 << 20


def make_room_for_graph(nodes: int) -> None:
    """Raise the limit of the main thread's stack if a graph has very many nodes. On Linux only.

    PyTorch frees a graph whose nodes Python has seen by calls within calls, one for each node of a chain. Without a
    recorder Python sees none of them."""
    if nodes < _DEEP or sys.platform != "linux":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    size = _SIZE_BYTES if hard == resource.RLIM_INFINITY else min(_SIZE_BYTES, hard)
    if soft != resource.RLIM_INFINITY and soft < size:
        resource.setrlimit(resource.RLIMIT_STACK, (size, hard))
