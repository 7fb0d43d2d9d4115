"""A process: its threads, its copies, its timers and how Ctrl-C ends it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
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
