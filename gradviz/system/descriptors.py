"""File descriptors of gradviz's own, out of the way of a program's: it may count on the lowest number that is free, or
close and overwrite numbers that it takes for its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl
    import resource

_HIGHEST = 700
_MOST = 2048  # descriptors that are looked at where the system does not list those that are open
_LISTS = Path("/proc/self/fd"), Path("/dev/fd")  # of Linux, and of macOS


def _high() -> int:
    if sys.platform == "win32":  # a program there has handles, and seldom counts on numbers
        return 0
    else:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return _HIGHEST if limit < 0 else max(3, min(_HIGHEST, limit - 100))


HIGH = _high()  # our descriptors have numbers from here on


def high_copy(descriptor: int) -> int:
    """A copy of a descriptor, which programs that are started do not inherit."""
    if sys.platform == "win32":
        return os.dup(descriptor)
    else:
        return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH)


def write(descriptor: int, data: bytes) -> None:
    """Write at once."""
    if sys.platform == "win32":  # a console takes UTF-8, but not through a plain descriptor
        with open(descriptor, "wb", buffering=0, closefd=False) as stream:
            stream.write(data)
    else:
        os.write(descriptor, data)


def first_bytes_of_open(descriptor: int, size: int) -> bytes | None:
    """The first bytes of a file that is open, without opening it again: when it is closed then, POSIX takes all locks
    away that the process holds on the file. None where no locks are lost like that."""
    if sys.platform == "win32":
        return None
    else:
        return os.pread(descriptor, size, 0)


@contextmanager
def high_descriptors() -> Iterator[None]:
    """What is opened in this block gets high numbers, where the system allows it."""
    taken: list[int] = []
    try:
        _take_low(taken)
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)


def _take_low(taken: list[int]) -> None:
    """Take the numbers below HIGH that are free."""
    with suppress(OSError):  # there may be fewer
        _take_until_high(taken)


def _take_until_high(taken: list[int]) -> None:
    while not taken or taken[-1] < HIGH:
        taken.append(os.open(os.devnull, os.O_RDONLY))


class Watched:
    """Notices that a descriptor of ours has been closed by the program, which may have opened a file of its own in its
    place: what we wrote then would go there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        wanted = identity(path)
        self.known = {number: wanted for number in _open_descriptors() if identity(number) == wanted}

    @property
    def are_ours(self) -> bool:
        """Whether each still is what it was."""
        return all(identity(number) == found for number, found in self.known.items())


def _open_descriptors() -> Iterable[int]:
    """The numbers that may be open."""
    listed = next(filter(Path.is_dir, _LISTS), None)
    return range(_MOST) if listed is None else map(int, os.listdir(listed))


def identity(file: int | Path) -> tuple[int, int] | None:
    """Which file it is, whatever it is called; None where there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
