"""Sets of whole numbers as arrays. `np.unique` and `np.isin` of NumPy 2.3 and later hash their numbers, which takes 15
to 50 times as long as to sort them; a trace has millions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_DENSE = (
    8  # a table of all numbers between the least and the largest is worth it up to so many times their count
)


def distinct(numbers: ArrayLike) -> np.ndarray:
    """The numbers of an integer array of any shape, each once, in ascending order."""
    ordered = np.sort(np.asarray(numbers), axis=None)
    if not len(ordered):
        return ordered
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]


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
