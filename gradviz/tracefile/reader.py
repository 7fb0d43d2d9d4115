"""Trace: a recorded run, read without loading it whole."""

import sqlite3
from bisect import bisect_right
from collections.abc import Collection, Container, Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from gradviz.events.event_layout import LAYOUTS, ROW
from gradviz.events.field_types import Rule
from gradviz.events.handles import Form
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Event, Kind
from gradviz.events.listener import LeafHistogram
from gradviz.events.site import Place
from gradviz.events.values import BINS, COUNTS, Stat
from gradviz.sets import contained, distinct
from gradviz.tracefile import sound
from gradviz.tracefile.batch import ByKind
from gradviz.tracefile.chunks import NOT_PLAIN, SCOPE, Chunks
from gradviz.tracefile.columns import Table
from gradviz.tracefile.database import LATER_TABLE, STATE, UNREADABLE, has_table, rows_of, told_of, unreadable
from gradviz.tracefile.digest import Digests, renumbered
from gradviz.tracefile.file import is_being_recorded
from gradviz.tracefile.pass_rows import ErrorInfo, PassInfo, PassTable, SiteOps, before
from gradviz.tracefile.printed_lines import PrintedLine
from gradviz.tracefile.sites import DEEPEST, Frame, Site, joined
from gradviz.tracefile.states import Snapshot, States


class Watcher(Protocol):
    """An object with results computed from the part of a trace that had been read."""

    def forget(self) -> None:
        """Forget the results: more has been read."""


