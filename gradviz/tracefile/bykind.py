"""The events of a batch or chunk by their kinds, sorted once."""

from __future__ import annotations

import numpy as np


class ByKind:
    """Events as rows of `event_layout.ROW`; the first of them is number `first` of the recording."""

    def __init__(self, first: int, rows: np.ndarray) -> None:
        self.first, self.rows = first, rows
        self.kinds = rows["head"].astype(np.uint8)  # the lowest byte
        self._order = self.kinds.argsort(kind="stable")
        self._ends = np.bincount(self.kinds, minlength=256).cumsum().tolist()

    def at(self, *kinds: int) -> np.ndarray:
        """The places of the events of these kinds; those of each kind are in order."""
        parts = [self._order[self._ends[kind - 1] : self._ends[kind]] for kind in kinds]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def column(self, name: str, *kinds: int) -> np.ndarray:
        """A column of the events of these kinds."""
        column: np.ndarray = self.rows[name][self.at(*kinds)]
        return column
