"""Sorted tables over the events of a trace, for look-ups at any event, and look-ups whose tables are forgotten when
more of the trace has been read."""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.sets import summed
from gradviz.tracefile import Trace


class Log:
    """A history of values by tensor: one value for each (tensor, event), sorted by tensor and event."""

    def __init__(self, tensors: np.ndarray, events: np.ndarray, values: np.ndarray) -> None:
        order = np.lexsort((events, tensors))
        self.tensors = tensors[order].astype(np.int64)
        self.events = events[order].astype(np.int64)
        self.values = values[order].astype(np.int64)

    def without_repeats(self) -> "Log":
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

    def last_of(self, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
        """The last value of each tensor up to the event beside it; 0 if there is none."""
        if not len(self.tensors):
            return np.zeros(len(tensors), np.int64)
        places = np.searchsorted(self.tensors << 32 | self.events, tensors << 32 | events, side="right") - 1
        return np.where((places >= 0) & (self.tensors[places] == tensors), self.values[places], 0)

    def standing(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Every tensor with a value up to event k, and its last value."""
        so_far = self.events <= k
        later = so_far[1:] & (self.tensors[1:] == self.tensors[:-1])
        last = so_far & ~np.concatenate([later, np.zeros(min(1, len(so_far)), bool)])
        return self.tensors[last], self.values[last]


class Nesting:
    """Nested spans of events, for each thread. A span includes the event that ends it."""

    def __init__(self, trace: Trace, begin: Kind, end: Kind) -> None:
        begins, ends = trace.indices(begin), trace.indices(end)
        self.count = trace.count
        at = np.concatenate([begins, ends + 1])
        steps = np.repeat([1, -1], [len(begins), len(ends)])
        threads = (trace.events["head"][np.concatenate([begins, ends])] >> 16).astype(np.int64)
        order = np.lexsort((steps, at, threads))
        self._at, self._begins, self._threads = at[order], steps[order] > 0, threads[order]
        self._keys = self._threads << 32 | self._at
        self._depths = summed(steps[order], self._threads)

    @cached_property
    def stretches(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first event, the last event and the thread of each span, outer spans before inner ones. A span that did
        not end extends to the last event."""
        # the level of the span that begins or ends there
        levels = np.where(self._begins, self._depths, self._depths + 1)
        order = np.lexsort((levels, self._threads))
        at, begins, keys = self._at[order], self._begins[order], self._threads[order] << 32 | levels[order]
        is_last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        lasts = np.where(is_last, self.count, np.roll(at, -1)) - 1  # a beginning is followed by its end
        firsts, lasts, threads = (part[begins] for part in (at, lasts, self._threads[order]))
        order = np.argsort(firsts, kind="stable")
        return firsts[order], lasts[order], threads[order]

    def spans(self) -> list[tuple[int, int, int]]:
        """The same as (first event, last event, thread) of each span."""
        return list(zip(*(part.tolist() for part in self.stretches), strict=True))

    @cached_property
    def _inner(self) -> np.ndarray:
        """The first event of the innermost span from each beginning or end on, −1 for none."""
        order = np.lexsort((self._depths, self._threads))
        keys = self._threads[order] << 32 | self._depths[order]
        group = np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])
        first = np.repeat(group, np.diff(np.append(group, len(keys))))
        last = np.maximum.accumulate(np.where(self._begins[order], np.arange(len(keys)), -1))
        firsts = np.empty(len(keys), np.int64)
        firsts[order] = np.where((last >= first) & (self._depths[order] > 0), self._at[order][last], -1)
        return firsts

    @cached_property
    def _outer(self) -> dict[int, int]:
        """The first event of the span around each span, by the first event of the inner span."""
        before = np.append(-1, self._inner)[: len(self._inner)]
        before[np.append(True, self._threads[1:] != self._threads[:-1])[: len(before)]] = -1
        return dict(zip(self._at[self._begins].tolist(), before[self._begins].tolist(), strict=True))

    def innermost(self, events: np.ndarray, threads: np.ndarray) -> np.ndarray:
        """The first event of the innermost span around each of these events of these threads, −1 for none."""
        if not len(self._keys):
            return np.full(len(events), -1)
        threads = threads.astype(np.int64)
        places = self._keys.searchsorted(threads << 32 | events, side="right") - 1
        return np.where((places >= 0) & (self._threads[places] == threads), self._inner[places], -1)

    def chain(self, k: int, thread: int) -> Iterator[int]:
        """The first events of the spans around k, innermost first."""
        place = int(self._keys.searchsorted(thread << 32 | k, side="right")) - 1
        first = int(self._inner[place]) if place >= 0 and self._threads[place] == thread else -1
        while first >= 0:  # outer spans began earlier
            yield first
            first = self._outer[first]

    def around(self, k: int, thread: int) -> list[int]:
        """The first events of the spans around k, outermost first."""
        return list(self.chain(k, thread))[::-1]


class Lookup:
    """Look-ups by subject. A table (`cached_property`) is computed on first use from what has been read by then."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        trace.watch(self)

    def forget(self) -> None:
        """Compute all tables anew: more of the trace has been read."""
        for name in [name for name in self.__dict__ if isinstance(getattr(type(self), name, None), cached_property)]:
            del self.__dict__[name]
