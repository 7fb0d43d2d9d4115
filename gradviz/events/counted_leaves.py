"""Which leaves are counted for histograms, and at which passes: the same for each source."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from gradviz.events.listener import LeafHistogram
from gradviz.events.values import counts_of_rows

MOST_LEAVES = 512
_MOST_ELEMENTS = 1 << 11  # of a tensor
_AT_ONCE = 1 << 18  # elements that are counted together, which bounds the memory
_CHOSEN = frozenset(4**power for power in range(32))  # passes of a sort
_MOST_SORTS = 16
_MOST_FREED = 64  # modules: a program may make one for each batch


class CountedPasses:
    """Chooses passes 1, 4, 16 and so on.

    Passes that reach other leaves, as those of two networks, are of another sort, and of each sort the passes are
    counted apart. Only a few sorts are followed: a program may make new leaves for each pass. `followed` are the leaves
    of these sorts, which are counted a last time."""

    def __init__(self) -> None:
        self._passes: Counter[tuple[int, int]] = Counter()  # by the first leaf and the number of leaves
        self.followed: set[int] = set()
        self._freed = 0  # the modules that were counted when they were freed

    def takes(self, leaves: Collection[int]) -> bool:
        """Whether the next pass, which reaches these leaves, is chosen."""
        sort = min(leaves), len(leaves)
        if sort not in self._passes:
            if len(self._passes) >= _MOST_SORTS:
                return False
            self.followed.update(sorted(leaves)[:MOST_LEAVES])
        self._passes[sort] += 1
        return self._passes[sort] in _CHOSEN

    def takes_freed(self, leaves: Collection[int]) -> set[int]:
        """The followed ones of the leaves of a module that is being freed; none once many modules were freed."""
        own = self.followed.intersection(leaves)
        if not own or self._freed >= _MOST_FREED:
            return set()
        self._freed += 1
        return own


def step_of(size: int, most: int = _MOST_ELEMENTS) -> int:
    """The distance between the elements of a tensor of which `most` are counted: 1 for all. It is odd, so that the
    elements are not always of one channel."""
    return -(-size // most) | 1


def stretches(count: int, size: int) -> Iterator[slice]:
    """The parts of `count` tensors of one size that are counted together."""
    step = max(1, _AT_ONCE // size)
    return (slice(first, first + step) for first in range(0, count, step))


def histograms_of(what: str, leaves: Sequence[int], rows: np.ndarray) -> Iterator[LeafHistogram]:
    """The histograms of the rows of a 2-d array, each with the elements of a leaf or of its gradient."""
    for leaf, histogram in zip(leaves, counts_of_rows(rows), strict=True):
        if histogram is not None:
            yield LeafHistogram(leaf, what, *histogram)
