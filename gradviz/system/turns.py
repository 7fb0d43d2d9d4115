"""Locks for `with`, by which threads take turns, and which Ctrl-C leaves free.

Python 3.14 and 3.15 look for Ctrl-C between a context manager's `__enter__`, if it is not written in Python, and the
block: a lock that is taken by then stays taken (github.com/python/cpython/issues/148874)."""

import sys
import threading
from typing import Any


class _Turn(type(threading.RLock())):  # type: ignore[misc]
    """A lock that its owner may take again."""

    __slots__ = ()

    def __enter__(self) -> bool:
        try:
            return self.acquire()
        except BaseException:
            if self._is_owned():
                self.release()
            raise


def new_turn() -> Any:
    """A lock. Its owner may not count on taking it again."""
    return threading.Lock() if sys.version_info < (3, 14) else _Turn()


def new_own_turn() -> Any:
    """A lock that its owner may take again."""
    return threading.RLock() if sys.version_info < (3, 14) else _Turn()
