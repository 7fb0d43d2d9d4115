"""A process: its threads, its copies, its timers and how Ctrl-C ends it."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_THREADS = Path("/proc/self/task")
# STATUS_CONTROL_C_EXIT as a signed number, or the status that a shell reports for a process that SIGINT ended.
CTRL_C_STATUS = 0xC000013A - (1 << 32) if sys.platform == "win32" else 128 + signal.SIGINT


def at_fork(
    before: Callable[[], None] = lambda: None,
    in_parent: Callable[[], None] = lambda: None,
    in_child: Callable[[], None] = lambda: None,
) -> None:
    """Call these functions before and after the process is copied, on systems that can copy processes."""
    if sys.platform != "win32":
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def stop_timers() -> None:
    """Stop all timers that send signals."""
    if sys.platform != "win32":
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)


def interrupt_main_thread() -> None:
    """Wake the main thread by Ctrl-C."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)
    elif (number := threading.main_thread().ident) is not None:
        signal.pthread_kill(number, signal.SIGINT)


def work_of_children() -> int:
    """A number that grows with each process that this process started and that has ended; 0 if the system does not
    provide it."""
    if sys.platform == "win32":
        return 0
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


def thread_exists(number: int) -> bool:
    """Whether the system still has a thread of this process; False if the system does not list threads."""
    return (_THREADS / str(number)).exists()


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