class Doors:
    """The doors of a whole trace. Times (`at`) are events, and include them."""

    is_whole = True  # whether all events have been read

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher.forget()` whenever more has been read."""

    def apart(self: Self) -> Self:
        """The same trace, for look-ups far away from the other look-ups."""
        return self

    def reach(self, first: int, end: int | None = None) -> None:
        """Read an event, or the events from `first` to before `end`, with the ops and nodes around them and the scopes
        that they are in."""

    def reach_all(self) -> None:
        """Read all events."""

    def reach_pass(self, backward_pass: PassInfo) -> None:
        """Read the events of a pass, and the events that made its nodes."""

    def reach_node(self, node: int) -> None:
        """Read the event that made a node. For a node that no event made (an AccumulateGrad), most likely the first
        event that made a node with an edge to it."""

    def reach_tensors(self, tensors: Iterable[int], at: int = -1) -> None:
        """Read the state of tensors at an event: the first event of each, its last value, flags, `.grad` and tangent up
        to then, and the same for the tensors whose memory it shares."""

    def reach_history(self, tensor: int, at: int, since: int = 0) -> None:
        """Read all events from `since` up to `at` that have a tensor's value or flags, or set its `.grad`."""

    def leaves_to_reach(self, at: int) -> Collection[int]:
        """The tensors that have to be read before a question about the leaves at an event: the leaves that require
        grad, the newest other leaf of each site, and other tensors with a `.grad`."""
        return ()


class Tables(Doors):
    """The tables of one trace. Reading raises TraceError if the file is damaged."""

    count: int  # the number of events

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.meta: dict[str, str] = dict(self._rows("SELECT key, value FROM meta"))

    @property
    def has_values(self) -> bool:
        """Whether values or statistics of tensors were recorded, so that the absence of a NaN is meaningful."""
        return self.meta.get("values") != "none"

    @property
    def is_being_recorded(self) -> bool:
        """Whether its run still goes on, on this machine."""
        return self.meta.get("ended") == "" and is_being_recorded(self.path)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a query, every value of its column's type."""
        with told_of(self.path):
            return rows_of(self._connection, query, *values)

    @cached_property
    def strings(self) -> dict[int, str]:
        """Names and other text, by number."""
        return dict(self._rows("SELECT id, text FROM strings"))

    def text(self, number: int) -> str:
        """One string by its number."""
        return self.strings.get(int(number), "")

    @cached_property
    def rules(self) -> dict[int, Rule]:
        """The derivatives of operations as text, by number."""
        rows = self._rows("SELECT id, inputs, elementwise FROM rules")
        with told_of(self.path):
            return {number: Rule(sound.pairs_of(inputs), bool(elementwise)) for number, inputs, elementwise in rows}

    def rule(self, number: int) -> Rule:
        """One rule by its number."""
        return self.rules.get(int(number)) or Rule(())

    @cached_property
    def forms(self) -> dict[int, Form]:
        """The shapes, dtypes and devices of tensors, by number."""
        rows = self._rows("SELECT id, shape, dtype, device FROM forms")
        with told_of(self.path):
            sound.check_numbers([number for number, *_ in rows], "forms")
            return {number: sound.form_of(*form) for number, *form in rows}

    @cached_property
    def sites(self) -> dict[int, Site]:
        """Places in the source, by number."""
        frames = self._frames
        return {number: joined(number, frames.get) for number in frames}

    @cached_property
    def _frames(self) -> dict[int, Frame]:
        columns = "id, parent, file, line, col, end_line, end_col, function, names, library"
        rows = self._rows(f"SELECT {columns} FROM sites")
        with told_of(self.path):
            sound.check_numbers([number for number, *_ in rows], "places")
            frames = {row[0]: _frame_of(*row) for row in rows}
            sound.check_callers({number: frame.parent for number, frame in frames.items()}, DEEPEST + 1)
        return frames

    @lru_cache(maxsize=64)  # noqa: B019  (a trace lives as long as its program)
    def source(self, file: str) -> list[str]:
        """The lines of a source file as they were when the run was recorded; empty if they were not kept."""
        rows = self._rows("SELECT text FROM sources WHERE file = ?", file)
        return rows[0][0].removesuffix("\n").split("\n") if rows and rows[0][0] else []

    @property
    def has_sources(self) -> bool:
        """Whether the text of any source file was kept."""
        return self.source_files > 0

    @cached_property
    def source_files(self) -> int:
        """The number of source files whose text was kept."""
        ((count,),) = self._rows("SELECT count(*) AS count FROM sources WHERE text <> ''")
        return int(count)

    @cached_property
    def errors(self) -> list[ErrorInfo]:
        """The exceptions that left a backward pass or ended the program."""
        query = "SELECT event, type, message, node, site FROM errors WHERE event < ? ORDER BY event"
        return [ErrorInfo(*row) for row in self._rows(query, self.count)]

    @cached_property
    def printed(self) -> list[PrintedLine]:
        """The lines that the program printed, in order; none unless the run was recorded with `--printed`."""
        query = "SELECT event, site, text, length FROM printed WHERE event <= ? ORDER BY number"
        return [PrintedLine(*row) for row in self._rows(query, self.count)]

    @cached_property
    def leaf_histograms(self) -> list[tuple[int, LeafHistogram]]:
        """The histograms of leaves that an ordinary recording has, each with its pass."""
        with told_of(self.path):
            if not has_table(self._connection, LATER_TABLE):
                return []
        rows = self._rows("SELECT number, tensor, role, low, high, counts FROM histograms")
        with told_of(self.path):
            if {len(counts) for *_, counts in rows} - {BINS * COUNTS.itemsize}:
                raise ValueError("a histogram with another number of bins")
            return [(number, LeafHistogram(*histogram)) for number, *histogram in rows]

    @cached_property
    def parameters(self) -> dict[int, str]:
        """The names that modules gave their parameters and buffers, by tensor."""
        return dict(self._rows("SELECT tensor, name FROM parameters"))

    @cached_property
    def buffers(self) -> set[int]:
        """The buffers of modules."""
        return {tensor for (tensor,) in self._rows("SELECT tensor FROM parameters WHERE role = 'buffer'")}

    @cached_property
    def variables(self) -> dict[int, str]:
        """The names that tensors got other than as parameters and buffers."""
        return dict(self._rows("SELECT tensor, name FROM variables"))


def _frame_of(
    number: int, parent: int, file: str, line: int, col: int, end_line: int, end_col: int, function: str, names: str,
    library: int,
) -> Frame:  # fmt: skip
    """A frame from its row. Raises ValueError if its names are no list of texts."""
    named = sound.names_of(names)
    place = Place(file, line, col, end_line, end_col, function, named, False)
    return Frame(number, parent if 0 <= parent < number else 0, place, named, bool(library))


_MOST_STATES = 3_000_000  # the most states in which a NaN is looked for


class Trace(Tables):
    """A recorded run, or the part of it that was recorded when it was opened: events added later are not seen.

    `event(k)` is an event as an object, `table(kind)` all events of a kind as columns, `states` the states of tensors.
    Numbers of tensors, nodes and sites are those of `gradviz.events`. Reading raises TraceError if the file is
    damaged."""

    def __init__(self, path: Path, connection: sqlite3.Connection, chunks: Chunks | None = None) -> None:
        super().__init__(path, connection)
        with told_of(path):
            self.chunks = Chunks(connection, self._rows) if chunks is None else chunks
        self._firsts = [chunk.first for chunk in self.chunks.list]
        self.count: int = self.chunks.events
        self._links_of = lru_cache(maxsize=6)(self._load_links)
        self._known_event = lru_cache(maxsize=1 << 14)(self._event)
        self._in_blocks: _EventsInBlocks | None = None
        self._tables: dict[Kind, Table] = {}

    # --- passes

    @cached_property
    def passes(self) -> list[PassInfo]:
        """The backward passes in order."""
        assert self.events is not None  # reading the events checks the passes
        return self._with_late(self._pass_table.all)

    @property
    def in_detail(self) -> list[int]:
        """The numbers of the passes that were recorded in detail, also of those that a part has not read."""
        return [one.number for one in self._pass_table.all if one.is_in_detail]

    @cached_property
    def _pass_table(self) -> PassTable:
        return PassTable(self.path, self._rows, self.count, self.chunks.events)

    @cached_property
    def _late_passes(self) -> dict[int, PassInfo]:
        """The passes without a recorded end, as they were when the trace was opened."""
        passes = before(self._pass_table.chosen(self._pass_table.are_open), self.count)
        return {one.number: one for one in self._completed(passes)}

    def _with_late(self, passes: list[PassInfo]) -> list[PassInfo]:
        return [self._late_passes.get(one.number, one) for one in passes]

    @cached_property
    def _lasts(self) -> np.ndarray:
        """The last event of each pass, in the order of the numbers; −1 for none."""
        numbers, lasts = self._pass_table.numbers, self._pass_table.lasts.copy()
        for number, one in self._late_passes.items():
            lasts[numbers == number] = -1 if one.last is None else one.last
        return lasts

    @cached_property
    def pass_numbers(self) -> list[int]:
        """The numbers of the passes, in order."""
        return self._pass_table.numbers.tolist()

    @property
    def passes_begun(self) -> int:
        """The number of passes that had begun when the trace was written, with those that it does not keep."""
        return self.pass_numbers[-1] if self.pass_numbers else 0

    def find_pass(self, number: int) -> PassInfo | None:
        """A pass by its number; None if the trace has none of that number."""
        at = int(np.searchsorted(self._pass_table.numbers, number))
        for first in self._pass_table.firsts[at : at + 1].tolist():
            self.reach(first)
        return self._passes_by_number.get(number)

    @cached_property
    def _passes_by_number(self) -> dict[int, PassInfo]:
        return {backward_pass.number: backward_pass for backward_pass in self.passes}

    def passes_ended_before(self, event: int) -> int:
        """The last event of all passes that ended before an event; −1 for none."""
        return int(self._lasts[self._lasts < event].max(initial=-1))

    def pass_ending_from(self, event: int) -> PassInfo | None:
        """The first pass that ended at an event or later, or that did not end; None if there is none."""
        late = self._pass_table.numbers[(self._lasts < 0) | (self._lasts >= event)]
        return self.find_pass(int(late[0])) if len(late) else None

    @cached_property
    def pass_spans(self) -> tuple[np.ndarray, np.ndarray]:
        """The first and the last event of each pass, in the order of the first events; −1 for a pass without a last
        event."""
        order = np.argsort(self._pass_table.firsts, kind="stable")
        return self._pass_table.firsts[order], self._lasts[order]

    def passes_by_shape(self, most: int) -> list[PassInfo]:
        """The first pass of each structure, at most `most` passes; a pass without recorded nodes has no structure."""
        first_of: dict[str, int] = {}
        for number, _, digest in sorted(self._structures):
            first_of.setdefault(digest or "", number)
        passes = map(self.find_pass, list(first_of.values())[:most])
        return [backward_pass for backward_pass in passes if backward_pass is not None]

    @cached_property
    def _structures(self) -> list[tuple[int, int, str | None]]:
        """The structures of passes with recorded nodes: for each the lowest number, the number of passes, and the
        digest; each late pass for itself."""
        late = [(number, 1, one.digest) for number, one in self._late_passes.items()]
        return [one for one in (*self._pass_table.structures, *late) if one[2] != ""]

    @property
    def shapes(self) -> int:
        """The number of structures that the passes have."""
        return len({digest for _, _, digest in self._structures if digest})

    @property
    def passes_in_detail(self) -> int:
        """The number of passes that have recorded nodes."""
        return sum(count for _, count, _ in self._structures)

    def _completed(self, passes: list[PassInfo]) -> list[PassInfo]:
        """The passes of a run that was killed. Passes that ended in its last moment had not been summed up yet."""
        start = next((one.first for one in passes if one.last is None), None)
        if start is None:
            return passes
        numbers = sorted(self.strings)  # numbers of texts: they may be far apart
        digests = Digests([self.strings[number] for number in numbers])
        for chunk, (_, first, count, _) in enumerate(self.chunks.list):
            if first + count > start:
                begin = max(first, start)
                events = self.events[begin : first + count]
                skipped = int(self.events["links"][first:begin].sum())
                digests.read(ByKind(begin, renumbered(events, numbers)), self._links_of(chunk)[skipped:])
        ended = {backward_pass.number: backward_pass for backward_pass in digests.take_finished()}
        return [
            one._replace(last=end.last, nodes=end.nodes, digest=end.digest)
            if one.last is None and (end := ended.get(one.number)) is not None
            else one
            for one in passes
        ]

    # --- events

    @cached_property
    def events(self) -> np.ndarray:
        """All events as rows of event_layout.ROW."""
        with told_of(self.path):
            parts = [numbers.view(ROW) for numbers in self._checked_one_by_one()]
            rows = np.concatenate([np.zeros(0, ROW), *parts])
            self._check(rows)
        return rows

    def _checked_one_by_one(self) -> Iterator[np.ndarray]:
        """The events of each chunk, as many as there should be: a damaged file is not read further."""
        for chunk, numbers in zip(self.chunks.list, self.chunks.each("events"), strict=True):
            if len(numbers) * numbers.itemsize != chunk.events * ROW.itemsize:
                raise ValueError("there are fewer or more events than there should be")
            sound.check_heads(numbers)
            yield numbers

    def _check(self, rows: np.ndarray) -> None:
        """Check that all events, and the rows of tables about them, fit together."""
        kinds = sound.kinds_of(rows)
        sound.check_rows(rows, kinds, self._nameable)
        sound.check_nesting(rows["head"])
        self._check_passes(self._pass_table.all, kinds, rows["a"])
        self._check_places([error.site for error in self.errors])
        sound.check_marks(kinds, rows["a"], Kind.ERROR, [error.event for error in self.errors], [])

    @cached_property
    def _nameable(self) -> sound.Known:
        """The numbers that events may name."""
        stored = {
            "text": sound.Numbers(self.strings),
            "rule": sound.Numbers(self.rules),
            "pass": sound.Numbers(self._pass_table.numbers.tolist()),
        }
        return sound.Known(sound.Numbers(self._frames), stored)

    def _check_passes(self, passes: list[PassInfo], kinds: np.ndarray, firsts: np.ndarray) -> None:
        """Check that passes begin and end at events of that kind; `firsts` are the first columns of the events."""
        self._check_places([one.site for one in passes])
        began = [(one.first, one.number) for one in passes]
        ended = [(one.last, one.number) for one in passes if one.last is not None and one.last < len(kinds)]
        for kind, marks in ((Kind.PASS_BEGAN, began), (Kind.PASS_ENDED, ended)):
            sound.check_marks(kinds, firsts, kind, [event for event, _ in marks], [number for _, number in marks])

    def _check_places(self, sites: list[int]) -> None:
        if not self._nameable.sites.include(np.array(sites, np.int64)):
            raise ValueError("a pass or an error is at a place that is not in the trace")

    @cached_property
    def kinds(self) -> np.ndarray:
        """The kind of each event, as `Kind` numbers."""
        return sound.kinds_of(self.events)

    @cached_property
    def threads(self) -> np.ndarray:
        """The number of the thread of each event."""
        return self.events["head"] >> 16

    def stretches(self, event: int, forward: bool) -> Iterator[tuple[int, np.ndarray]]:
        """The run in stretches at whose ends no scope and no pass is open, beginning with the stretch of an event: the
        first event of each stretch, and kind | flags << 8 | thread << 16 of all its events."""
        yield 0, self.events["head"]

    def thread(self, event: int) -> int:
        """The number of the thread of one event."""
        return int(self.events["head"][event]) >> 16

    def indices(self, *kinds: Kind) -> np.ndarray:
        """The indices of all events of these kinds."""
        order, ends = self._by_kind
        if len(kinds) == 1:
            return order[ends[kinds[0] - 1] : ends[kinds[0]]]
        parts = [order[ends[kind - 1] : ends[kind]] for kind in kinds]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))

    @cached_property
    def _by_kind(self) -> tuple[np.ndarray, np.ndarray]:
        """The indices of the events in the order of their kinds, and the end of each kind in that order."""
        ends = np.cumsum(np.bincount(self.kinds, minlength=256))
        return np.argsort(self.kinds, kind="stable"), ends

    def event(self, index: int) -> Event:
        """One event. Raises IndexError if there is no such event."""
        if not 0 <= index < self.count:
            raise IndexError(f"there is no event {index}: the trace has {self.count}")
        self.reach(index)
        return self._known_event(index) if self._in_blocks is None else self._in_blocks[index]

    def read_in_blocks(self) -> None:
        """Decode events together with their neighbours from now on. That takes a fraction of the time if most events
        are needed."""
        self.reach_all()
        if self._in_blocks is None:
            self._in_blocks = _EventsInBlocks(self)

    def _event(self, index: int) -> Event:
        row = self.events[index]
        chunk = bisect_right(self._firsts, index) - 1
        links = self._links_of(chunk)
        end = int(self._link_ends[index])
        layout = LAYOUTS[Kind(int(row["head"]) & 0xFF)]
        with told_of(self.path):
            return layout.unpack(index, row, links[end - int(row["links"]) : end].tolist(), self)

    def table(self, kind: Kind) -> Table:
        """All events of a kind as columns."""
        table = self._tables.get(kind)
        if table is None:
            table = self._tables[kind] = Table(
                LAYOUTS[kind], self.indices(kind), self.events, self._gathered_links, self, lambda: told_of(self.path)
            )
        return table

    @property
    def first_nan(self) -> int | None:
        """The first event with a NaN; None if none was recorded, or if there are too many states to search."""
        states = self.states
        if len(states) > _MOST_STATES:
            return None
        events = states.events[states.stats[:, Stat.NAN] > 0]
        return int(events.min()) if len(events) else None

    @property
    def nans_told(self) -> np.ndarray:
        """The events with a NaN that are known without reading further."""
        first = self.first_nan
        return np.array([] if first is None else [first], np.int64)

    @property
    def ops_told(self) -> int:
        """The number of ops."""
        return len(self.table(Kind.OP))

    @property
    def nodes_told(self) -> int:
        """The number of nodes that were made or received a gradient."""
        nodes = [self.table(kind)["node"] for kind in (Kind.NODE, Kind.RECEIVED)]
        return int(np.count_nonzero(distinct(np.concatenate(nodes))))

    @property
    def leaves_told(self) -> tuple[set[int], set[int]]:
        """The first tensor that each site made other than by an op, and the tensors that were leaves that require grad
        at some time."""
        made, states = self.table(Kind.TENSOR), self.states
        plain = ~contained(made["how"], [number for number, text in self.strings.items() if text in NOT_PLAIN])
        _, first = np.unique(made.sites[plain], return_index=True)
        wanted = LEAF | REQUIRES_GRAD
        required = distinct(states.tensors[states.flags & wanted == wanted])
        return set(made["tensor"][plain][first].tolist()), set(required.tolist())

    def named(self, column: np.ndarray, names: Container[str]) -> np.ndarray:
        """A mask of a column of texts, such as `table(Kind.OP)["op"]`: whether each text is one of these names."""
        return contained(column, [number for number, text in self.strings.items() if text in names])

    def events_named(self, kind: Kind, column: str, names: Container[str]) -> np.ndarray:
        """The events of a kind whose text in a column is one of these names."""
        table = self.table(kind)
        return table.events[self.named(table[column], names)]

    @cached_property
    def site_ops(self) -> SiteOps:
        """The ops that ran at each site."""
        ops, scopes = self.table(Kind.OP), distinct(self.table(Kind.SCOPE_ENTERED).sites).astype(np.int64)
        pairs = distinct(np.concatenate([ops.sites.astype(np.int64) << 32 | ops["op"], scopes << 32 | SCOPE]))
        sites, last = np.unique(ops.sites[::-1], return_index=True)
        return SiteOps(pairs, dict(zip(sites.tolist(), ops["op"][::-1][last].tolist(), strict=True)))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Event]:
        return (self.event(index) for index in range(self.count))

    # --- links

    @cached_property
    def _link_ends(self) -> np.ndarray:
        """The end of each event's links among the links of its chunk."""
        links = self.events["links"]
        ends = np.zeros(self.count, np.uint32)
        for _, first, count, _ in self.chunks.list:
            np.cumsum(links[first : first + count], dtype=np.uint32, out=ends[first : first + count])
        return ends

    def _load_links(self, chunk: int) -> np.ndarray:
        _, first, count, _ = self.chunks.list[chunk]
        due = int(self.events["links"][first : first + count].sum(dtype=np.int64))
        with told_of(self.path):
            links = self.chunks.one("links", chunk)
            if len(links) != due:
                raise ValueError("links are missing")
        return links

    def _gathered_links(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The links of these events (their indices in ascending order), one after another, and the number for each."""
        counts = self.events["links"][indices].astype(np.int64)
        parts = [np.zeros(0, "<u4")]
        chunks = np.searchsorted(self._firsts, indices, side="right") - 1
        bounds = np.flatnonzero(np.diff(chunks, prepend=-1, append=-1))
        for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            chunk, lengths = int(chunks[begin]), counts[begin:end]
            links = self._links_of(chunk)  # first: it checks that there are so many
            starts = self._link_ends[indices[begin:end]] - lengths
            places = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
            parts.append(links[places])
        return np.concatenate(parts), counts

    # --- tensors

    @cached_property
    def states(self) -> States:
        """The states of tensors, at all events."""
        with told_of(self.path):
            parts = [numbers.view(STATE) for numbers in self.chunks.each("states")]
            states = States(parts, self.chunks.sizes(), self.forms, self._values, self._value)
            firsts = [*self._firsts, self.chunks.events]
            if not len(states) and len(self.indices(Kind.OP, Kind.TENSOR)):
                raise ValueError("states are missing")
            sound.check_states(states.tensors, states.bases, states.events, states.firsts_of_chunks, firsts)
        return states

    def _values(self, chunk: int) -> bytes:
        with told_of(self.path):
            return self.chunks.values(chunk)

    def _value(self, chunk: int, offset: int, length: int) -> bytes:
        with told_of(self.path):
            return self.chunks.value(chunk, offset, length)

    def snapshot(self, tensor: int, at: int | None = None) -> Snapshot | None:
        """The state of a tensor just after event `at` (default: at the end), or at its first event, if that is later;
        None if it has no recorded state."""
        if tensor <= 0:
            return None
        until = self.count if at is None else at
        self.reach_tensors([tensor], until)
        states = self.states
        row = last = states.last(tensor, until)
        if row < 0:
            row = states.first(tensor)
            if row < 0:
                return None
            last = states.last(tensor, int(states.events[row]))
        valued = states.formed(last)
        return None if valued < 0 else self.snapshot_of(row, valued)

    def snapshot_of(self, row: int, valued: int) -> Snapshot:
        """A tensor by its states: flags and version from one state, shape and value from another (mostly the same)."""
        try:  # not `told_of`, which takes longer than the look-up itself
            return self.states.snapshot(row, valued)
        except UNREADABLE as error:
            raise unreadable(self.path, error) from None

    def born(self, tensor: int) -> int | None:
        """The first event with a state of a tensor; None if there is none."""
        self.reach_tensors([tensor])
        row = self.states.first(tensor) if tensor > 0 else -1
        return None if row < 0 else int(self.states.events[row])

    def shape(self, tensor: int) -> tuple[tuple[int, ...], str] | None:
        """A tensor's shape and dtype in its first state; None if it has no recorded state."""
        self.reach_tensors([tensor])
        row = self.states.first(tensor)
        form = self.states.form(row) if row >= 0 else None
        return None if form is None else (form.shape, form.dtype)


class _EventsInBlocks(dict[int, Event]):
    """The events of a trace by their indices. Events of one kind are decoded with their neighbours."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self.trace = trace

    def __missing__(self, index: int) -> Event:
        kind = Kind(int(self.trace.kinds[index]))
        event: Event = self.trace.table(kind).object(index)
        self[index] = event
        return event
