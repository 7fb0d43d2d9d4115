"""Sets of whole numbers as arrays. `np.unique` and `np.isin` of NumPy 2.3 and later hash their numbers, which takes 15
to 50 times as long as to sort them; a trace has millions. And `np.unique` without indices or counts loads `numpy.ma`,
which takes every command 20 ms."""

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

# A table of all numbers between the least and the largest is worth it up to so many times their count.
_DENSE = 8
_PAGE = 16  # bits of a number within a page
_OPEN = 4  # pages that have a byte for each number
_ALIKE = 256  # pages that are known by what they hold
_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


def grouped(pairs: Iterable[tuple[_K, _V]]) -> dict[_K, list[_V]]:
    """The second parts of pairs in lists, by the first part, in order."""
    groups: dict[_K, list[_V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def distinct(numbers: ArrayLike) -> np.ndarray:
    """The numbers of an integer array of any shape, each once, in ascending order."""
    ordered = np.array(numbers).ravel()
    if len(ordered) < 2:
        return ordered
    ordered.sort()
    is_new = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return ordered[is_new]


def ranked(numbers: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers of an integer array in ascending order, and the place of each element among them: for a
    table that has a row for each number that occurs, however high it is."""
    known = distinct(numbers)
    return known, np.searchsorted(known, numbers)


def distinct_pairs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The pairs of two arrays of shape (n,) of whole numbers below 2³², each once, as rows in ascending order."""
    keys = distinct(first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64))
    return np.stack([keys >> np.uint64(32), keys & np.uint64(0xFFFFFFFF)], axis=1).astype(np.int64)


def contained(numbers: ArrayLike, among: ArrayLike) -> np.ndarray:
    """For each element of an integer array, of any shape, whether it is one of `among`."""
    numbers, among = np.asarray(numbers, np.int64), np.asarray(among, np.int64)
    if not among.size or not numbers.size:
        return np.zeros(numbers.shape, bool)
    low, high = int(among.min()), int(among.max())
    if high - low < _DENSE * (among.size + numbers.size):
        table = np.zeros(high - low + 1, bool)
        table[among.ravel() - low] = True
        inside = (numbers >= low) & (numbers <= high)
        return inside & table[np.where(inside, numbers, low) - low]
    ordered = np.sort(among, axis=None)
    places = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    return ordered[places] == numbers


def without(numbers: ArrayLike, others: ArrayLike) -> np.ndarray:
    """The distinct numbers of an integer array that are not among `others`."""
    own = distinct(numbers)
    return own[~contained(own, others)]


def common(numbers: ArrayLike, others: ArrayLike) -> np.ndarray:
    """The distinct numbers of an integer array that are also among `others`."""
    own = distinct(numbers)
    return own[contained(own, others)]


def summed(steps: np.ndarray, threads: np.ndarray) -> np.ndarray:
    """The sum of the steps of each thread up to each of its events."""
    if not len(threads) or threads.min() == threads.max():
        return np.cumsum(steps)
    order = np.argsort(threads, kind="stable")
    sums, begins = np.cumsum(steps[order]), np.flatnonzero(np.diff(threads[order], prepend=-1))
    before = sums[begins] - steps[order][begins]
    found = np.empty(len(steps), np.int64)
    found[order] = sums - np.repeat(before, np.diff(np.append(begins, len(steps))))
    return found


class Numbers:
    """A set of positive numbers that mostly count up, in pages with a bit for each: a day's run has thousands of
    millions. As a run does the same again and again, most pages are alike, and those are kept once. The pages that were
    opened last have a byte for each number."""

    def __init__(self) -> None:
        self._pages: dict[int, bytes] = {}
        self._open: dict[int, np.ndarray] = {}
        self._alike: dict[bytes, bytes] = {}

    def add(self, numbers: np.ndarray) -> int:
        """Add numbers; returns how many of them are new."""
        new = 0
        numbers = distinct(numbers[numbers > 0])
        for page in distinct(numbers >> _PAGE).tolist():
            own = numbers[numbers >> _PAGE == page] & (1 << _PAGE) - 1
            seen = self._bytes(page)
            new += len(own) - int(np.count_nonzero(seen[own]))
            seen[own] = True
        return new

    def _bytes(self, page: int) -> np.ndarray:
        """A page with a byte for each number."""
        found = self._open.get(page)
        if found is None:
            if len(self._open) == _OPEN:
                self._close(next(iter(self._open)))
            packed = np.frombuffer(self._pages.setdefault(page, b""), np.uint8)
            found = np.unpackbits(packed).astype(bool) if len(packed) else np.zeros(1 << _PAGE, bool)
            self._open[page] = found
        return found

    def _close(self, page: int) -> None:
        bits = np.packbits(self._open.pop(page)).tobytes()
        if len(self._alike) == _ALIKE:
            self._alike.clear()
        self._pages[page] = self._alike.setdefault(bits, bits)

    def holds(self, numbers: np.ndarray) -> np.ndarray:
        """For each of these numbers whether it is in the set."""
        found = np.zeros(len(numbers), bool)
        for page in distinct(numbers >> _PAGE).tolist() if self._pages else ():
            if page in self._pages:
                own = numbers >> _PAGE == page
                found[own] = self._bytes(page)[numbers[own] & (1 << _PAGE) - 1]
        return found
