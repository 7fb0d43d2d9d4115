"""The ring: the events that stay in a trace which holds only the last passes of a long run.

The run is cut after each pass into *segments*: a pass with the forward before it. The last segments stay, and the
segments around trouble: where a NaN appears first, or an exception leaves a pass. Of all other segments, only events
stay that later ones depend on (`standing`): the tensors that are read there, their names, last values and gradients,
and the graph that passes go through again. `thin` removes the rest from the file.
"""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gradviz.events.event_layout import COLUMNS, LAYOUTS, ROW
from gradviz.events.field_types import TEXT_PARTS
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, Kind
from gradviz.sets import contained, distinct
from gradviz.tracefile.batch import Batch
from gradviz.tracefile.database import STATE
from gradviz.tracefile.expected import as_is
from gradviz.tracefile.nans import with_nan
from gradviz.tracefile.printed_lines import moved_count
from gradviz.tracefile.reader import Trace

FEW = 1000  # up to so many unused texts stay in the file
_PACKED = ("events", "links", "states", "payloads")


def thin(cursor: sqlite3.Cursor, trace: Trace, kept: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Remove all events from the file except those `kept`. Events whose segments do not stay (`whole`) name no pass any
    more. Returns the place where each event is now, −1 for none."""
    moved = np.where(kept, np.cumsum(kept) - 1, -1)
    for place, (number, first, count, _) in enumerate(trace.chunks.list):
        here = slice(first, first + count)
        rows = trace.events[here].copy()
        links = trace._links_of(place).copy()
        changed = _mend(rows, links, first, moved, whole)
        if not kept[here].any():
            for table in _PACKED:
                cursor.execute(f"DELETE FROM {table} WHERE chunk = ?", (number,))
            cursor.execute("DELETE FROM chunks WHERE id = ?", (number,))
            continue
        states = trace.chunks.one("states", place).view(STATE).copy()
        if not kept[here].all():
            payload = _payload_of(trace, place, states, kept)
            cursor.execute("UPDATE payloads SET data = ? WHERE chunk = ?", (as_is(payload), number))
            links = links[np.repeat(kept[here], rows["links"])]
            rows, states, changed = rows[kept[here]], states[kept[states["event"]]], True
        states["event"] = moved[states["event"]]
        cursor.execute("UPDATE states SET data = ? WHERE chunk = ?", (as_is(states.tobytes()), number))
        if changed:
            cursor.execute("UPDATE events SET data = ? WHERE chunk = ?", (as_is(rows.tobytes()), number))
            cursor.execute("UPDATE links SET data = ? WHERE chunk = ?", (as_is(links.tobytes()), number))
        now = int(moved[here][kept[here]][0])
        cursor.execute("UPDATE chunks SET first = ?, count = ? WHERE id = ?", (now, len(rows), number))
    _move_tables(cursor, moved)
    return moved


def _payload_of(trace: Trace, place: int, states: np.ndarray, kept: np.ndarray) -> bytes:
    """The values of the states of one chunk that stay."""
    data = memoryview(trace.chunks.values(place))
    ends = np.cumsum(states["length"], dtype=np.int64)
    stay = kept[states["event"]] & (states["length"] > 0)
    parts = zip((ends - states["length"])[stay].tolist(), ends[stay].tolist(), strict=True)
    return b"".join([data[start:end] for start, end in parts])


def _mend(rows: np.ndarray, links: np.ndarray, first: int, moved: np.ndarray, whole: np.ndarray) -> bool:
    """Correct the references of a chunk's events to earlier events and to passes; returns whether anything changed."""
    changed = False
    kinds = rows["head"] & 0xFF
    starts = np.cumsum(rows["links"], dtype=np.int64) - rows["links"]
    for kind, column, is_link in _back_fields():
        at = np.flatnonzero(kinds == kind)
        values = links[starts[at] + column] if is_link else rows[COLUMNS[column]][at]
        at, values = at[values > 0], values[values > 0].astype(np.int64)
        targets = np.where(first + at >= values, moved[np.maximum(first + at - values, 0)], -1)
        mended = np.where(targets >= 0, moved[first + at] - targets, 0)
        mended[moved[first + at] < 0] = 0
        changed = changed or bool(np.any(mended != values))
        if is_link:
            links[starts[at] + column] = mended
        else:
            rows[COLUMNS[column]][at] = mended
    outside = ~whole[first : first + len(rows)]
    for kind, layout in LAYOUTS.items():
        for name in [name for name, field in zip(COLUMNS, layout.columns, strict=False) if field.name == "in_pass"]:
            at = outside & (kinds == int(kind)) & (rows[name] > 0)
            changed = changed or bool(at.any())
            rows[name][at] = 0
    return changed


def _back_fields() -> Iterator[tuple[int, int, bool]]:
    """The fields that name an earlier event: the kind, its column or the place among the links, and whether it is a
    link."""
    for kind, layout in LAYOUTS.items():
        for position, field in enumerate(layout.columns):
            if field.stored.how == "back":
                yield int(kind), position, False
        at = 0
        for field in layout.more:
            if field.stored.how == "back":
                yield int(kind), at, True
            at += field.width


def _move_tables(cursor: sqlite3.Cursor, moved: np.ndarray) -> None:
    """Correct the events that the tables name; rows that name a removed event are removed too."""
    where = moved.tolist()
    passes = cursor.execute("SELECT number, first, last FROM passes").fetchall()
    gone = [(number,) for number, first, _ in passes if where[first] < 0]
    stay = [
        (where[first], None if last is None else where[last], number)
        for number, first, last in passes
        if where[first] >= 0
    ]
    cursor.executemany("DELETE FROM passes WHERE number = ?", gone)
    cursor.executemany("DELETE FROM histograms WHERE number = ?", gone)
    cursor.executemany("UPDATE passes SET first = ?, last = ? WHERE number = ?", stay)
    errors = cursor.execute("SELECT event, type, message, node, site FROM errors").fetchall()
    cursor.execute("DELETE FROM errors")
    kept = [(where[event], *more) for event, *more in errors if where[event] >= 0]
    cursor.executemany("INSERT INTO errors VALUES (?, ?, ?, ?, ?)", kept)
    printed = cursor.execute("SELECT number, event FROM printed").fetchall()
    now = [(moved_count(event, moved), number) for number, event in printed]
    cursor.executemany("DELETE FROM printed WHERE number = ?", [(n,) for event, n in now if event is None])
    cursor.executemany("UPDATE printed SET event = ? WHERE number = ?", [row for row in now if row[0] is not None])


def drop_unused(cursor: sqlite3.Cursor, trace: Trace, kept: np.ndarray, table: str, how: str) -> set[int]:
    """Remove from `table` the texts or rules (`how`: `text`, `rule`) that no kept event names, if they are many;
    returns their numbers. If they occur again they get new numbers, so that a number is never given twice."""
    known = {number for (number,) in cursor.execute(f"SELECT id FROM {table}")}
    unused = known - {0}
    if len(unused) > FEW:
        for numbers in _named(trace, kept, how):
            unused.difference_update(numbers.tolist())
    if len(unused) <= FEW:
        return set()
    cursor.executemany(f"DELETE FROM {table} WHERE id = ?", [(number,) for number in unused])
    return unused


def _named(trace: Trace, kept: np.ndarray, how: str) -> Iterator[np.ndarray]:
    """The numbers of texts or rules that the kept events of each kind name."""
    for kind, layout in LAYOUTS.items():
        table = trace.table(kind)
        is_kept = kept[table.events]
        for field in (*layout.columns, *layout.more):
            if field.stored.how == how:
                yield distinct(table[field.name][is_kept])
        for field in layout.lists:
            for part, name in enumerate(field.stored.parts):
                if how == "text" and name in TEXT_PARTS:
                    lists = table.lists(field.name)
                    yield distinct(lists.elements[is_kept[lists.owners], part])


BEFORE, AFTER = 2, 1  # the segments that stay before and after trouble
MOST_TROUBLES = 8
_LEAST = BEFORE + 1  # passes, while it runs: trouble is seen only afterwards

# Events that hold for a thing (column `a`: a tensor, an optimizer) until the next event of their kind.
_STANDING = (
    Kind.TENSOR, Kind.NAMED, Kind.REQUIRES_GRAD_CHANGED, Kind.GRAD_ASSIGNED, Kind.ACCUMULATED, Kind.STEPPED,
    Kind.SCHEDULED,
)  # fmt: skip
_OF_NO_TENSOR = (Kind.STEPPED, Kind.SCHEDULED)
_WANTING = LEAF | REQUIRES_GRAD
_TELLING_VALUES = (Kind.OP, Kind.MUTATED)


class Ring:
    """Keeps the last `passes` passes of a run."""

    def __init__(self, passes: int) -> None:
        self.passes = passes
        self.ended = 0  # passes that have ended and are in the file, without those around trouble
        self.bad = np.zeros(0, np.int64)  # events with a NaN, or an error
        self.troubles: list[int] = []  # the last passes of the segments in which trouble began
        self.seen_until = 0  # the last pass of the segments that have been examined
        # the leaves made before the first pass ended, known from when the first events are removed
        self.first_leaves: np.ndarray | None = None
        self.was_bad = False  # whether there was trouble in the last examined segment

    @property
    def is_due(self) -> bool:
        """Whether there are enough events to remove."""
        kept = max(self.passes, _LEAST)
        return self.ended >= kept + max(1, kept // 2)

    def note(self, batch: Batch, dtypes: Mapping[int, str]) -> None:
        """Note a batch that has been written; `dtypes` are the dtypes of forms by their numbers."""
        kinds = np.frombuffer(batch.rows, ROW)["head"] & 0xFF
        self.ended += int(np.count_nonzero(kinds == Kind.PASS_ENDED))
        errors = batch.first + np.flatnonzero(kinds == Kind.ERROR)
        self.bad = np.concatenate(
            [self.bad, errors, distinct(with_nan(np.frombuffer(batch.states, STATE), batch.payload, dtypes))]
        )

    def kept(self, trace: Trace, at_end: bool) -> tuple[np.ndarray, np.ndarray]:
        """Two masks of the events of a trace: the events that stay, and those that stay with their whole segments."""
        segments = _segments(trace)
        if self.first_leaves is None:
            self.first_leaves = _wanting_leaves(trace, segments[0][1])
        self._look_for_trouble(segments)
        last = self.passes if at_end else max(self.passes, _LEAST)
        whole = np.zeros(trace.count, bool)
        left = last
        for start, end, passes, _ in reversed(segments):
            if passes and left <= 0:
                break
            whole[start:end] = True
            left -= passes
        for trouble in self.troubles:
            for start, end, *_ in _around(segments, trouble):
                whole[start:end] = True
        return whole | standing(trace, whole, self.first_leaves), whole

    def _look_for_trouble(self, segments: Sequence["_Segment"]) -> None:
        for start, end, passes, number in segments:
            if not passes or number <= self.seen_until:
                continue
            is_bad = bool(np.any((self.bad >= start) & (self.bad < end)))
            if is_bad and not self.was_bad and len(self.troubles) < MOST_TROUBLES:
                self.troubles.append(number)
            self.was_bad, self.seen_until = is_bad, number

    def thinned(self, trace: Trace, whole: np.ndarray, moved: np.ndarray) -> None:
        """Note that events have been removed: `moved` is the place where each event is now, −1 for none."""
        bad = moved[self.bad]
        self.bad = bad[bad >= 0]
        ended = int(np.count_nonzero(trace.kinds[whole] == Kind.PASS_ENDED))
        self.ended = min(ended, max(self.passes, _LEAST))


# The first event, the event after the last, the number of passes in it, and the number of the last pass.
_Segment = tuple[int, int, int, int]


def _segments(trace: Trace) -> list[_Segment]:
    """The segments of a trace. The events after the last pass are a segment without a pass."""
    events = trace.indices(Kind.PASS_BEGAN, Kind.PASS_ENDED)
    begun = trace.kinds[events] == Kind.PASS_BEGAN
    under_way = np.cumsum(np.where(begun, 1, -1))
    cuts = ~begun & (under_way <= 0)
    if not cuts.any():  # passes overlap all the time
        cuts = ~begun
    segments, start, passes = [], 0, 0
    number = 0
    for event, is_begin, is_cut in zip(events.tolist(), begun.tolist(), cuts.tolist(), strict=True):
        passes += not is_begin
        if not is_begin:
            number = max(number, int(trace.events["a"][event]))
        if is_cut:
            segments.append((start, event + 1, passes, number))
            start, passes = event + 1, 0
    return [*segments, (start, trace.count, passes, number)]


def segment_of(trace: Trace, number: int) -> tuple[int, int]:
    """The first event of the segment in which pass `number` ends, and the event after its last."""
    ends = trace.table(Kind.PASS_ENDED)
    end = int(ends.events[ends["number"] == number][-1])
    return next((start, stop) for start, stop, *_ in _segments(trace) if start <= end < stop)


def _around(segments: Sequence[_Segment], number: int) -> Sequence[_Segment]:
    """The segments around the segment with that last pass, and that segment."""
    at = next((i for i, (_, _, passes, last) in enumerate(segments) if passes and last == number), None)
    return () if at is None else segments[max(at - BEFORE, 0) : at + AFTER + 1]


# --- the events that kept ones depend on


def _wanting_leaves(trace: Trace, end: int) -> np.ndarray:
    """The leaves that required grad before an event: a later pass may read them again."""
    states, changed = trace.states, trace.table(Kind.REQUIRES_GRAD_CHANGED)
    wanting = states.flags & _WANTING == _WANTING
    made = (states.events < end) & (trace.kinds[states.events] == Kind.TENSOR)
    switched = changed["tensor"][changed.events < end]
    return distinct(np.concatenate([states.tensors[made & wanting], switched]).astype(np.int64))


def standing(trace: Trace, whole: np.ndarray, also: np.ndarray | None = None) -> np.ndarray:
    """A mask of the events outside of the kept segments that stay, because kept events depend on them, or because they
    are about the tensors in `also`."""
    stays = np.zeros(trace.count, bool)
    gaps = np.cumsum(whole)  # the same for all events between two that are kept
    tensors = _tensors_of(trace, whole)
    tensors = tensors if also is None else distinct(np.concatenate([tensors, also]))
    for kind in _STANDING:
        events = trace.indices(kind)
        events = events[~whole[events]]
        keys = trace.events["a"][events].astype(np.int64)
        if kind not in _OF_NO_TENSOR:
            events, keys = events[contained(keys, tensors)], keys[contained(keys, tensors)]
        stays[_last_of(events, gaps[events], keys)] = True
    states = trace.states
    telling = np.zeros(256, bool)
    telling[list(_TELLING_VALUES)] = True
    of_interest = ~whole[states.events] & (states.forms > 0) & telling[trace.kinds[states.events]]
    of_interest &= contained(states.tensors, tensors)
    events = states.events[of_interest].astype(np.int64)
    stays[_last_of(events, gaps[events], states.tensors[of_interest].astype(np.int64))] = True
    for events in _graph(trace, whole):
        stays[events] = True
    began, ended = trace.table(Kind.PASS_BEGAN), trace.table(Kind.PASS_ENDED)
    gone = ended["number"][~whole[ended.events]]
    stays[began.events[~contained(began["number"], gone)]] = True
    return stays


def _last_of(events: np.ndarray, gaps: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The last event of each key in each gap."""
    if not len(events):
        return events
    pairs = np.stack([gaps, keys], axis=1)[::-1]
    _, at = np.unique(pairs, axis=0, return_index=True)
    return events[::-1][at]


def _tensors_of(trace: Trace, whole: np.ndarray) -> np.ndarray:
    """The tensors that the kept events name, and all tensors that have a name of their own."""
    parts = [trace.states.tensors[whole[trace.states.events]], trace.table(Kind.NAMED)["tensor"]]
    for kind, fields in _NAMING.items():
        table = trace.table(kind)
        for name, part in fields:
            lists = table.lists(name)
            parts.append(lists.elements[whole[table.events[lists.owners]], part])
    for kind, columns in _NAMING_ONE.items():
        table = trace.table(kind)
        parts += [table[name][whole[table.events]] for name in columns]
    return distinct(np.concatenate([part.astype(np.int64) for part in parts]))


# The fields of events that name tensors: lists, with the part of an element that names one, and single fields.
_NAMING: dict[Kind, Sequence[tuple[str, int]]] = {
    Kind.OP: [("inputs", 0), ("outputs", 0)],
    Kind.NODE: [("outputs", 0), ("edges", 2), ("saved", 0)],
    Kind.PASS_BEGAN: [("roots", 2), ("inputs", 0)],
    Kind.STEPPED: [("parameters", 0)],
    Kind.GRADS_CLEARED: [("tensors", 0)],
}
_NAMING_ONE: dict[Kind, Sequence[str]] = {
    Kind.TENSOR: ["tensor", "source"],
    Kind.MUTATED: ["tensor", "source"],
    Kind.ACCUMULATED: ["tensor", "grad"],
    Kind.GRAD_ASSIGNED: ["tensor", "grad"],
    Kind.TANGENT: ["tensor"],
}


def _graph(trace: Trace, whole: np.ndarray) -> Iterator[np.ndarray]:
    """The nodes that run in kept passes and were made earlier, with their ops."""
    received, made = trace.table(Kind.RECEIVED), trace.table(Kind.NODE)
    ran = received["node"][whole[received.events]]
    earlier = ~whole[made.events] & contained(made["node"], ran)
    yield made.events[earlier]
    ops = made["op"][earlier]
    yield ops[ops >= 0]
