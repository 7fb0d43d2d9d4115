"""A part of a trace: the stretches of events that are needed of a long one (Part), or all up to an event (Prefix).

A stretch begins and ends where no scope and no pass is open, and includes the nodes of its ops, so that everything
nested in it is whole. An array with a place for each event of the run takes memory only where it has been written."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, lru_cache
from typing import Any, Self
from weakref import WeakSet

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.events.kinds import LEAF, Kind
from gradviz.sets import contained, distinct
from gradviz.tracefile.chunks import FLAGGED, GIVEN, GIVING, HOLDERS, LATE, LEAVES, PLACES, PUSHED, VALUED, Directory
from gradviz.tracefile.database import STATE, most_unpacked, told_of
from gradviz.tracefile.pass_rows import ErrorInfo, PassInfo, SiteOps, before
from gradviz.tracefile.reader import Trace, Watcher
from gradviz.tracefile.sound import check_heads, check_nesting, check_rows, check_states, kinds_of
from gradviz.tracefile.states import States

_FOLLOWING = (Kind.NODE, Kind.MUTATED, Kind.KERNEL, Kind.MEASURED)  # events that belong to the op before them
_ENDS = (Kind.SCOPE_LEFT, Kind.PASS_ENDED)
UNREAD = 0  # in place of an event's kind
LONG = 200_000  # events; longer runs are read in parts
_MANY_LEAVES = 5000
_OF_TENSORS = (VALUED, FLAGGED, GIVEN, PUSHED)  # the lists of a chunk about tensors


class Part(Trace):
    """A part of a trace, which grows with the questions: the events that have been read, at their places in the run."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace.path, trace._connection, trace.chunks)
        self.whole = trace
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
        self._asked: set[tuple[object, ...]] = set()
        self._giving = lru_cache(maxsize=256)(self._read_giving)
        self._chunks_telling = lru_cache(maxsize=1 << 14)(self._find_chunks_telling)

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
            places.update(dict.fromkeys(range(self.directory.place(first), self.directory.place(end - 1) + 1)))
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
        self._watchers.add(watcher)

    def reach(self, first: int, end: int | None = None) -> None:
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
                raise ValueError("it names an event that is not in it")
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

    def apart(self) -> Self:
        """Another part of the same trace: tables over both would take longer to build than tables over each."""
        return self._apart

    @cached_property
    def _apart(self) -> Self:
        return type(self)(self.whole)

    # --- passes

    @cached_property
    def passes(self) -> list[PassInfo]:
        """The passes that begin in what has been read."""
        begun = self._pass_table.chosen(self._kinds[self._pass_table.firsts] != UNREAD)
        with told_of(self.path):
            self._check_passes(begun, self._kinds, self._rows_read["a"])
        return self._with_late(begun)

    def _completed(self, passes: list[PassInfo]) -> list[PassInfo]:
        for start in [one.first for one in passes if one.last is None][:1]:
            for place in range(self.directory.place(start), len(self.chunks)):
                self._read_chunk(place)
        return super()._completed(passes)

    # --- ops

    @property
    def first_nan(self) -> int | None:
        """The first event with a NaN; None if none was recorded."""
        return int(self.nans_told.min()) if len(self.nans_told) else None

    @property
    def nans_told(self) -> np.ndarray:
        """The first event with a NaN of each chunk that has one."""
        firsts = self.directory.first_nans
        return firsts[firsts >= 0]

    @property
    def ops_told(self) -> int:
        return self.directory.ops

    @property
    def nodes_told(self) -> int:
        return self.directory.new_nodes

    @property
    def leaves_told(self) -> tuple[set[int], set[int]]:
        return set(self.directory.listed[PLACES][0].tolist()), set(self.directory.listed[LEAVES][0].tolist())

    @cached_property
    def site_ops(self) -> SiteOps:
        rows = self._rows("SELECT site, op, is_last FROM site_ops")
        with told_of(self.path):
            if not self._nameable.sites.include(np.array([site for site, _, _ in rows], np.int64)):
                raise ValueError("an op ran at a place that is not in the trace")
        pairs = distinct(np.array([site << 32 | op for site, op, _ in rows], np.int64))
        return SiteOps(pairs, {site: op for site, op, is_last in rows if is_last})

    # --- doors

    def _is_new(self, *question: object) -> bool:
        """Whether a question is asked for the first time, while some of the run has not been read yet."""
        if self.is_whole or question in self._asked:
            return False
        self._asked.add(question)
        return True

    def reach_tensors(self, tensors: Iterable[int], at: int = -1) -> None:
        while new := [tensor for tensor in tensors if tensor > 0 and self._is_new("tensor", tensor, at)]:
            events: set[int] = set()
            for tensor in new:
                events.update(self._birth(tensor), *(self._last(which, tensor, at) for which in _OF_TENSORS))
            self._take_around(events)
            states = self.states
            rows = [row for tensor in new if (row := states.formed(states.last(tensor, at))) >= 0]
            tensors = set(states.bases[rows].tolist())

    def reach_history(self, tensor: int, at: int, since: int = 0) -> None:
        if tensor > 0 and self._is_new("history", tensor, at, since):
            self._take_around([event for which in _OF_TENSORS for event in self._all(which, tensor, since, at)])

    def leaves_to_reach(self, at: int) -> Collection[int]:
        """The tensors that have to be read before a question about the leaves at an event: the leaves that require
        grad, the newest other leaf of each site, and other tensors with a `.grad`. If they are too many, all events are
        read."""
        if not self._is_new("leaves", at):
            return ()
        place = self.directory.place(at)
        states = self._states_of(place)
        states = states[(states["event"] <= at) & (states["what"] & LEAF > 0)]
        holders = self.directory.up_to(LEAVES, place) | self.directory.up_to(HOLDERS, place)
        leaves = {*holders, *self.parameters, *self.directory.newest(place), *states["tensor"].tolist()}
        if len(leaves) <= _MANY_LEAVES:
            return leaves
        self.reach_all()
        return ()

    def reach_node(self, node: int) -> None:
        """Read the event that made a node. For a node that no event made (an AccumulateGrad), it is the first event
        that made a node with an edge to it. Either of the two nodes may have been numbered first, so its neighbours
        among the nodes that were made are read."""
        if not (node > 0 and self._is_new("node", node)):
            return
        likely = self.directory.births(np.array([node])).tolist()
        for place in dict.fromkeys([*likely, *self.directory.late(LATE, node).tolist()]):
            made = self._made(place, np.array([node]))
            if len(made):
                self._take_around(made.tolist())
                return
        made = self._nodes_around(likely[0])
        numbers = self._rows_read["a"][made]
        self._take_around([*made[numbers < node][-1:].tolist(), *made[numbers > node][:1].tolist()])

    def reach_pass(self, backward_pass: PassInfo) -> None:
        """Read the events of a pass, and the events that made its nodes, at once."""
        self.reach(backward_pass.first, self.count if backward_pass.last is None else backward_pass.last + 1)
        received = self.table(Kind.RECEIVED)
        nodes = distinct(received["node"][received["in_pass"] == backward_pass.number])
        places = self.directory.births(nodes)
        parts = [self._made(place, nodes[places == place]) for place in distinct(places).tolist()]
        self._take_around([event for part in parts for event in part.tolist()])

    # --- the chunks with the events that are needed

    def _told(self, place: int, which: int, tensor: int) -> np.ndarray:
        """The events of a chunk with what its list `which` records of a tensor, in order."""
        if which in GIVING:
            events, tensors = self._giving(place, which)
            return events[tensors == tensor]
        states = self._states_of(place)
        of_tensor = states[states["tensor"] == tensor]
        return of_tensor["event"][(of_tensor["form"] > 0) == (which == VALUED)]

    def _read_giving(self, place: int, which: int) -> tuple[np.ndarray, np.ndarray]:
        """The events of a chunk that give tensors their `.grad`, or a tangent, and these tensors."""
        self._read_chunk(place)
        _, first, count, _ = self.chunks.list[place]
        rows = self._rows_read[first : first + count]
        places = np.flatnonzero(contained(rows["head"] & 0xFF, GIVING[which]))
        return first + places, rows["a"][places]

    def _find_chunks_telling(self, which: int, tensor: int) -> list[int]:
        """The chunks that may have events of a list about a tensor, in order."""
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

    def _all(self, which: int, tensor: int, since: int, at: int) -> Iterator[int]:
        for place in self._chunks_telling(which, tensor):
            _, first, count, _ = self.chunks.list[place]
            if since < first + count and first <= at:
                events = self._told(place, which, tensor)
                yield from events[(since <= events) & (events <= at)].tolist()

    def _birth(self, tensor: int) -> list[int]:
        """The first event with the state of a tensor, if there is one."""
        for place in sorted({*self._chunks_telling(VALUED, tensor), *self._chunks_telling(FLAGGED, tensor)}):
            if events := [*self._told(place, VALUED, tensor), *self._told(place, FLAGGED, tensor)]:
                return [int(min(events))]
        return []

    def _nodes_around(self, place: int) -> np.ndarray:
        """The events of a chunk that made nodes, and those of the last chunk before it that made any."""
        earlier = self.directory.nodes[:place]
        places = [*([int(np.searchsorted(earlier, earlier[-1]))] if place else []), place]
        return np.concatenate([self._nodes_of(at) for at in dict.fromkeys(places)])

    def _nodes_of(self, place: int) -> np.ndarray:
        """The events of a chunk that made nodes."""
        self._read_chunk(place)
        _, first, count, _ = self.chunks.list[place]
        return first + np.flatnonzero(self._rows_read["head"][first : first + count] & 0xFF == Kind.NODE)

    def _made(self, place: int, nodes: np.ndarray) -> np.ndarray:
        """The events of a chunk that made these nodes."""
        made = self._nodes_of(place)
        return made[contained(self._rows_read["a"][made], nodes)]


