"""A part of a trace: of a long run only the chunks are read that something is asked about.

Events keep their places in the run, so all that is computed from a part is as if the whole had been read, if what it
asks about has been *reached* (doors.py). Where that is the chunks tell (directory.py)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import Self

import numpy as np

from gradviz.events.kinds import LEAF, Kind
from gradviz.sets import contained, distinct
from gradviz.tracefile.contents import (
    FLAGGED,
    GIVEN,
    GIVING,
    HOLDERS,
    LATE,
    LEAVES,
    PLACES,
    PUSHED,
    VALUED,
)
from gradviz.tracefile.growing import Growing
from gradviz.tracefile.pass_info import PassInfo, SiteOps
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.unreadable import told_of

LONG = 200_000  # events of a run of which parts are read
_MANY_LEAVES = 5000
_OF_TENSORS = (VALUED, FLAGGED, GIVEN, PUSHED)  # the lists of a chunk that tell of tensors


def part_of(trace: Trace) -> Trace:
    """A part of a trace, in which nothing has been read yet; the trace itself where it does not tell what its chunks
    hold (`--last`). It shares the file of the trace, which has to stay open."""
    told = trace._rows("SELECT chunk FROM contents LIMIT 1")
    return Part(trace) if told and trace.count else trace


def if_long(trace: Trace) -> Trace:
    """A part of a trace that is long, else the trace itself."""
    return part_of(trace) if trace.count > LONG else trace


def for_moments(trace: Trace) -> Trace:
    """A part of a trace that is long, for looks at single events; the trace itself where a moment of it is known from
    the whole only: where tensors were written through views, or got tangents."""
    part = if_long(trace)
    return trace if isinstance(part, Part) and part.directory.entangled.any() else part


class Part(Growing):
    """A part of a trace, which grows with what is asked."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.whole = trace
        self._asked: set[tuple[object, ...]] = set()
        self._giving = lru_cache(maxsize=256)(self._read_giving)
        self._chunks_telling = lru_cache(maxsize=1 << 14)(self._find_chunks_telling)

    def apart(self) -> Self:
        """Another part of the same trace: tables over both would be slower to make than those over each."""
        return self._apart

    @cached_property
    def _apart(self) -> Self:
        return type(self)(self.whole)

    # --- passes

    @cached_property
    def passes(self) -> list[PassInfo]:
        """The passes that begin in what has been read."""
        found = [
            backward_pass
            for first, end in self._stretches
            for backward_pass in self._pass_table.beginning(first, end)
        ]
        with told_of(self.path):
            self._check_passes(found, self._kinds, self._rows_read["a"])
        return sorted(
            (self._open_passes.get(backward_pass.number, backward_pass) for backward_pass in found),
            key=attrgetter("number"),
        )

    @cached_property
    def _open_passes(self) -> dict[int, PassInfo]:
        """The passes that are not told to have ended, as they were when the trace was opened."""
        found = [
            backward_pass._replace(last=None, nodes=None, digest=None)
            for backward_pass in self._pass_table.open()
        ]
        if not found:
            return {}
        for place in range(self.directory.place(found[0].first), len(self.chunks)):
            self._read_chunk(place)
        return {
            backward_pass.number: backward_pass for backward_pass in self._completed(found, found[0].first)
        }

    @property
    def pass_numbers(self) -> list[int]:
        """The numbers of the passes, in order."""
        return self._pass_table.numbers

    @property
    def passes_begun(self) -> int:
        """How many passes had begun when the trace was written, those among them that it does not keep."""
        return self.pass_numbers[-1] if self.pass_numbers else 0

    def find_pass(self, number: int) -> PassInfo | None:
        """A pass by its number; None if the trace has none of that number."""
        for backward_pass in self._pass_table.numbered([number]):
            self.reach(backward_pass.first)
            return self._passes_by_number.get(backward_pass.number)
        return None

    def passes_ended_before(self, event: int) -> int:
        """The last event of all passes that ended before an event; −1 for none."""
        lasts = [
            backward_pass.last
            for backward_pass in self._open_passes.values()
            if backward_pass.last and backward_pass.last < event
        ]
        return max([*lasts, self._pass_table.ended_before(event)])

    def pass_ending_from(self, event: int) -> PassInfo | None:
        """The first pass that ended at an event or later, or that did not end; None if there is none."""
        late = [
            backward_pass.number
            for backward_pass in self._open_passes.values()
            if backward_pass.last is None or backward_pass.last >= event
        ]
        numbers = [*self._pass_table.ending_from(event), *late]
        return self.find_pass(min(numbers)) if numbers else None

    @cached_property
    def pass_spans(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last event of each pass, −1 for a last event that there is not, in the order of the
        first."""
        numbers, firsts, lasts = self._pass_table.spans()
        for number, backward_pass in self._open_passes.items():
            lasts[numbers == number] = -1 if backward_pass.last is None else backward_pass.last
        return firsts, lasts

    def passes_by_shape(self, most: int) -> list[PassInfo]:
        """The first pass of each structure, of up to so many; a pass without recorded nodes has none."""
        found: dict[str, int] = {}
        for backward_pass in filter(attrgetter("is_in_detail"), self._open_passes.values()):
            found.setdefault(backward_pass.digest or "", backward_pass.number)
        numbers = sorted({**found, **self._pass_table.first_of_each_digest()}.values())[:most]
        return [backward_pass for backward_pass in map(self.find_pass, numbers) if backward_pass is not None]

    @property
    def _passes_nameable(self) -> list[int]:
        return self.pass_numbers

    # --- ops

    @property
    def first_nan(self) -> int | None:
        """The first event with a NaN; None where none was recorded."""
        return int(self.nans_told.min()) if len(self.nans_told) else None

    @property
    def nans_told(self) -> np.ndarray:
        """The first event with a NaN of each chunk that has one."""
        found = self.directory.first_nans
        return found[found >= 0]

    @property
    def ops_told(self) -> int:
        """How many ops there are."""
        return self.directory.ops

    @property
    def nodes_told(self) -> int:
        """How many nodes there are: those that were made, and those that received a gradient."""
        return self.directory.new_nodes

    @property
    def shapes(self) -> int:
        """How many structures the passes have."""
        late = {backward_pass.digest for backward_pass in self._open_passes.values() if backward_pass.digest}
        return len(self._pass_table.ended_digests() | late)

    @property
    def passes_in_detail(self) -> int:
        """How many passes have recorded nodes."""
        late = sum(not backward_pass.is_in_detail for backward_pass in self._open_passes.values())
        return len(self.pass_numbers) - self._pass_table.without_nodes() - late

    @property
    def leaves_told(self) -> tuple[set[int], set[int]]:
        """The first tensors that were made at each site other than by ops, and the tensors that were leaves that
        require grad at some time."""
        return set(self.directory.listed(PLACES)[0].tolist()), set(self.directory.listed(LEAVES)[0].tolist())

    @cached_property
    def site_ops(self) -> SiteOps:
        """Which ops ran at which sites."""
        rows = self._rows("SELECT site, op, is_last FROM site_ops")
        with told_of(self.path):
            if not self._nameable.sites.include(np.array([site for site, _, _ in rows], np.int64)):
                raise ValueError("an op ran at a place that there is not")
        pairs = distinct(np.array([site << 32 | op for site, op, _ in rows], np.int64))
        return SiteOps(pairs, {site: op for site, op, is_last in rows if is_last})

    # --- doors

    def _is_new(self, *question: object) -> bool:
        """Whether this is asked for the first time, and something of the run has not been read yet."""
        if self.is_whole or question in self._asked:
            return False
        self._asked.add(question)
        return True

    def reach_tensors(self, tensors: Iterable[int], at: int = -1) -> None:
        """What tensors were at an event: where each was first told of, its last value, flags, `.grad` and tangent up to
        then, and likewise for the tensors whose memory it shares."""
        while new := [tensor for tensor in tensors if tensor > 0 and self._is_new("tensor", tensor, at)]:
            events: set[int] = set()
            for tensor in new:
                events.update(self._birth(tensor), *(self._last(which, tensor, at) for which in _OF_TENSORS))
            self._take_around(events)
            states = self.states
            rows = [row for tensor in new if (row := states.formed(states.last(tensor, at))) >= 0]
            tensors = set(states.bases[rows].tolist())

    def reach_history(self, tensor: int, at: int, since: int = 0) -> None:
        """All events from `since` up to `at` that told a tensor's value or flags, or gave it its `.grad`."""
        if tensor > 0 and self._is_new("history", tensor, at, since):
            self._take_around(
                [event for which in _OF_TENSORS for event in self._all(which, tensor, since, at)]
            )

    def leaves_to_reach(self, at: int) -> Collection[int]:
        """The tensors that have to be reached before one asks which leaves there are at an event: the leaves that
        require grad, the newest that do not of each site, and other tensors with a `.grad`. If they are too many, all
        events are reached."""
        if self.is_whole:
            return ()
        place = self.directory.place(at)
        own = self._states_of(place)
        own = own[(own["event"] <= at) & (own["what"] & LEAF > 0)]
        holders = self.directory.up_to(LEAVES, place) | self.directory.up_to(HOLDERS, place)
        leaves = {*holders, *self.parameters, *self.directory.newest(place), *own["tensor"].tolist()}
        if len(leaves) <= _MANY_LEAVES:
            return leaves
        self.reach_all()
        return ()

    def reach_node(self, node: int) -> None:
        """The event that made a node. For a node that no event made (an AccumulateGrad): the first event that made one
        with an edge to it. Of the two, either may have been numbered first: it is next to it among the nodes that were
        made."""
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
        """The events of a pass, and those that made its nodes, at once."""
        self.reach(backward_pass.first, self.count if backward_pass.last is None else backward_pass.last + 1)
        received = self.table(Kind.RECEIVED)
        nodes = distinct(received["node"][received["in_pass"] == backward_pass.number])
        places = self.directory.births(nodes)
        parts = [self._made(place, nodes[places == place]) for place in distinct(places).tolist()]
        self._take_around([event for part in parts for event in part.tolist()])

    # --- where the chunks tell what is asked for

    def _told(self, place: int, which: int, tensor: int) -> np.ndarray:
        """The events of a chunk that tell of a tensor what the chunk's list `which` is about, in order."""
        if which in GIVING:
            events, tensors = self._giving(place, which)
            return events[tensors == tensor]
        states = self._states_of(place)
        own = states[states["tensor"] == tensor]
        return own["event"][(own["form"] > 0) == (which == VALUED)]

    def _read_giving(self, place: int, which: int) -> tuple[np.ndarray, np.ndarray]:
        """The events of a chunk that give tensors their `.grad`, or a tangent, and which tensors."""
        self._read_chunk(place)
        _, first, count, _ = self.chunks.list[place]
        rows = self._rows_read[first : first + count]
        own = np.flatnonzero(contained(rows["head"] & 0xFF, GIVING[which]))
        return first + own, rows["a"][own]

    def _find_chunks_telling(self, which: int, tensor: int) -> list[int]:
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

    def _all(self, which: int, tensor: int, since: int, at: int) -> Iterator[int]:
        for place in self._chunks_telling(which, tensor):
            _, first, count, _ = self.chunks.list[place]
            if since < first + count and first <= at:
                events = self._told(place, which, tensor)
                yield from events[(since <= events) & (events <= at)].tolist()

    def _birth(self, tensor: int) -> list[int]:
        """The event that first told of a tensor, if there is one."""
        for place in sorted({*self._chunks_telling(VALUED, tensor), *self._chunks_telling(FLAGGED, tensor)}):
            told = [*self._told(place, VALUED, tensor), *self._told(place, FLAGGED, tensor)]
            if told:
                return [int(min(told))]
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
