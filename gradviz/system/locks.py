"""The lock of a file, which the process that took it holds until it closes the descriptor."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

DELETES_OPEN_FILES = sys.platform != "win32"

# Windows lets no other process read or write locked bytes. SQLite keeps the page at 1 GiB free of content and locks
# only its first 512 bytes: this byte, later in that page, is unused.
_BYTE = (1 << 30) + 1024


def is_locked(descriptor: int, shared: bool = False) -> bool:
    """Whether another process holds the lock of a file; if not, it is now ours. Several processes may hold it
    `shared`. On systems without locks, none is held."""
    try:
        if sys.platform == "win32":
            _lock_byte(descriptor, shared)
        else:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return False


def _lock_byte(descriptor: int, only_look: bool) -> None:
    """Take the lock, and with `only_look` release it at once. Raises PermissionError if another process holds it."""
    if sys.platform == "win32":
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, _BYTE, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            if only_look:
                msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)
