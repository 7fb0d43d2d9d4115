"""Ends a running script from another thread."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from gradviz.system.turns import new_turn

STATUS = 3  # the exit status of a script that was ended


class Stopped(SystemExit):
    """Raised in a script to end it."""

    def __init__(self) -> None:
        super().__init__(STATUS)


class Stopper:
    """Ends a script: `stop` raises Stopped in the thread that runs it, between two of its instructions. The script
    may clean up (`finally`), and `except Exception` does not catch it. It runs from `begin` to `end`, or in a `with`
    block. `looks` is called at the end of each pass (see `Recorder.look_at_passes`), and may stop the script there."""

    def __init__(self, looks: Callable[[bool], None] | None = None) -> None:
        self.looks = looks
        self.lock = new_turn()
        self.thread = 0  # the thread that runs the script now; 0 for none

    def begin(self) -> None:
        """Note that the script runs from now on, on this thread."""
        with self.lock:
            self.thread = threading.get_ident()

    def end(self) -> None:
        """Note that the script no longer runs."""
        with self.lock:
            self.thread = 0

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def stop(self) -> None:
        """End the script, if it still runs."""
        with self.lock:
            if self.thread:
                thread = ctypes.c_ulong(self.thread)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(Stopped))