def part_of(trace: Trace) -> Trace:
    """A part of a trace, in which nothing has been read yet; the trace itself if its chunks have no summaries
    (`--last`). It shares the file of the trace, which has to stay open."""
    summaries = trace._rows("SELECT chunk FROM contents LIMIT 1")
    return Part(trace) if summaries and trace.count else trace


def if_long(trace: Trace) -> Trace:
    """A part of a trace, if that is long; else the trace itself."""
    return part_of(trace) if trace.count > LONG else trace


def for_moments(trace: Trace) -> Trace:
    """A part of a long trace, for look-ups at single events; else the trace itself. Also the trace itself if its
    moments need the whole: if tensors were written through views, or got tangents."""
    part = if_long(trace)
    return trace if isinstance(part, Part) and part.directory.entangled.any() else part


class Prefix(Trace):
    """The first events of a trace, up to `last`. Names and places are those of the whole. It shares the file of the
    trace that it was cut from, which has to stay open."""

    def __init__(self, trace: Trace, last: int) -> None:
        super().__init__(trace.path, trace._connection)
        self.whole, self.count = trace, min(last + 1, trace.count)

    @cached_property
    def events(self) -> np.ndarray:
        """The first events of the whole."""
        return self.whole.events[: self.count]

    @cached_property
    def _link_ends(self) -> np.ndarray:
        return self.whole._link_ends

    def _load_links(self, chunk: int) -> np.ndarray:
        return self.whole._links_of(chunk)

    @cached_property
    def states(self) -> States:
        """The states of the whole up to here."""
        return self.whole.states.until(self.count)

    def _completed(self, passes: list[PassInfo]) -> list[PassInfo]:
        known = self.whole._late_passes
        return before([known.get(one.number, one) for one in passes], self.count)

    @cached_property
    def errors(self) -> list[ErrorInfo]:
        """The errors so far."""
        return [error for error in self.whole.errors if error.event < self.count]
