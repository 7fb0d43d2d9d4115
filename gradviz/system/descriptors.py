"""File descriptors of gradviz's own, separate from the program's: a program may rely on the lowest free number, or
close and overwrite numbers that it believes to be its own."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl
    import resource

_HIGHEST = 700
_MOST = 2048  # descriptors that are checked if the system does not list the open ones
_LISTS = Path("/proc/self/fd"), Path("/dev/fd")  # of Linux, and of macOS


def _high() -> int:
    if sys.platform == "win32":  # a program there has handles, and seldom relies on numbers
        return 0
    else:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _HIGHEST if limit < 0 else max(3, min(_HIGHEST, limit - 100))


HIGH = _high()  # our descriptors have numbers from here on


def high_copy(descriptor: int) -> int:
    """A copy of a descriptor, which child processes do not inherit."""
    if sys.platform == "win32":
        return os.dup(descriptor)
    else:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)


def write(descriptor: int, data: bytes) -> None:
    """Write bytes at once."""
    if sys.platform == "win32":  # a console takes UTF-8, but not through a plain descriptor
        with open(descriptor, "wb", buffering=0, closefd=False) as stream:
            stream.write(data)
    else:
        os.write(descriptor, data)


def first_bytes_of_open(descriptor: int, size: int) -> bytes | None:
    """The first bytes of an open file, without opening it again: closing the second descriptor would, on POSIX,
    release all locks that the process holds on the file. None on systems where that is not so."""
    if sys.platform == "win32":
        return None
    else:
        return os.pread(descriptor, size, 0)


@contextmanager
def high_descriptors() -> Iterator[None]:
    """A context in which opened files get high numbers, if the system allows it."""
    taken: list[int] = []
    try:
        with suppress(OSError):  # there may be fewer
            while not taken or taken[-1] < HIGH:
                taken.append(os.dup(taken[0]) if taken else os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


class Watched:
    """Notices that the program has closed one of our descriptors. The program may have opened a file of its own in
    its place, into which we would then write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        wanted = identity(path)
        self.known = {number: wanted for number in _open_descriptors() if identity(number) == wanted}

    @property
    def are_ours(self) -> bool:
        """Whether each descriptor is still the same file."""
        return all(identity(number) == found for number, found in self.known.items())


def _open_descriptors() -> Iterable[int]:
    """The numbers of descriptors that may be open."""
    listed = next(filter(Path.is_dir, _LISTS), None)
    return range(_MOST) if listed is None else map(int, os.listdir(listed))


def identity(file: int | Path) -> tuple[int, int] | None:
    """The identity of a file, whatever its name; None if there is no file."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


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
