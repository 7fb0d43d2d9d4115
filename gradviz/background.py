"""A thread of gradviz's own, which a program does not see among its threads and cannot wait for."""

import _thread
import os
import time
from collections.abc import Callable
from contextlib import suppress
from sys import exc_info

from gradviz.system.descriptors import write
from gradviz.system.process import thread_exists

_PATIENCE = 10  # seconds: a busy machine takes long to end a thread
_running: set["Background"] = set()
_paused: list["Background"] = []


class Background:
    """Runs `target` in a thread that `threading` does not know: `threading.enumerate()` lists the program's own. Like a
    daemon it ends with the interpreter.

    With `wake` it makes room for a fork, as Python warns of other threads there: after `wake` the target is to return
    as soon as `pausing`. It is called anew by `go_on_all`, which is for later: Python warns after the fork.

    `failed` gets an exception that leaves the target, which the interpreter would print with its traceback. Where it
    fails itself, `untold` is this exception."""

    def __init__(
        self,
        target: Callable[[], None],
        wake: Callable[[], None] | None = None,
        failed: Callable[[BaseException | None], None] | None = None,
    ) -> None:
        self.target = target
        self.wake = wake
        self.failed = failed or _say_failure
        self.untold: BaseException | None = None
        self.pausing = False
        self.over = _thread.allocate_lock()
        self.process = os.getpid()
        self.task = 0

    def start(self) -> None:
        """Begin. While the interpreter ends no thread can be started (from Python 3.12 on): it is not running then."""
        self.over.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:
            self.over.release()
            return
        if self.wake is not None:
            _running.add(self)

    @property
    def is_running(self) -> bool:
        """Whether the work has begun and is not over."""
        return self.over.locked()

    def join(self) -> None:
        """Wait until it is over. In a copy of the process, made by `fork`, it is over."""
        _running.discard(self)
        if self in _paused:
            _paused.remove(self)
        if self.process == os.getpid():
            self.over.acquire()
            self.over.release()

    def pause(self) -> None:
        """Have it end."""
        self.pausing = True
        if self.wake is not None:
            self.wake()
        with self.over:
            until = time.monotonic() + _PATIENCE  # the system takes a moment to forget it
            while thread_exists(self.task) and time.monotonic() < until:
                time.sleep(0)

    def _run(self) -> None:
        self.task = _thread.get_native_id()
        try:
            self.target()
        except:  # noqa: E722  # by no name: the program may have taken the names of builtins away
            self._tell(exc_info()[1])
        finally:
            self.over.release()

    def _tell(self, error: BaseException | None) -> None:
        try:
            self.failed(error)
        except:  # noqa: E722  # what telling takes may be gone, too
            self.untold = error


def _say_failure(error: BaseException | None) -> None:
    with suppress(OSError):  # nobody may read it
        write(2, f"gradviz: a fault of gradviz's beside the program, which goes on: {error!r}\n".encode())


def pause_all() -> None:
    """Before a fork: let them end."""
    while _running:
        thread = _running.pop()
        thread.pause()
        _paused.append(thread)


def go_on_all() -> None:
    """After a fork, in the parent: begin again."""
    while _paused:
        try:
            thread = _paused.pop()
        except IndexError:  # another thread was faster
            return
        thread.pausing = False
        thread.start()


def forget_all() -> None:
    """After a fork, in the child, which has no threads but the one that forked."""
    _running.clear()
    _paused.clear()
