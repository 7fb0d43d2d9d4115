"""The packed arrays of a trace, written and read chunk by chunk, and the summary beside each chunk.

An array may follow from the arrays of the chunks before it in its group (expected.py): then these are read too."""

import math
import sqlite3
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.event_layout import ROW
from gradviz.events.kinds import LEAF, REQUIRES_GRAD, WHOLE, Kind
from gradviz.sets import Numbers, contained, distinct
from gradviz.tracefile.batch import Batch, ByKind
from gradviz.tracefile.database import STATE, most_unpacked, told_of
from gradviz.tracefile.expected import AS_IS, HEADER, NUMBER, as_is, expanded, header_of, rearranged, unexpected
from gradviz.tracefile.nans import with_nan

_GROUPS = 3  # the most groups kept in memory, for each kind of array
_VALUES = 8  # the most chunks whose values are kept in memory
_SMALL = 1 << 19  # bytes of values that are read at once: it takes longer to open a blob for each value


class Chunk(NamedTuple):
    """The events of a chunk, and the chunk that its group begins with."""

    id: int
    first: int
    events: int
    since: int


class Chunks:
    """The chunks of a trace. `rows` queries the file and raises TraceError if it is damaged; everything else raises
    ValueError or sqlite3.Error then."""

    def __init__(self, connection: sqlite3.Connection, rows: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._connection, self._rows = connection, rows
        self.list = [Chunk(*row) for row in rows("SELECT id, first, count, since FROM chunks ORDER BY id")]
        self._ids = [chunk.id for chunk in self.list]
        ends = accumulate((chunk.events for chunk in self.list), initial=0)
        if any(chunk.events < 0 or chunk.first != end for chunk, end in zip(self.list, ends, strict=False)):
            raise ValueError("the chunks do not add up")
        since = 0
        for chunk in self.list:
            if chunk.since not in (chunk.id, since):
                raise ValueError("a chunk belongs to no group")
            since = chunk.since
        # the numbers of the chunks of a group that have been read: none yet
        self._group: Callable[[str, int], list[np.ndarray]] = lru_cache(4 * _GROUPS)(lambda table, since: [])
        self._values = lru_cache(maxsize=_VALUES)(self._read_values)
        self._header = lru_cache(maxsize=None)(self._read_header)

    def __len__(self) -> int:
        return len(self.list)

    @property
    def events(self) -> int:
        """The number of events."""
        return self.list[-1].first + self.list[-1].events if self.list else 0

    # --- numbers

    def each(self, table: str) -> Iterator[np.ndarray]:
        """The numbers of a kind, chunk by chunk."""
        last = self._ids[-1] if self.list else 0
        kept = [data for (data,) in self._rows(f"SELECT data FROM {table} WHERE chunk <= ? ORDER BY chunk", last)]
        if len(kept) != len(self):
            raise ValueError(f"{table} of a chunk are missing")
        if sum(header_of(data).length for data in kept) > most_unpacked(self._connection):
            raise ValueError("it stands for more than its size allows")
        return _expanded(kept, [chunk.since == chunk.id for chunk in self.list])

    def one(self, table: str, place: int) -> np.ndarray:
        """The numbers of a kind in one chunk."""
        since = self.list[place].since
        start, group = bisect_left(self._ids, since), self._group(table, since)
        if place >= start + len(group):
            self._read_on(table, start + len(group), place, group)
        return group[place - start]

    def _read_on(self, table: str, first: int, last: int, group: list[np.ndarray]) -> None:
        """Read on in a group of chunks, from one place to another."""
        query = f"SELECT data FROM {table} WHERE chunk BETWEEN ? AND ? ORDER BY chunk"
        kept = [data for (data,) in self._rows(query, self._ids[first], self._ids[last])]
        if len(kept) != last + 1 - first:
            raise ValueError(f"{table} of a chunk are missing")
        for data in kept:
            group.append(_following(data, group))

    # --- values

    def sizes(self) -> list[int]:
        """The number of bytes of values in each chunk."""
        return [self.size(place) for place in range(len(self))]

    def size(self, place: int) -> int:
        """The number of bytes of values in a chunk."""
        return self._header(place)[1]

    def value(self, place: int, offset: int, length: int) -> bytes:
        """A part of the values of a chunk."""
        how, size = self._header(place)
        if how != AS_IS or size <= _SMALL:
            return self._values(place)[offset : offset + length]
        with self._payload(place) as blob:
            blob.seek(HEADER + offset)
            return blob.read(length)

    def values(self, place: int) -> bytes:
        """All values of a chunk."""
        return self._values(place)

    def _payload(self, place: int) -> sqlite3.Blob:
        return self._connection.blobopen("payloads", "data", self._ids[place], readonly=True)

    def _read_header(self, place: int) -> tuple[int, int]:
        """The way in which the values of a chunk are kept, and their length in bytes."""
        with self._payload(place) as blob:
            header = header_of(blob.read(HEADER))
            return header.how, len(blob) - HEADER if header.how == AS_IS else header.length

    def _read_values(self, place: int) -> bytes:
        with self._payload(place) as blob:
            return expanded(blob.read())


def _expanded(kept: Sequence[bytes], begins: Sequence[bool]) -> Iterator[np.ndarray]:
    """Arrays of numbers as they were before packing. Where a group begins, an array follows from none before it."""
    before: list[np.ndarray] = []
    for data, begin in zip(kept, begins, strict=True):
        if begin:
            before = []
        before.append(_following(data, before))
        yield before[-1]


def _following(data: bytes, before: Sequence[np.ndarray]) -> np.ndarray:
    """An array of numbers as it was before packing; it follows from the arrays before it in its group."""
    return np.frombuffer(expanded(data, _last(before, header_of(data).known)), NUMBER)


def _last(parts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The last numbers of several arrays: at least `count` of them, if there are so many."""
    chosen: list[np.ndarray] = []
    for part in reversed(parts):
        if count <= 0:
            break
        chosen.append(part)
        count -= len(part)
    return np.concatenate([np.zeros(0, NUMBER), *reversed(chosen)])


# The lists of a chunk, in the order in which they are kept.
VALUED, FLAGGED, GIVEN, PUSHED, LATE, LEAVES, PLACES, HOLDERS, NEWEST, NEWEST_AT = range(10)
LISTS = 10

NOT_PLAIN = ("gradient", "data")  # makers of tensors that are not shown as leaves

_BEGIN, _END = (Kind.SCOPE_ENTERED, Kind.PASS_BEGAN), (Kind.SCOPE_LEFT, Kind.PASS_ENDED)
# The kinds of events that give a tensor its `.grad`, and its tangent.
GIVING = {GIVEN: (Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED), PUSHED: (Kind.TANGENT,)}
SCOPE = 2**32 - 1  # stands for a scope among the ops of a site
_NEVER = -1
_WANTED = LEAF | REQUIRES_GRAD
_none = np.zeros(0, NUMBER)


class Told(NamedTuple):
    """The summary beside a chunk: the event from which it can be read; the highest tensor and node so far; the number
    of ops that ran and of nodes that were new; the first event with a NaN, −1 for none; the number of written tensors
    that are views of the whole of another tensor or got a tangent (a moment of such a run needs the whole trace); the
    lists."""

    since_event: int
    highest_tensor: int
    highest_node: int
    ops: int
    new_nodes: int
    first_nan: int
    entangled: int
    lists: bytes


def _table(kinds: Sequence[Kind]) -> np.ndarray:
    """A table by the numbers of kinds: whether a kind is one of these."""
    is_one = np.zeros(256, bool)
    is_one[list(kinds)] = True
    return is_one


_step = _table(_BEGIN).astype(np.int64) - _table(_END)
_of_pass = _table((Kind.PASS_BEGAN, Kind.PASS_ENDED))


class Contents:
    """Sums up the chunks of a recording, in order. `new_ops` are the (site, op) pairs that occurred first in the last
    chunk, and `changed_ops` the (op, site) pairs of sites whose last op has changed."""

    def __init__(self) -> None:
        self.highest_tensor = self.highest_node = 0
        self.open_since: int | None = None  # the event since which scopes and passes have always been open
        self.depths: dict[int, int] = {}  # of threads, in scopes and in passes, if not 0
        self.nodes, self.views = Numbers(), Numbers()
        self.ops_at: set[int] = set()
        self.last_op: dict[int, int] = {}
        self.made_at: set[int] = set()  # sites of TENSOR events
        self.new_ops: list[tuple[int, int]] = []
        self.changed_ops: list[tuple[int, int]] = []

    def chunk(
        self,
        events: ByKind,
        states: np.ndarray,
        payload: Sequence[bytes],
        dtypes: Mapping[int, str],
        not_plain: Sequence[int],
    ) -> Told:
        """Sum up a chunk. `not_plain` are the texts for makers whose tensors are not shown as leaves."""
        table = _States(states)
        since = events.first if self.open_since is None else self.open_since
        bad = with_nan(states, payload, dtypes)
        made = events.column("a", Kind.NODE)
        again = self._told_again(events, table)
        summed = Told(
            since,
            max(self.highest_tensor, int(table.tensors.max(initial=0))),
            max(self.highest_node, int(made.max(initial=0))),
            len(events.at(Kind.OP)),
            self.nodes.add(events.column("a", Kind.NODE, Kind.RECEIVED)),
            int(bad.min()) if len(bad) else _NEVER,
            self._writes_through_views(table, again[VALUED]) + len(events.at(Kind.TANGENT)),
            _packed(
                [
                    *again,
                    distinct(made[made <= self.highest_node]),  # recorded after nodes with higher numbers
                    self._leaves(events, table),
                    self._places(events, not_plain),
                    self._holders(events),
                    *self._newest(events, table),
                ]
            ),
        )
        self.highest_tensor, self.highest_node = summed.highest_tensor, summed.highest_node
        self._note_open(events)
        self._note_ops(events)
        return summed

    def _told_again(self, events: ByKind, table: "_States") -> list[np.ndarray]:
        """The tensors from before the chunk of which it has a new value, flags, gradient or tangent."""
        is_old = table.tensors <= self.highest_tensor
        receivers = [events.column("a", *kinds) for kinds in GIVING.values()]
        return [
            distinct(table.tensors[is_old & table.has_form]),
            distinct(table.tensors[is_old & ~table.has_form]),
            *(distinct(part[part <= self.highest_tensor]) for part in receivers),
        ]

    def _leaves(self, events: ByKind, table: "_States") -> np.ndarray:
        """The tensors that became leaves that require grad, or whose flags as leaves changed."""
        (required,) = (table.flags & _WANTED == _WANTED).nonzero()
        required = required[events.kinds[table.events[required] - events.first] != Kind.MUTATED]
        changed = ~table.has_form & (table.flags & LEAF > 0)
        return distinct(np.concatenate([table.tensors[required], table.tensors[changed]]))

    def _places(self, events: ByKind, not_plain: Sequence[int]) -> np.ndarray:
        """The first tensor that each site made, other than by an op."""
        makers = events.column("b", Kind.TENSOR)
        if not len(makers):
            return _none
        plain = ~contained(makers, not_plain)
        sites, tensors = (events.column(name, Kind.TENSOR)[plain].tolist() for name in ("site", "a"))
        first = dict(zip(reversed(sites), reversed(tensors), strict=True))
        new = sorted(tensor for site, tensor in first.items() if site not in self.made_at)
        self.made_at.update(first)
        return np.array(new, np.uint32)

    @staticmethod
    def _holders(events: ByKind) -> np.ndarray:
        """The tensors that kept their gradient, or whose `.grad` was assigned a tensor."""
        assigned, grads = (events.column(name, Kind.GRAD_ASSIGNED) for name in ("a", "b"))
        return distinct(np.concatenate([assigned[grads > 0], events.column("a", Kind.RETAINED)]))

    def _newest(self, events: ByKind, table: "_States") -> tuple[np.ndarray, np.ndarray]:
        """The newest tensor of the chunk that each site made, among leaves without `requires_grad`; and the sites."""
        (plain,) = ((table.flags & _WANTED == LEAF) & (table.tensors > self.highest_tensor)).nonzero()
        if not len(plain):
            return _none, _none
        newest = plain[::-1]
        sites, at = np.unique(events.rows["site"][table.events[newest] - events.first], return_index=True)
        return table.tensors[newest[at]], sites

    def _writes_through_views(self, table: "_States", old: np.ndarray) -> int:
        """The number of written tensors that are views of the whole of another tensor; `old` are the tensors from
        before the chunk of which it has a new value."""
        views = distinct(table.tensors[(table.flags & WHOLE > 0) & (table.bases > 0)])
        self.views.add(views)
        written = int(np.count_nonzero(self.views.holds(old)))
        new = views[views > self.highest_tensor]
        if not len(new):
            return written
        written_views = table.tensors[contained(table.tensors, new) & table.has_form]
        return written + len(written_views) - len(distinct(written_views))

    def _note_open(self, events: ByKind) -> None:
        """Note since which event scopes and passes have been open at the end of a chunk."""
        first, at = events.first, events.at(*_BEGIN, *_END)
        if not len(at):
            return
        at.sort()
        kinds = events.kinds[at]
        steps, keys = _step[kinds], (events.rows["head"][at] >> 16).astype(np.int64) << 1 | _of_pass[kinds]
        is_open = np.zeros(len(at), bool)  # after each of these events
        for key in {*distinct(keys).tolist(), *self.depths}:
            depth = self.depths.get(key, 0) + np.where(keys == key, steps, 0).cumsum()
            is_open |= depth != 0
            self.depths[key] = int(depth[-1])
        self.depths = {key: depth for key, depth in self.depths.items() if depth}
        if not is_open[-1]:
            self.open_since = None
            return
        (closed,) = (~is_open).nonzero()
        if len(closed):
            self.open_since = first + int(at[closed[-1] + 1])
        elif self.open_since is None:
            self.open_since = first + int(at[0])

    def _note_ops(self, events: ByKind) -> None:
        """Note the ops that ran at each site, and the last of them."""
        names, sites = events.column("a", Kind.OP), events.column("site", Kind.OP).astype(np.int64)
        scopes = events.column("site", Kind.SCOPE_ENTERED).astype(np.int64)
        pairs = distinct(np.concatenate([sites << 32 | names, scopes << 32 | SCOPE])).tolist()
        new = [pair for pair in pairs if pair not in self.ops_at]
        self.ops_at.update(new)
        self.new_ops = [(pair >> 32, pair & SCOPE) for pair in new]
        lasts = dict(zip(sites.tolist(), names.tolist(), strict=True))
        self.changed_ops = [(op, site) for site, op in sorted(lasts.items()) if self.last_op.get(site) != op]
        self.last_op.update((site, op) for op, site in self.changed_ops)


class _States:
    """The states of a chunk as columns."""

    def __init__(self, states: np.ndarray) -> None:
        self.tensors, self.events, self.bases = (states[name].copy() for name in ("tensor", "event", "base"))
        self.flags, self.has_form = states["what"].astype(np.uint8), states["form"] > 0


def _packed(lists: Sequence[np.ndarray]) -> bytes:
    """Lists of numbers as bytes: their lengths, and then one list after the other."""
    lengths = np.array([len(numbers) for numbers in lists], NUMBER)
    return as_is(lengths.tobytes(), *(numbers.astype(NUMBER).tobytes() for numbers in lists))


def unpacked(data: bytes) -> list[np.ndarray]:
    """The lists that `_packed` packed. Raises ValueError if they are damaged."""
    if header_of(data).how != AS_IS:
        raise ValueError("the summary beside a chunk has an unknown form")
    numbers = np.frombuffer(data, NUMBER, offset=HEADER)
    ends = list(accumulate(numbers[:LISTS].tolist(), initial=LISTS))
    if len(ends) != LISTS + 1 or ends[-1] != len(numbers):
        raise ValueError("the summary beside a chunk does not add up")
    return [numbers[first:end] for first, end in pairwise(ends)]


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
            raise ValueError("the summary beside a chunk is missing")
        if np.any(self.since > self.firsts) or np.any(self.since < 0):
            raise ValueError("a chunk is to be read from an impossible event")
        if any(np.any(np.diff(highest) < 0) for highest in (self.since, self.tensors, self.nodes)):
            raise ValueError("the summaries beside the chunks are not in order")
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
        numbers, places = self.listed[which]
        return places[numbers.searchsorted(number) : numbers.searchsorted(number, side="right")]

    def up_to(self, which: int, place: int) -> set[int]:
        """The numbers of a list of the chunks up to the chunk `place`."""
        numbers, places = self.listed[which]
        return set(numbers[places <= place].tolist())

    def newest(self, place: int) -> set[int]:
        """The newest leaves without `requires_grad` that each site made in the chunks before the chunk `place`."""
        tensors, sites = (np.concatenate([np.zeros(0, np.int64), *self._unsorted[which][:place]]) for which in _NEWEST)
        _, last = np.unique(sites[::-1], return_index=True)
        return set(tensors[::-1][last].tolist())

    @cached_property
    def listed(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """All numbers of each list of the chunks in ascending order, and the chunk of each number."""
        return [_sorted(lists) for lists in self._unsorted]

    @cached_property
    def _unsorted(self) -> list[list[np.ndarray]]:
        """Each list of each chunk."""
        kept = self._rows("SELECT data FROM contents WHERE chunk <= ? ORDER BY chunk", self._last)
        with told_of(self._path):
            lists = [unpacked(data) for (data,) in kept]
            if list(map(len, _of(NEWEST, lists))) != list(map(len, _of(NEWEST_AT, lists))):
                raise ValueError("the summary beside a chunk does not add up")
        return [_of(which, lists) for which in range(LISTS)]


def _of(which: int, lists: list[list[np.ndarray]]) -> list[np.ndarray]:
    return [of_chunk[which] for of_chunk in lists]


def _sorted(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.concatenate([np.zeros(0, np.int64), *parts])
    places = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(numbers, kind="stable")
    return numbers[order], places[order]


GROUP = 64  # chunks
_HISTORY = 1 << 15  # the events that are searched for a period, which has at most half as many
_ALIKE = 0.9  # the least share of the events that come again after a period
_SAME = 0.99  # ...so many that no better period is searched: every 50th step may be different
# bytes of values for an event: more are large arrays, which zlib packs slowly and badly
_BYTES_OF_VALUES = 64
_LARGE = 1 << 16  # bytes of a value, from which on it is written by itself
# Bytes: more do not fit into SQLite's cache (file.py), and are written twice, as zeros first.
_MOST_IN_PIECES = 12 << 20
_PATIENCE = 16  # the most chunks until a period is searched again
_FEW = 512  # the most events whose period is found without a Fourier transform
_HEAD, _SITE, _LINKS = (ROW.names.index(name) for name in ("head", "site", "links"))  # type: ignore[union-attr]
_LENGTH, _EVENT = (STATE.names.index(name) for name in ("length", "event"))  # type: ignore[union-attr]
_WIDTH = 7  # numbers of an event's row, and of a state


class Kept(NamedTuple):
    """The arrays of a chunk as the file keeps them. Large values are a list of pieces, to be written one after another:
    joined, they would be in memory twice, and no other thread could run while they are copied."""

    events: bytes
    links: bytes
    states: bytes
    payloads: bytes | list[bytes]


class Squeezer:
    """Squeezes the chunks of a recording, in order. `group` is the first chunk of the last chunk's group."""

    def __init__(self) -> None:
        self.group = self.period = self.tired = 0
        self.is_same = False  # nearly all events come again after the period
        self.patience = 1  # twice as long after each time that there was no period
        self._begin(0)

    def _begin(self, group: int) -> None:
        """Begin a group: everything before it is forgotten."""
        self.group = group
        self.events, self.links = np.zeros((0, _WIDTH), NUMBER), np.zeros(0, NUMBER)
        self.states = np.zeros((0, _WIDTH), NUMBER)

    def chunk(self, number: int, end: int, rows: bytes, links: bytes, states: bytes, values: Sequence[bytes]) -> Kept:
        """A chunk as the file keeps it; `end` is the event after its last."""
        if not self.group or number >= self.group + GROUP:
            self._begin(number)
        before = self.events, self.links, self.states
        self.events = np.concatenate([before[0], np.frombuffer(rows, NUMBER).reshape(-1, _WIDTH)])
        self.links = np.concatenate([before[1], np.frombuffer(links, NUMBER)])
        self.states = np.concatenate([before[2], np.frombuffer(states, NUMBER).reshape(-1, _WIDTH)])
        self._look_for_period()
        of_links, last_states = self._of_last(self.period, end)
        of_values = int(last_states[:, _LENGTH].sum(dtype=np.int64))
        size = sum(map(len, values))
        if size > _BYTES_OF_VALUES * (len(self.events) - len(before[0])):
            of_values = 0
        columns, links_columns = (_WIDTH, 1) if self.period else (0, 0)
        kept = Kept(
            unexpected(before[0].reshape(-1), rows, _WIDTH * self.period, columns),
            unexpected(before[1], links, of_links, links_columns),
            unexpected(before[2].reshape(-1), states, _WIDTH * len(last_states), columns),
            rearranged(values, of_values) if of_values or size > _MOST_IN_PIECES else _pieces(values),
        )
        self._forget(end)
        return kept

    def _look_for_period(self) -> None:
        share = alike(self.events, self.period) if self.period else 0.0
        self.is_same = share >= _SAME
        if self.is_same or math.isnan(share):
            return
        self.tired -= 1
        is_lost = self.period and share < _ALIKE
        if is_lost or self.tired <= 0:
            before, self.period = self.period, period_of(self.events[-_HISTORY:])
            self.tired = self.patience
            self.patience = 1 if self.period != before else min(2 * self.patience, _PATIENCE)

    def _of_last(self, events: int, end: int) -> tuple[int, np.ndarray]:
        """The number of links of the last events, and the states of these events."""
        if not events:
            return 0, self.states[:0]
        links = int(self.events[-events:, _LINKS].sum(dtype=np.int64))
        return links, self.states[np.searchsorted(self.states[:, _EVENT], end - events) :]

    def _forget(self, end: int) -> None:
        """Forget everything that no later chunk follows from."""
        recent = 2 * self.period if self.is_same else max(2 * self.period, _HISTORY)
        if recent < len(self.events):
            links, states = self._of_last(recent, end)
            self.events, self.states = self.events[-recent:], states
            self.links = self.links[len(self.links) - links :]


def _pieces(values: Sequence[bytes]) -> bytes | list[bytes]:
    """Values as the file keeps them, unchanged: in pieces if one of them is large. Small values between are one
    piece."""
    if max(map(len, values), default=0) < _LARGE:
        return as_is(*values)
    pieces = [as_is()]
    for is_large, run in groupby(values, lambda value: len(value) >= _LARGE):
        parts = list(run)
        pieces += parts if is_large else [b"".join(parts)]
    return pieces


def alike(events: np.ndarray, period: int) -> float:
    """The share of the events that come again after `period` events: the same kind at the same place. NaN if there are
    too few events."""
    if len(events) < 2 * period:
        return math.nan
    same = events[period:, _HEAD] == events[:-period, _HEAD]
    same &= events[period:, _SITE] == events[:-period, _SITE]
    return float(np.count_nonzero(same)) / len(same)


def period_of(events: np.ndarray) -> int:
    """The number of events after which they come again, 0 if they do not."""
    if len(events) < 4:
        return 0
    # The autocorrelation of a random number for each kind at each place: it is largest at the period.
    keys = events[:, _HEAD].astype(np.uint64) << np.uint64(32) | events[:, _SITE]
    keys *= np.uint64(0x9E3779B97F4A7C15)
    keys ^= keys >> np.uint64(29)
    keys *= np.uint64(0xBF58476D1CE4E5B9)
    noise = (keys >> np.uint64(40)).astype(np.float32) * np.float32(2**-23) - 1
    longest = len(events) // 2
    products = _products(noise)[1 : longest + 1]
    shares = products / (len(events) - np.arange(1, longest + 1))
    most = shares.max()
    short, long = (int(np.argmax(shares >= part * most)) + 1 for part in (0.98, 0.999))
    if alike(events, short) < _SAME <= alike(events, long):
        return long
    return short if alike(events, short) >= _ALIKE else 0


def _products(noise: np.ndarray) -> np.ndarray:
    """The sum of the products of numbers with those at a distance before them, for each distance from 0 on."""
    if len(noise) <= _FEW:  # the run of a short script need not load `numpy.fft`
        return np.correlate(noise, noise, "full")[len(noise) - 1 :]
    size = 1 << (2 * len(noise) - 1).bit_length()
    spectrum = np.fft.rfft(noise, size)
    return np.fft.irfft(spectrum * spectrum.conj(), size)


class ChunkTables:
    """Writes the chunks of a trace, in order. `texts` are the numbers of texts, and `dtypes` the dtypes of forms by
    their numbers; both grow while it is written. The chunks of a ring are kept unpacked, because they are changed one
    by one later."""

    def __init__(self, texts: Mapping[str, int], dtypes: Mapping[int, str], is_ring: bool) -> None:
        self._texts, self._dtypes, self._is_ring = texts, dtypes, is_ring
        self._squeezer, self._contents = Squeezer(), Contents()
        self._number = 0  # of the last chunk

    def write(self, cursor: sqlite3.Cursor, events: ByKind, batch: Batch, time: float) -> None:
        """Write a batch, whose values are settled, as the next chunk; its values are freed. `time` is when it was
        recorded, in seconds since 1970."""
        self._number += 1
        number, count = self._number, len(events.rows)
        arrays = bytes(batch.rows), bytes(batch.links), bytes(batch.states)
        if self._is_ring:
            kept, since = Kept._make(map(as_is, (*arrays, b"".join(batch.payload)))), number
        else:
            self._write_contents(cursor, events, batch)
            kept = self._squeezer.chunk(number, batch.first + count, *arrays, batch.payload)
            since = self._squeezer.group
            batch.payload.clear()  # not both in memory while they are written
        cursor.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", (number, batch.first, count, time, since))
        for table, packed in kept._asdict().items():
            if isinstance(packed, list):
                size = sum(map(len, packed))
                cursor.execute(f"INSERT INTO {table} VALUES (?, zeroblob(?))", (number, size))
                with cursor.connection.blobopen(table, "data", number) as blob:
                    for piece in packed:
                        blob.write(piece)
            else:
                cursor.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, packed))

    def _write_contents(self, cursor: sqlite3.Cursor, events: ByKind, batch: Batch) -> None:
        """Write the summary of a chunk. A ring has none, because its events are removed later."""
        not_plain = [number for how in NOT_PLAIN if (number := self._texts.get(how)) is not None]
        states = np.frombuffer(batch.states, STATE)
        summary = self._contents.chunk(events, states, batch.payload, self._dtypes, not_plain)
        cursor.execute("INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (self._number, *summary))
        new, changed = self._contents.new_ops, self._contents.changed_ops
        execute_each(cursor, "INSERT INTO site_ops VALUES (?, ?, 0)", new)
        execute_each(cursor, "UPDATE site_ops SET is_last = (op = ?) WHERE site = ?", changed)


def execute_each(cursor: sqlite3.Cursor, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    """`executemany`, which is slow even if there are no rows."""
    listed = list(rows)
    if listed:
        cursor.executemany(statement, listed)
