"""Lays two runs beside each other: pairs of items that correspond, and items that only one run has.

First, items with the same name on the same line of source are pairs. Between these pairs, items with the same name are
pairs; then, one by one, the items that are left in the same place, if their kinds agree."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher

import numpy as np

from gradviz.query.run_items import Stretch, Timeline

NONE = -1  # in place of an item that one side lacks
_MOST = 4_000  # the most items of a side that are compared with each other


def aligned(one: Timeline, other: Timeline, pairs: list[tuple[Stretch, Stretch]]) -> np.ndarray:
    """Rows of two: an item of one run, and the item of the other run that corresponds to it; NONE if there is none."""
    known: dict[tuple[bytes, bytes], np.ndarray] = {}
    found = [np.zeros((0, 2), np.int64)]
    for left, right in pairs:
        a, b = one.strong[left.items], other.strong[right.items]
        key = a.tobytes(), b.tobytes()
        if key not in known:
            weak = one.words[left.items], other.words[right.items]
            known[key] = np.array(list(_pairs(a, b, *weak)), np.int64).reshape(-1, 2)
        part = known[key]
        columns = [
            _at(items, places) for items, places in zip((left.items, right.items), part.T, strict=True)
        ]
        found.append(np.stack(columns, axis=1))
    return np.concatenate(found)


def _at(items: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The items at these places; NONE at a place NONE."""
    return np.append(items, NONE)[places]


Pair = tuple[int, int]


def _pairs(a: np.ndarray, b: np.ndarray, weak_a: np.ndarray, weak_b: np.ndarray) -> Iterator[Pair]:
    """Places in `a` and `b` that correspond."""
    for same, (start, end, begin, stop) in _blocks(a, b):
        if same:
            yield from zip(range(start, end), range(begin, stop), strict=True)
            continue
        for alike, (s, e, t, u) in _blocks(weak_a[start:end], weak_b[begin:stop]):
            one, other = range(start + s, start + e), range(begin + t, begin + u)
            if alike or _kinds(weak_a, one) == _kinds(weak_b, other):
                yield from zip(one, other, strict=True)
                continue
            yield from ((i, NONE) for i in one)
            yield from ((NONE, j) for j in other)


def _kinds(words: np.ndarray, places: range) -> list[int]:
    """The kinds of items, without their names."""
    return (words[places.start : places.stop] % 64).tolist()


def _blocks(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[bool, tuple[int, int, int, int]]]:
    """Parts of two sequences, in order: (whether they are equal, (start and end in a, start and end in b))."""
    shorter = min(len(a), len(b))
    differs = np.flatnonzero(a[:shorter] != b[:shorter])
    head = int(differs[0]) if len(differs) else shorter
    rest = shorter - head
    differs = np.flatnonzero(a[len(a) - rest :][::-1] != b[len(b) - rest :][::-1])
    tail = int(differs[0]) if len(differs) else rest
    if head:
        yield True, (0, head, 0, head)
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if len(middle_a) or len(middle_b):
        yield from _middle(middle_a, middle_b, head)
    if tail:
        yield True, (len(a) - tail, len(a), len(b) - tail, len(b))


def _middle(a: np.ndarray, b: np.ndarray, offset: int) -> Iterator[tuple[bool, tuple[int, int, int, int]]]:
    if max(len(a), len(b)) > _MOST or not len(a) or not len(b):
        yield False, (offset, offset + len(a), offset, offset + len(b))
        return
    matcher = SequenceMatcher(None, a.tolist(), b.tolist(), autojunk=False)
    for tag, *bounds in matcher.get_opcodes():
        start, end, begin, stop = (bound + offset for bound in bounds)
        yield tag == "equal", (start, end, begin, stop)
