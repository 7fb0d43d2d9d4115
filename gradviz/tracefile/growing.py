"""A trace that is read by stretches of events, as they are needed. Part (part.py) decides which stretches.

A stretch begins and ends where no scope and no pass is open, and includes the nodes of its ops, so that everything
nested in it is whole. An array with a place for each event of the run takes memory only where it has been written."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakSet

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.events.kinds import Kind
from gradviz.sets import distinct
from gradviz.tracefile.database import most_unpacked
from gradviz.tracefile.directory import Directory
from gradviz.tracefile.doors import Watcher
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.schema import STATE
from gradviz.tracefile.sound import check_heads, check_nesting, check_rows, check_states, kinds_of
from gradviz.tracefile.states import States
from gradviz.tracefile.unreadable import told_of

_FOLLOWING = (Kind.NODE, Kind.MUTATED, Kind.KERNEL, Kind.MEASURED)  # events that belong to the op before them
_ENDS = (Kind.SCOPE_LEFT, Kind.PASS_ENDED)
UNREAD = 0  # in place of an event's kind


class Growing(Trace):
    """The events of a trace that have been read, at their places in the run."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.path, trace._connection, trace.chunks)
        with told_of(self.path):
            if self.count * ROW.itemsize > most_unpacked(self._connection):
                raise ValueError("it stands for more than its size allows")
            self.directory = Directory(self.path, self.chunks, self._rows)
            self._rows_read = np.zeros(self.count, ROW)
            self._kinds = np.zeros(self.count, np.uint8)
            self._ends = np.zeros(self.count, np.uint32)
        self._seen = self._kinds.data
        self._chunks_read: set[int] = set()
        self._stretches: list[tuple[int, int]] = []
        self._watchers: WeakSet[Any] = WeakSet()
        self._states_of = lru_cache(maxsize=256)(self._read_states)

    # --- what is read

    @property
    def events(self) -> np.ndarray:
        """The rows of the events that have been read, at their places in the run."""
        return self._rows_read

    @property
    def kinds(self) -> np.ndarray:
        """The kinds of the events that have been read, 0 for other events."""
        return self._kinds

    @property
    def _link_ends(self) -> np.ndarray:
        return self._ends

    @cached_property
    def _by_kind(self) -> tuple[np.ndarray, np.ndarray]:
        places = np.concatenate([np.zeros(0, np.int64), *(np.arange(*ends) for ends in self._stretches)])
        kinds = self._kinds[places]
        return places[np.argsort(kinds, kind="stable")], np.cumsum(np.bincount(kinds, minlength=256))

    @cached_property
    def states(self) -> States:
        """The states of the events that have been read."""
        places = self._places_read()
        parts = [self._states_of(place) for place in places]

        def values(number: int) -> bytes:
            return self._values(places[number])

        def value(number: int, offset: int, length: int) -> bytes:
            return self._value(places[number], offset, length)

        with told_of(self.path):
            sizes = [self.chunks.size(place) for place in places]
            states = States(parts, sizes, self.forms, values, value)
            return states.of(self._kinds[states.events] != UNREAD)

    def _places_read(self) -> list[int]:
        """The chunks with events of the stretches."""
        places: dict[int, None] = {}
        for first, end in self._stretches:
            places.update(
                dict.fromkeys(range(self.directory.place(first), self.directory.place(end - 1) + 1))
            )
        return list(places)

    def _read_states(self, place: int) -> np.ndarray:
        _, first, count, _ = self.chunks.list[place]
        with told_of(self.path):
            states = self.chunks.one("states", place).view(STATE)
            bounds = np.array([0, len(states)])
            check_states(states["tensor"], states["base"], states["event"], bounds, [first, first + count])
        return states

    def _read_chunk(self, place: int) -> None:
        """Read the rows of a chunk. Its events do not count as read yet."""
        if place in self._chunks_read:
            return
        _, first, count, _ = self.chunks.list[place]
        here = slice(first, first + count)
        self._rows_read[here] = rows = self._checked_rows(place)
        np.cumsum(rows["links"], dtype=np.uint32, out=self._ends[here])
        self._chunks_read.add(place)

    def _checked_rows(self, place: int) -> np.ndarray:
        _, first, count, _ = self.chunks.list[place]
        with told_of(self.path):
            numbers = self.chunks.one("events", place)
            if len(numbers) * numbers.itemsize != count * ROW.itemsize:
                raise ValueError("there are fewer or more events than there should be")
            check_heads(numbers)
            rows = numbers.view(ROW)
            check_rows(rows, kinds_of(rows), self._nameable, first)
        return rows

    def stretches(self, event: int, forward: bool) -> Iterator[tuple[int, np.ndarray]]:
        """The run in stretches at whose ends no scope and no pass is open, beginning with the stretch of an event: the
        first event of each stretch, and kind | flags << 8 | thread << 16 of all its events. They are not kept."""
        firsts = distinct(self.directory.since)
        ends = np.append(firsts[1:], self.count)
        at = int(np.searchsorted(firsts, event, side="right")) - 1
        for number in range(at, len(firsts)) if forward else range(at, -1, -1):
            first, end = int(firsts[number]), int(ends[number])
            places = range(self.directory.place(first), self.directory.place(end - 1) + 1)
            begin = self.chunks.list[places[0]].first
            heads = np.concatenate([self._checked_rows(place)["head"] for place in places])
            yield first, heads[first - begin : end - begin]

    def _kind(self, event: int) -> int:
        """The kind of any event."""
        self._read_chunk(self.directory.place(event))
        return int(self._rows_read["head"][event]) & 0xFF

    # --- growing

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher.forget()` whenever more has been read."""
        self._watchers.add(watcher)

    def reach(self, first: int, end: int | None = None) -> None:
        """Read an event, or the events from `first` to before `end`, with the ops and nodes around them and the scopes
        that they are in."""
        if end is not None:
            self._take_around((first + np.flatnonzero(self._kinds[first:end] == UNREAD)).tolist())
        elif not (
            0 <= first < self.count and self._seen[first]
        ):  # most events are read, once much of the run has been read
            self._take_around([first])

    def _take_around(self, events: Iterable[int]) -> None:
        """Read the stretches around events."""
        new = sorted(set(events))
        with told_of(self.path):
            if new and not 0 <= new[0] <= new[-1] < self.count:
                raise ValueError("it tells of an event that there is not")
        new = [event for event in new if not self._seen[event]]
        for event in new:
            if not self._seen[event]:
                self._take(*self._around(event))
        if new:
            self._forget()

    @property
    def is_whole(self) -> bool:  # type: ignore[override]
        """Whether all events have been read."""
        return self._stretches == [(0, self.count)]

    def reach_all(self) -> None:
        """Read all events."""
        if not self.is_whole:
            self._take(0, self.count)
            self._forget()

    def _take(self, first: int, end: int) -> None:
        for place in range(self.directory.place(first), self.directory.place(end - 1) + 1):
            self._read_chunk(place)
        with told_of(self.path):
            check_nesting(self._rows_read["head"][first:end])
        self._kinds[first:end] = self._rows_read["head"][first:end] & 0xFF
        apart = [ends for ends in self._stretches if ends[1] < first or ends[0] > end]
        touching = [ends for ends in self._stretches if not (ends[1] < first or ends[0] > end)]
        whole = min([first, *(a for a, _ in touching)]), max([end, *(b for _, b in touching)])
        self._stretches = sorted([*apart, whole])

    def _forget(self) -> None:
        for known in ("_by_kind", "states", "passes", "_passes_by_number"):
            self.__dict__.pop(known, None)
        self._tables.clear()
        for watcher in list(self._watchers):
            watcher.forget()

    def _around(self, event: int) -> tuple[int, int]:
        """The first event of the stretch around an event, and the event after its last."""
        since, firsts = self.directory.since, self.directory.firsts
        first = int(since[self.directory.place(event)])
        while first > 0 and (self._kind(first) in _FOLLOWING or self._kind(first) in _ENDS):
            first -= 1
            if self._kind(first) in _ENDS:
                first = int(since[self.directory.place(first)])
        after = bisect_right(since, event, lo=self.directory.place(event) + 1)
        end = int(since[after]) if after < len(firsts) else self.count
        while end < self.count and self._kind(end) in _FOLLOWING:
            end += 1
        return first, end
