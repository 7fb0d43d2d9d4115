"""Sorted tables over the events of a trace, for look-ups at any event."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.sets import distinct
from gradviz.tracefile import Trace


class Log:
    """A history of values by tensor: one value for each (tensor, event), sorted by tensor and event."""

    def __init__(self, tensors: np.ndarray, events: np.ndarray, values: np.ndarray) -> None:
        order = np.lexsort((events, tensors))
        self.tensors = tensors[order].astype(np.int64)
        self.events = events[order].astype(np.int64)
        self.values = values[order].astype(np.int64)

    def without_repeats(self) -> Log:
        """The same table without events that do not change the value."""
        same = (self.tensors[1:] == self.tensors[:-1]) & (self.values[1:] == self.values[:-1])
        new = np.concatenate([np.ones(min(1, len(self.tensors)), bool), ~same])
        return Log(self.tensors[new], self.events[new], self.values[new])

    def of(self, tensor: int) -> tuple[np.ndarray, np.ndarray]:
        """The events and values of one tensor."""
        start, end = np.searchsorted(self.tensors, [tensor, tensor + 1])
        return self.events[start:end], self.values[start:end]

    def last(self, tensor: int, k: int) -> int | None:
        """The last value of a tensor up to event k; None if there is none."""
        tensors = self.tensors
        start, end = int(tensors.searchsorted(tensor)), int(tensors.searchsorted(tensor, side="right"))
        position = start + int(self.events[start:end].searchsorted(k, side="right"))
        return int(self.values[position - 1]) if position > start else None

    def standing(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Every tensor with a value up to event k, and its last value."""
        told = self.events <= k
        later = told[1:] & (self.tensors[1:] == self.tensors[:-1])
        last = told & ~np.concatenate([later, np.zeros(min(1, len(told)), bool)])
        return self.tensors[last], self.values[last]


class Nesting:
    """Nested spans of events, for each thread. A span includes the event that ends it."""

    def __init__(self, trace: Trace, begin: Kind, end: Kind) -> None:
        begins, ends = trace.indices(begin), trace.indices(end)
        self.count = trace.count
        edges = np.concatenate([begins, ends + 1])
        steps = np.concatenate([np.ones(len(begins), np.int64), -np.ones(len(ends), np.int64)])
        threads = trace.events["head"][np.concatenate([begins, ends])] >> 16
        self.depths: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self.begins: dict[tuple[int, int], np.ndarray] = {}
        for thread in distinct(threads).tolist():
            own = threads == thread
            order = np.lexsort((steps[own], edges[own]))
            at, step = edges[own][order], steps[own][order]
            depth = np.cumsum(step)
            self.depths[thread] = (at, depth)
            for level in distinct(depth[step > 0]).tolist():
                self.begins[thread, level] = at[(step > 0) & (depth == level)]

    @cached_property
    def stretches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first event, the last event and the thread of each span, outer spans before inner ones. A span that did
        not end extends to the last event."""
        firsts, lasts, threads = [], [], []
        for (thread, level), begins in self.begins.items():
            at, depth = self.depths[thread]
            left = np.diff(depth, prepend=0) < 0
            ends = at[left & (depth == level - 1)] - 1
            ends = ends[ends >= begins[0]]  # of a span from before the recording only the end is told
            firsts.append(begins)
            lasts.append(np.concatenate([ends, np.full(len(begins) - len(ends), self.count - 1, ends.dtype)]))
            threads.append(np.full(len(begins), thread))
        if not firsts:
            return (np.zeros(0, np.int64),) * 3
        columns = [np.concatenate(parts) for parts in (firsts, lasts, threads)]
        order = np.argsort(columns[0], kind="stable")
        return columns[0][order], columns[1][order], columns[2][order]

    def spans(self) -> list[tuple[int, int, int]]:
        """The same as (first event, last event, thread) of each span."""
        return list(zip(*(part.tolist() for part in self.stretches), strict=True))

    def around(self, k: int, thread: int) -> list[int]:
        """The first events of the spans around k, outermost first."""
        if thread not in self.depths:
            return []
        at, depth = self.depths[thread]
        position = int(at.searchsorted(k, side="right")) - 1
        levels = int(depth[position]) if position >= 0 else 0
        found = []
        for level in range(1, levels + 1):
            begins = self.begins[thread, level]
            found.append(int(begins[begins.searchsorted(k, side="right") - 1]))
        return found
