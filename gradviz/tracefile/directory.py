"""The summaries beside the chunks of a trace (contents.py), read to find the chunks that are needed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gradviz.tracefile.chunks import Chunks
from gradviz.tracefile.contents import LISTS, NEWEST, NEWEST_AT, unpacked
from gradviz.tracefile.unreadable import told_of

_COLUMNS = "chunk, since_event, highest_tensor, highest_node, ops, new_nodes, first_nan, entangled"
_NEWEST = (NEWEST, NEWEST_AT)


class Directory:
    """Finds chunks, by their places in the file. Raises ValueError if the file is damaged, and TraceError if the damage
    is seen later."""

    def __init__(self, path: Path, chunks: Chunks, rows: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._path, self._rows = path, rows
        self._last = chunks.list[-1].id if chunks.list else 0
        summaries = rows(f"SELECT {_COLUMNS} FROM contents WHERE chunk <= ? ORDER BY chunk", self._last)
        table = np.array(summaries, np.int64).reshape(len(summaries), len(_COLUMNS.split(",")))
        self.firsts = np.array([chunk.first for chunk in chunks.list], np.int64)
        _, self.since, self.tensors, self.nodes, ops, new_nodes, self.first_nans, self.entangled = table.T
        if table[:, 0].tolist() != [chunk.id for chunk in chunks.list]:
            raise ValueError("what is told beside a chunk is missing")
        if np.any(self.since > self.firsts) or np.any(self.since < 0):
            raise ValueError("a chunk is to be read from where it cannot")
        if any(np.any(np.diff(highest) < 0) for highest in (self.since, self.tensors, self.nodes)):
            raise ValueError("what is told beside the chunks is not in their order")
        self.ops, self.new_nodes = int(ops.sum()), int(new_nodes.sum())

    def place(self, event: int) -> int:
        """The chunk with an event."""
        return int(np.searchsorted(self.firsts, event, side="right")) - 1

    def birth(self, tensor: int) -> int | None:
        """The chunk in which a tensor first occurs, most likely; None if the trace has no such number."""
        place = int(self.tensors.searchsorted(tensor))
        return place if place < len(self.tensors) else None

    def births(self, nodes: np.ndarray) -> np.ndarray:
        """The chunks that made these nodes, most likely."""
        return np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)

    def late(self, which: int, number: int) -> np.ndarray:
        """The chunks that list an old tensor, or a node recorded late, in order."""
        numbers, places = self._listed[which]
        return places[numbers.searchsorted(number) : numbers.searchsorted(number, side="right")]

    def listed(self, which: int) -> tuple[np.ndarray, np.ndarray]:
        """All numbers of a list of the chunks in ascending order, and the chunk of each number."""
        return self._listed[which]

    def up_to(self, which: int, place: int) -> set[int]:
        """The numbers of a list of the chunks up to the chunk `place`."""
        numbers, places = self._listed[which]
        return set(numbers[places <= place].tolist())

    def newest(self, place: int) -> set[int]:
        """The newest leaves without `requires_grad` that each site made in the chunks before the chunk `place`."""
        tensors, sites = (
            np.concatenate([np.zeros(0, np.int64), *self._unsorted[which][:place]]) for which in _NEWEST
        )
        _, last = np.unique(sites[::-1], return_index=True)
        return set(tensors[::-1][last].tolist())

    @cached_property
    def _listed(self) -> list[tuple[np.ndarray, np.ndarray]]:
        return [_sorted(lists) for lists in self._unsorted]

    @cached_property
    def _unsorted(self) -> list[list[np.ndarray]]:
        """Each list of each chunk."""
        kept = self._rows("SELECT data FROM contents WHERE chunk <= ? ORDER BY chunk", self._last)
        with told_of(self._path):
            lists = [unpacked(data) for (data,) in kept]
            if list(map(len, _of(NEWEST, lists))) != list(map(len, _of(NEWEST_AT, lists))):
                raise ValueError("what is told beside a chunk does not add up")
        return [_of(which, lists) for which in range(LISTS)]


def _of(which: int, lists: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [of_chunk[which] for of_chunk in lists]


def _sorted(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.concatenate([np.zeros(0, np.int64), *parts])
    places = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(numbers, kind="stable")
    return numbers[order], places[order]
