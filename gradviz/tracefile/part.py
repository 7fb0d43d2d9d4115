"""A part of a trace: of a long run only the chunks are read that something is asked about.

Events keep their places in the run, so all that is computed from a part is as if the whole had been read, if what it
asks about has been *reached* (doors.py). What is read grows by *stretches* of events: around an event from where no
scope and no pass is open to where none is, with the nodes of their ops. An array that has a place for each event of the
run takes memory only where something has been written into it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Any
from weakref import WeakSet

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.layout import ROW
from gradviz.sets import contained, distinct
from gradviz.tracefile.contents import FLAGGED, GIVEN, GIVING, LATE, PUSHED, VALUED
from gradviz.tracefile.database import most_unpacked
from gradviz.tracefile.directory import Directory
from gradviz.tracefile.doors import Watcher
from gradviz.tracefile.errors import told_of
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.runs import PassInfo, SiteOps
from gradviz.tracefile.schema import STATE
from gradviz.tracefile.sound import check_heads, check_rows, check_states, kinds_of
from gradviz.tracefile.states import States

_FOLLOWING = (Kind.NODE, Kind.MUTATED, Kind.KERNEL)  # events that belong to the op before them
_ENDS = (Kind.SCOPE_LEFT, Kind.PASS_ENDED)
_UNREAD = 0  # in place of an event's kind


def part_of(trace: Trace) -> Trace:
    """A part of a trace, in which nothing has been read yet; the trace itself where it does not tell what its chunks
    hold (`--last`). It shares the file of the trace, which has to stay open."""
    told = trace._rows("SELECT chunk FROM contents LIMIT 1")
    return Part(trace) if told and trace.count else trace


class Part(Trace):
    """A part of a trace, which grows with what is asked."""

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
        self._asked: set[tuple[object, ...]] = set()
        self._watchers: WeakSet[Any] = WeakSet()
        self._states_of = lru_cache(maxsize=256)(self._read_states)

    # --- what is read

    @property
    def events(self) -> np.ndarray:
        """The rows of the events that have been read, at their places in the run."""
        return self._rows_read

    @property
    def kinds(self) -> np.ndarray:
        """The kinds of the events that have been read, 0 for others."""
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
            return states.of(self._kinds[states.events] != _UNREAD)

    def _places_read(self) -> list[int]:
        """The chunks with events of the stretches."""
        found: dict[int, None] = {}
        for first, end in self._stretches:
            found.update(dict.fromkeys(range(self.directory.place(first), self.directory.place(end - 1) + 1)))
        return list(found)

    def _read_states(self, place: int) -> np.ndarray:
        _, first, count, _ = self.chunks.list[place]
        with told_of(self.path):
            states = self.chunks.one("states", place).view(STATE)
            bounds = np.array([0, len(states)])
            check_states(states["tensor"], states["base"], states["event"], bounds, [first, first + count])
        return states

    def _read_chunk(self, place: int) -> None:
        """Read the rows of a chunk, without taking its events for read."""
        if place in self._chunks_read:
            return
        _, first, count, _ = self.chunks.list[place]
        with told_of(self.path):
            numbers = self.chunks.one("events", place)
            if len(numbers) * numbers.itemsize != count * ROW.itemsize:
                raise ValueError("there are fewer or more events than there should be")
            check_heads(numbers)
            rows = numbers.view(ROW)
            check_rows(rows, kinds_of(rows), self._nameable, first)
        here = slice(first, first + count)
        self._rows_read[here] = rows
        np.cumsum(rows["links"], dtype=np.uint32, out=self._ends[here])
        self._chunks_read.add(place)

    def _kind(self, event: int) -> int:
        """The kind of any event."""
        self._read_chunk(self.directory.place(event))
        return int(self._rows_read["head"][event]) & 0xFF

    # --- passes

    @cached_property
    def passes(self) -> list[PassInfo]:
        """The passes that begin in what has been read."""
        found = [
            run
            for first, end in self._stretches
            for run in self._told_of_passes("first >= ? AND first < ? ORDER BY number", first, end)
        ]
        with told_of(self.path):
            self._check_passes(found, self._kinds, self._rows_read["a"])
        return sorted((self._open_passes.get(run.number, run) for run in found), key=attrgetter("number"))

    @cached_property
    def _open_passes(self) -> dict[int, PassInfo]:
        """The passes that are not told to have ended, as they were when the trace was opened."""
        told = self._told_of_passes("first < ?1 AND (last IS NULL OR last >= ?1) ORDER BY number", self.count)
        found = [replace(run, last=None, nodes=None, digest=None) for run in told]
        if not found:
            return {}
        for place in range(self.directory.place(found[0].first), len(self.chunks)):
            self._read_chunk(place)
        return {run.number: run for run in self._completed(found, found[0].first)}

    @cached_property
    def pass_numbers(self) -> list[int]:
        """The numbers of the passes, in order."""
        return [
            number
            for (number,) in self._rows(
                "SELECT number FROM passes WHERE first < ? ORDER BY number", self.count
            )
        ]

    @cached_property
    def passes_begun(self) -> int:
        """How many passes had begun when the trace was written, those among them that it does not keep."""
        last = self._told_of_passes("first < ? ORDER BY number DESC LIMIT 1", self.count)
        return last[0].number if last else 0

    def find_pass(self, number: int) -> PassInfo | None:
        """A pass by its number; None if the trace has none of that number."""
        for run in self._told_of_passes("number = ? AND first < ?", number, self.count):
            self.reach(run.first)
            return next((found for found in self.passes if found.number == run.number), None)
        return None

    def passes_ended_before(self, event: int) -> int:
        """The last event of all passes that ended before an event; −1 for none."""
        lasts = [run.last for run in self._open_passes.values() if run.last and run.last < event]
        told = self._rows("SELECT max(last) AS last FROM passes WHERE last < ? AND last > 0", event)
        return max([-1, *lasts, *(last for (last,) in told if last is not None)])

    def pass_ending_from(self, event: int) -> PassInfo | None:
        """The first pass that ended at an event or later, or that did not end; None if there is none."""
        told = self._told_of_passes("last >= ? AND first < ? ORDER BY number LIMIT 1", event, self.count)
        late = [run for run in self._open_passes.values() if run.last is None or run.last >= event]
        numbers = [run.number for run in (*told, *late)]
        return self.find_pass(min(numbers)) if numbers else None

    def passes_by_shape(self, most: int) -> list[PassInfo]:
        """The first pass of each structure, of up to so many."""
        query = "SELECT min(number) AS number, digest FROM passes WHERE first < ? GROUP BY digest"
        told = {digest: number for number, digest in self._rows(query, self.count) if digest}
        found: dict[str, int] = {}
        for run in self._open_passes.values():
            found.setdefault(run.digest or "", run.number)
        numbers = sorted({**found, **told}.values())[:most]
        return [run for run in map(self.find_pass, numbers) if run is not None]

    # --- ops

    @property
    def first_nan(self) -> int | None:
        """The first event with a NaN; None where none was recorded."""
        events = self.directory.first_nans[self.directory.first_nans >= 0]
        return int(events.min()) if len(events) else None

    @property
    def ops_told(self) -> int:
        """How many ops there are."""
        return self.directory.ops

    @cached_property
    def site_ops(self) -> SiteOps:
        """Which ops ran at which sites."""
        rows = self._rows("SELECT site, op, is_last FROM site_ops")
        pairs = distinct(np.array([site << 32 | op for site, op, _ in rows], np.int64))
        return SiteOps(pairs, {site: op for site, op, is_last in rows if is_last})

    # --- growing

    def watch(self, watcher: Watcher) -> None:
        """Tell someone when more has been read."""
        self._watchers.add(watcher)

    def reach(self, *events: int) -> None:
        """These events, with the ops and nodes around them and the scopes that they are in."""
        new = [event for event in events if not self._seen[event]]
        for event in new:
            if not self._seen[event]:
                self._take(*self._around(event))
        if new:
            self._forget()

    def _take(self, first: int, end: int) -> None:
        for place in range(self.directory.place(first), self.directory.place(end - 1) + 1):
            self._read_chunk(place)
        self._kinds[first:end] = self._rows_read["head"][first:end] & 0xFF
        apart = [ends for ends in self._stretches if ends[1] < first or ends[0] > end]
        touching = [ends for ends in self._stretches if not (ends[1] < first or ends[0] > end)]
        whole = min([first, *(a for a, _ in touching)]), max([end, *(b for _, b in touching)])
        self._stretches = sorted([*apart, whole])

    def _forget(self) -> None:
        for known in ("_by_kind", "states", "passes"):
            self.__dict__.pop(known, None)
        self._tables.clear()
        for watcher in list(self._watchers):
            watcher.forget()

    def _around(self, event: int) -> tuple[int, int]:
        """The first event of the stretch around an event, and the one after its last."""
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

    # --- doors

    def _is_new(self, *question: object) -> bool:
        """Whether this is asked for the first time."""
        if question in self._asked:
            return False
        self._asked.add(question)
        return True

    def _told(self, place: int, which: int, tensor: int) -> np.ndarray:
        """The events of a chunk that tell of a tensor what the chunk's list `which` is about, in order."""
        if which in GIVING:
            self._read_chunk(place)
            _, first, count, _ = self.chunks.list[place]
            rows = self._rows_read[first : first + count]
            own = np.flatnonzero(rows["a"] == tensor)
            return first + own[contained(rows["head"][own] & 0xFF, GIVING[which])]
        states = self._states_of(place)
        own = states[states["tensor"] == tensor]
        return own["event"][(own["form"] > 0) == (which == VALUED)]

    def _chunks_telling(self, which: int, tensor: int) -> list[int]:
        """The chunks that may tell so of a tensor, in order."""
        places = self.directory.late(which, tensor).tolist()
        birth = self.directory.birth(tensor)
        return places if birth is None or birth in places else sorted([birth, *places])

    def _last(self, which: int, tensor: int, at: int) -> Iterator[int]:
        for place in reversed(self._chunks_telling(which, tensor)):
            if self.directory.firsts[place] <= at:
                events = self._told(place, which, tensor)
                events = events[events <= at]
                if len(events):
                    yield int(events[-1])
                    return

    def _all(self, which: int, tensor: int, at: int) -> Iterator[int]:
        for place in self._chunks_telling(which, tensor):
            if self.directory.firsts[place] <= at:
                events = self._told(place, which, tensor)
                yield from events[events <= at].tolist()

    def reach_birth(self, tensor: int) -> None:
        """The event that first told of a tensor."""
        if tensor > 0 and self._is_new("birth", tensor):
            for place in sorted(
                {*self._chunks_telling(VALUED, tensor), *self._chunks_telling(FLAGGED, tensor)}
            ):
                told = [*self._told(place, VALUED, tensor), *self._told(place, FLAGGED, tensor)]
                if told:
                    self.reach(int(min(told)))
                    return

    def reach_value(self, tensor: int, at: int) -> None:
        """The last event up to `at` that gave a tensor a value."""
        if tensor > 0 and self._is_new(VALUED, tensor, at):
            self.reach(*self._last(VALUED, tensor, at))

    def reach_state(self, tensor: int, at: int) -> None:
        """What a tensor was at an event: the last that told its flags, and the last that told its value."""
        if tensor > 0 and self._is_new("state", tensor, at):
            self.reach_birth(tensor)
            self.reach(*self._last(VALUED, tensor, at), *self._last(FLAGGED, tensor, at))

    def reach_next_value(self, tensor: int, after: int, at: int) -> None:
        """The first event after `after` that gave a tensor a value, if it is not after `at`."""
        if not (tensor > 0 and self._is_new("next", tensor, after, at)):
            return
        for place in self._chunks_telling(VALUED, tensor):
            first, count = self.chunks.list[place][1:3]
            if first + count > after:
                events = self._told(place, VALUED, tensor)
                later = events[events > after]
                if len(later) or first > at:
                    self.reach(*later[:1][later[:1] <= at].tolist())
                    return

    def reach_changes(self, tensor: int, at: int) -> None:
        """All events up to `at` that told a tensor's value or flags."""
        if tensor > 0 and self._is_new("changes", tensor, at):
            self.reach(*self._all(VALUED, tensor, at), *self._all(FLAGGED, tensor, at))

    def reach_given(self, tensor: int, at: int) -> None:
        """The last event up to `at` that gave a tensor its `.grad`."""
        if tensor > 0 and self._is_new(GIVEN, tensor, at):
            self.reach(*self._last(GIVEN, tensor, at))

    def reach_pushed(self, tensor: int, at: int) -> None:
        """The last event up to `at` that gave a tensor a tangent."""
        if tensor > 0 and self._is_new(PUSHED, tensor, at):
            self.reach(*self._last(PUSHED, tensor, at))

    def reach_all_given(self, tensor: int, at: int) -> None:
        """All events up to `at` that gave a tensor its `.grad`."""
        if tensor > 0 and self._is_new("given", tensor, at):
            self.reach(*self._all(GIVEN, tensor, at))

    def reach_node(self, node: int) -> None:
        """The event that made a node."""
        if node > 0 and self._is_new("node", node):
            likely = self.directory.births(np.array([node])).tolist()
            for place in dict.fromkeys([*likely, *self.directory.late(LATE, node).tolist()]):
                made = self._made(place, np.array([node]))
                if len(made):
                    self.reach(*made.tolist())
                    return

    def reach_pass(self, run: PassInfo) -> None:
        """The events of a pass, and those that made its nodes, at once."""
        self.reach(*range(run.first, self.count if run.last is None else run.last + 1))
        received = self.table(Kind.RECEIVED)
        nodes = distinct(received["node"][received["in_pass"] == run.number])
        places = self.directory.births(nodes)
        parts = [self._made(place, nodes[places == place]) for place in distinct(places).tolist()]
        self.reach(*(event for part in parts for event in part.tolist()))

    def _made(self, place: int, nodes: np.ndarray) -> np.ndarray:
        """The events of a chunk that made these nodes."""
        self._read_chunk(place)
        _, first, count, _ = self.chunks.list[place]
        rows = self._rows_read[first : first + count]
        made = np.flatnonzero(rows["head"] & 0xFF == Kind.NODE)
        return first + made[contained(rows["a"][made], nodes)]
