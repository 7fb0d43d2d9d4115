"""A thread of gradviz's own, which a program does not see among its threads and cannot wait for."""

from __future__ import annotations

import _thread
from collections.abc import Callable


class Background:
    """Runs `target` in a thread that `threading` does not know: `threading.enumerate()` lists the program's own. Like a
    daemon it ends with the interpreter."""

    def __init__(self, target: Callable[[], None]) -> None:
        self.target = target
        self.over = _thread.allocate_lock()

    def start(self) -> None:
        """Begin."""
        self.over.acquire()
        _thread.start_new_thread(self._run, ())

    def join(self) -> None:
        """Wait until it is over."""
        self.over.acquire()
        self.over.release()

    def _run(self) -> None:
        try:
            self.target()
        finally:
            self.over.release()
