"""File descriptors of gradviz's own, out of the way of a program's: it may count on the lowest number that is free, or
close and overwrite numbers that it takes for its own."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_HIGHEST = 700
_OPEN = Path("/proc/self/fd")


def _high() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _HIGHEST if limit < 0 else max(3, min(_HIGHEST, limit - 100))


HIGH = _high()  # our descriptors have numbers from here on


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
        self.known = {number: found for number, found in _open_files() if found == identity(path)}

    @property
    def are_ours(self) -> bool:
        """Whether each still is what it was."""
        return all(identity(number) == found for number, found in self.known.items())


def _open_files() -> Iterator[tuple[int, tuple[int, int] | None]]:
    if _OPEN.is_dir():
        for name in os.listdir(_OPEN):
            yield int(name), identity(int(name))


def identity(file: int | Path) -> tuple[int, int] | None:
    """Which file it is, whatever it is called; None where there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino
