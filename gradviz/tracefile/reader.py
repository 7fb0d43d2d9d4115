"""Trace: a recorded run, read without loading it whole."""

from __future__ import annotations

import json
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from gradviz.events.kinds import Event, Kind, OpRan, PassBegan
from gradviz.events.listener import LEAF, REQUIRES_GRAD, VIEW
from gradviz.events.site import Place
from gradviz.events.values import Stats, stats_of, unpack_stats
from gradviz.tracefile.decode import decode, decode_ops
from gradviz.tracefile.digest import Digests
from gradviz.tracefile.errors import damaged
from gradviz.tracefile.schema import (
    COLUMNS,
    DTYPES,
    ELEMENTS,
    EVENT,
    MAY_BE_NULL,
    SNAPSHOT,
    STATS,
)
from gradviz.tracefile.sites import Site


@dataclass(frozen=True, slots=True)
class PassInfo:
    """One backward pass: its first and last event (None: it did not end), how many nodes ran, and a digest that
    passes of the same structure share."""

    number: int
    first: int
    last: int | None
    thread: int
    site: int
    nodes: int | None
    digest: str | None
    recorded: int


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """An exception that left a backward pass."""

    event: int
    type: str
    message: str
    node: int
    site: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a tensor was at an event. `array` is None where its elements were not kept, `stats` where no values
    were. dtype is a name such as `float32`; bfloat16 elements come as their 16 bits."""

    tensor: int
    version: int
    shape: tuple[int, ...]
    dtype: str
    flags: int
    array: np.ndarray | None
    stats: Stats | None

    @property
    def is_leaf(self) -> bool:
        """Whether it was a leaf."""
        return bool(self.flags & LEAF)

    @property
    def requires_grad(self) -> bool:
        """Whether it required grad."""
        return bool(self.flags & REQUIRES_GRAD)

    @property
    def is_view(self) -> bool:
        """Whether it was a view of another tensor."""
        return bool(self.flags & VIEW)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One commit of the recorder, as it is kept in memory."""

    links: np.ndarray
    ends: np.ndarray  # where each event's links end
    snapshots: np.ndarray
    offsets: np.ndarray  # where each snapshot's bytes begin


