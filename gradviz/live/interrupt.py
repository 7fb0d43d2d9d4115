"""Ctrl-C in the debugger: the first pauses the script, the second interrupts it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gradviz.live.pauses import Pauses


@contextmanager
def ctrl_c_pauses(pauses: Callable[[], Pauses | None], say: Callable[[str], None]) -> Iterator[None]:
    """A context in which SIGINT requests a pause at the next event. A second SIGINT before that event raises
    KeyboardInterrupt, as it does without a debugger, because the script may be waiting for something else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def interrupt(number: int, frame: object) -> None:
        running = pauses()
        if running is None or os.getpid() != process:
            raise KeyboardInterrupt
        if running.quitting:
            running.quit_here()
        elif running.paused:
            pass  # the stepper reads Ctrl-C as a key
        elif running.interrupted:
            raise KeyboardInterrupt
        else:
            running.interrupt()
            say("gradviz: pausing at the next event (Ctrl-C once more interrupts the script)\n")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