class Trace:
    """A recorded run, or the part of one that was recorded when it was opened: what is appended later is not seen.

    `events` are all rows (schema.EVENT); `event(k)` is one of them as an object. Numbers of tensors, nodes and
    sites are those of `gradviz.events`. Reading raises TraceError where the file is damaged."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self.meta: dict[str, str] = dict(self._rows("SELECT key, value FROM meta"))
        self._chunks = self._checked_chunks()
        self._firsts = [first for _, first, _, _ in self._chunks]
        self.count: int = self._chunks[-1][1] + self._chunks[-1][2] if self._chunks else 0
        self._chunk = lru_cache(maxsize=6)(self._load_chunk)
        self._snapshot_at = lru_cache(maxsize=4096)(self._read_snapshot)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rows(self, query: str, *values: object) -> list[tuple]:
        """What a query gives, every value of its column's type."""
        try:
            found = self._connection.execute(query, values)
            rows = found.fetchall()
        except sqlite3.Error as error:
            raise damaged(self.path, error) from None
        for (name, *_), column in zip(found.description, zip(*rows, strict=True), strict=bool(rows)):
            expected = {COLUMNS[name], type(None)} if name in MAY_BE_NULL else {COLUMNS[name]}
            if not set(map(type, column)) <= expected:
                raise damaged(self.path, ValueError(f"a {name} of another type"))
        return rows

    def _listed(self, text: str) -> tuple:
        """A JSON list."""
        try:
            found = json.loads(text)
        except ValueError as error:
            raise damaged(self.path, error) from None
        if not isinstance(found, list):
            raise damaged(self.path, ValueError("a list is missing"))
        return tuple(found)

    def _checked_chunks(self) -> list[tuple]:
        """The chunks in order, each beginning where the one before it ends."""
        chunks = self._rows("SELECT id, first, count, newest FROM chunks ORDER BY id")
        ends = accumulate((count for _, _, count, _ in chunks), initial=0)
        if any(count < 0 or first != end for (_, first, count, _), end in zip(chunks, ends, strict=False)):
            raise damaged(self.path, ValueError("the chunks do not add up"))
        return chunks

    def blobs(self, table: str) -> Iterator[bytes]:
        """What a table of packed chunks (`events`, `links`, `snapshots`, `payloads`) holds, chunk by chunk."""
        for number, _, _, _ in self._chunks:
            rows = self._rows(f"SELECT data FROM {table} WHERE chunk = ?", number)
            if not rows or not isinstance(rows[0][0], bytes):
                raise damaged(self.path, ValueError(f"{table} of chunk {number} are missing"))
            yield rows[0][0]

    # --- tables

    @cached_property
    def strings(self) -> dict[int, str]:
        """Names and other text, by number."""
        return dict(self._rows("SELECT id, text FROM strings"))

    def text(self, number: int) -> str:
        """One string by its number."""
        return self.strings.get(int(number), "")

    @cached_property
    def formulas(self) -> dict[str, str]:
        """The derivatives as text, by the node's name: `∂/∂x = cos(x)`."""
        return dict(self._rows("SELECT grad_fn, text FROM formulas"))

    @cached_property
    def shapes(self) -> dict[int, tuple[int, ...]]:
        """The shapes of tensors, by number."""
        return {number: self._listed(shape) for number, shape in self._rows("SELECT id, shape FROM shapes")}

    @cached_property
    def sites(self) -> dict[int, Site]:
        """Places in the source, by number."""
        query = "SELECT id, parent, file, line, col, end_line, end_col, function, names FROM sites"
        sites = {}
        for number, parent, file, line, col, end_line, end_col, function, names in self._rows(query):
            named = self._listed(names)
            place = Place(file, line, col, end_line, end_col, function, named, False)
            sites[number] = Site(number, parent, place, named)
        return sites

    @lru_cache(maxsize=64)  # noqa: B019  (a trace lives as long as its program)
    def source(self, file: str) -> list[str]:
        """The lines of a source file as they were when the run was recorded; none where it was not kept."""
        rows = self._rows("SELECT text FROM sources WHERE file = ?", file)
        return rows[0][0].splitlines() if rows else []

    @cached_property
    def passes(self) -> list[PassInfo]:
        """The backward passes in order."""
        columns = "number, first, last, thread, site, nodes, digest, recorded"
        query = f"SELECT {columns} FROM passes WHERE first < ? ORDER BY number"
        found = [PassInfo(*row) for row in self._rows(query, self.count)]
        open_passes = [run for run in found if run.last is None]
        return self._completed(found, open_passes[0].first) if open_passes else found

    def _completed(self, passes: list[PassInfo], start: int) -> list[PassInfo]:
        """The passes of a run that was killed: those that ended in its last moment had not been summed up."""
        digests = Digests(self.strings.values())
        for position, (_, first, count, _) in enumerate(self._chunks):
            if first + count > start:
                events = self.events[max(first, start) : first + count]
                links = self._chunk(position).links
                skipped = int(self.events["links"][first : max(first, start)].sum())
                digests.read(max(first, start), events, links[skipped:])
        ended = {run.number: run for run in digests.take_finished()}
        return [
            replace(
                run,
                last=ended[run.number].last,
                nodes=ended[run.number].nodes,
                digest=ended[run.number].digest,
            )
            if run.last is None and run.number in ended
            else run
            for run in passes
        ]

    @cached_property
    def errors(self) -> list[ErrorInfo]:
        """The exceptions that left a backward pass."""
        query = "SELECT event, type, message, node, site FROM errors WHERE event < ? ORDER BY event"
        return [ErrorInfo(*row) for row in self._rows(query, self.count)]

    @cached_property
    def parameters(self) -> dict[int, str]:
        """The names that modules gave their parameters, by tensor."""
        return dict(self._rows("SELECT tensor, name FROM parameters"))

    # --- events

    @cached_property
    def events(self) -> np.ndarray:
        """All events as rows of schema.EVENT."""
        last = self._chunks[-1][0] if self._chunks else 0
        query = "SELECT data FROM events WHERE chunk <= ? ORDER BY chunk"
        blobs = [data for (data,) in self._rows(query, last)]
        try:
            found = np.concatenate([np.zeros(0, EVENT), *(np.frombuffer(data, EVENT) for data in blobs)])
        except (ValueError, TypeError) as error:
            raise damaged(self.path, error) from None
        if len(found) != self.count:
            raise damaged(self.path, ValueError(f"{len(found)} events where there should be {self.count}"))
        return found

    @cached_property
    def kinds(self) -> np.ndarray:
        """The kind of each event, as `Kind` numbers."""
        return (self.events["head"] & 0xFF).astype(np.uint8)

    def indices(self, *kinds: Kind) -> np.ndarray:
        """The indices of all events of these kinds."""
        wanted = np.zeros(256, bool)
        wanted[[int(kind) for kind in kinds]] = True
        return np.flatnonzero(wanted[self.kinds])

    def event(self, index: int) -> Event:
        """One event. Raises IndexError where there is none."""
        if not 0 <= index < self.count:
            raise IndexError(f"there is no event {index}: the trace has {self.count}")
        position = bisect_right(self._firsts, index) - 1
        chunk = self._chunk(position)
        row = self._row(position, index)
        end = int(chunk.ends[index - self._firsts[position]])
        links = tuple(chunk.links[end - int(row["links"]) : end].tolist())
        try:
            event = decode(index, row, links, self.text)
        except (KeyError, IndexError, ValueError) as error:
            raise damaged(self.path, error) from None
        return self._with_roots(event) if isinstance(event, PassBegan) and 0 in event.root_tensors else event

    def _with_roots(self, began: PassBegan) -> PassBegan:
        """A pass that began at a GradientEdge, with the first output of the op that made its node."""
        roots = zip(began.roots, began.root_tensors, strict=False)
        return replace(
            began, root_tensors=tuple(tensor or self._first_output(node) for node, tensor in roots)
        )

    def _first_output(self, node: int) -> int:
        made = self.node_event(node)
        op = None if made is None else self.event(made)
        return op.outputs[0] if isinstance(op, OpRan) and op.outputs else 0

    def decoded_ops(self, indices: np.ndarray) -> list[OpRan]:
        """The OP events at these indices (in ascending order), decoded together."""
        links, counts = self.links(indices)
        try:
            return decode_ops(indices, self.events[indices], links, counts, self.text)
        except (KeyError, IndexError, ValueError) as error:
            raise damaged(self.path, error) from None

    def _row(self, position: int, index: int) -> np.void:
        return self.events[index]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Event]:
        return (self.event(index) for index in range(self.count))

    def _load_chunk(self, position: int) -> Chunk:
        number, first, count, _ = self._chunks[position]
        try:
            blobs = [
                self._rows(f"SELECT data FROM {table} WHERE chunk = ?", number)[0][0]
                for table in ("links", "snapshots")
            ]
            links, snapshots = np.frombuffer(blobs[0], "<u4"), np.frombuffer(blobs[1], SNAPSHOT)
            (size,) = self._rows("SELECT length(data) AS count FROM payloads WHERE chunk = ?", number)[0]
        except (IndexError, ValueError, TypeError) as error:
            raise damaged(self.path, error) from None
        ends = np.cumsum(self.events["links"][first : first + count], dtype=np.int64)
        offsets = np.cumsum(snapshots["length"], dtype=np.int64) - snapshots["length"]
        told = snapshots["event"]
        fits = [
            ends[-1:].sum() == len(links),
            snapshots["length"].sum(dtype=np.int64) <= size,
            np.all((told >= first) & (told < first + count)),
        ]
        if not all(fits):
            raise damaged(self.path, ValueError(f"chunk {number} does not add up"))
        return Chunk(links, ends, snapshots, offsets)

    def links(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The links of these events (their indices in ascending order), one after another, and how many each has."""
        counts = self.events["links"][indices].astype(np.int64)
        parts = []
        positions = np.searchsorted(self._firsts, indices, side="right") - 1
        for position in np.unique(positions).tolist():
            here = positions == position
            chunk, own = self._chunk(position), counts[here]
            starts = chunk.ends[indices[here] - self._firsts[position]] - own
            parts.append(chunk.links[np.repeat(starts - (np.cumsum(own) - own), own) + np.arange(own.sum())])
        return (np.concatenate(parts) if parts else np.zeros(0, "<u4")), counts

    def node_event(self, node: int) -> int | None:
        """The op event that made a node; None for an AccumulateGrad, and where it is not in the trace."""
        nodes, events = self.node_events
        at = int(np.searchsorted(nodes, node))
        return int(events[at]) if node > 0 and at < len(nodes) and nodes[at] == node else None

    @cached_property
    def node_events(self) -> tuple[np.ndarray, np.ndarray]:
        """The nodes that ops made, sorted, and the event of each."""
        ops = self.indices(Kind.OP)
        nodes = self.events["subject"][ops]
        order = np.argsort(nodes, kind="stable")
        return nodes[order], ops[order]

    # --- tensors

    @property
    def newest(self) -> int:
        """The highest number of a tensor."""
        return self._chunks[-1][3] if self._chunks else 0

    @cached_property
    def all_changes(self) -> tuple[np.ndarray, np.ndarray]:
        """(tensor, event) of every event that may have changed a tensor's value, sorted."""
        mutated, accumulated = self.indices(Kind.MUTATED), self.indices(Kind.ACCUMULATED)
        tensors = np.concatenate([self.events["subject"][mutated], self.events["object"][accumulated]])
        events = np.concatenate([mutated, accumulated])
        order = np.lexsort((events, tensors))
        return tensors[order].astype(np.int64), events[order]

    def changes(self, tensor: int) -> np.ndarray:
        """The events that wrote over a tensor's value, in order."""
        tensors, events = self.all_changes
        start, end = np.searchsorted(tensors, [tensor, tensor + 1])
        return events[start:end]

    def snapshot(self, tensor: int, at: int | None = None) -> Snapshot | None:
        """What a tensor was just after event `at` (default: at the end); None where nothing is known of it."""
        if tensor <= 0:
            return None
        changes = self.changes(tensor)
        if at is not None:
            changes = changes[: np.searchsorted(changes, at, side="right")]
        for event in changes[::-1].tolist():
            found = self._snapshot_at(tensor, event)
            if found is not None:
                return found
        return self._first_snapshot(tensor)

    def born(self, tensor: int) -> int | None:
        """The event that first told of a tensor; None where nothing is known of it."""
        found = self._find_first(tensor) if tensor > 0 else None
        return None if found is None else int(self._chunk(found[0]).snapshots["event"][found[1]])

    def shape(self, tensor: int) -> tuple[tuple[int, ...], str] | None:
        """A tensor's shape and dtype; None where nothing is known of it."""
        form = self._form_of.get(tensor)
        return None if form is None else self._forms[form]

    @cached_property
    def _form_of(self) -> dict[int, int]:
        """Each tensor's form when it was first told of: its shape's number and its dtype's, in one number."""
        found: dict[int, int] = {}
        for position in range(len(self._chunks) - 1, -1, -1):  # backwards, so that the first of several stays
            rows = self._chunk(position).snapshots[::-1]
            forms = rows["shape"].astype(np.int64) << 8 | rows["what"] & 0xFF
            found.update(zip(rows["tensor"].tolist(), forms.tolist(), strict=True))
        return found

    @cached_property
    def _forms(self) -> dict[int, tuple[tuple[int, ...], str]]:
        try:
            return {
                form: (self.shapes[form >> 8], DTYPES[form & 0xFF]) for form in set(self._form_of.values())
            }
        except (KeyError, IndexError) as error:
            raise damaged(self.path, error) from None

    def _first_snapshot(self, tensor: int) -> Snapshot | None:
        found = self._find_first(tensor)
        return None if found is None else self._snapshot_of(*found)

    @lru_cache(maxsize=65536)  # noqa: B019
    def _find_first(self, tensor: int) -> tuple[int, int] | None:
        newest = [chunk[3] for chunk in self._chunks]
        likely = bisect_right(newest, tensor - 1)
        order = [likely, *(i for i in range(len(newest)) if i != likely)]
        for position in order:
            if position < len(newest):
                found = np.flatnonzero(self._chunk(position).snapshots["tensor"] == tensor)
                if len(found):
                    return position, int(found[0])
        return None

    def _read_snapshot(self, tensor: int, event: int) -> Snapshot | None:
        position = bisect_right(self._firsts, event) - 1
        snapshots = self._chunk(position).snapshots
        found = np.flatnonzero((snapshots["tensor"] == tensor) & (snapshots["event"] == event))
        return self._snapshot_of(position, int(found[0])) if len(found) else None

    def _snapshot_of(self, position: int, at: int) -> Snapshot:
        chunk = self._chunk(position)
        row = chunk.snapshots[at]
        what = int(row["what"])
        grade = what >> 24
        try:
            shape, dtype = self.shapes[int(row["shape"])], DTYPES[what & 0xFF]
            array, stats = None, None
            if grade:
                data = self._payload(position, int(chunk.offsets[at]), int(row["length"]))
                if grade == ELEMENTS:
                    array = np.frombuffer(data, "uint16" if dtype == "bfloat16" else dtype).reshape(shape)
                    stats = stats_of(array)
                elif grade == STATS:
                    stats = unpack_stats(data)
        except (KeyError, IndexError, ValueError, sqlite3.Error) as error:
            raise damaged(self.path, error) from None
        return Snapshot(int(row["tensor"]), int(row["version"]), shape, dtype, what >> 8 & 0xFF, array, stats)

    def _payload(self, position: int, offset: int, length: int) -> bytes:
        with self._connection.blobopen("payloads", "data", self._chunks[position][0], readonly=True) as blob:
            blob.seek(offset)
            return blob.read(length)
