"""The cold half of recording: a thread that packs what was recorded and commits it to the file."""

from __future__ import annotations

import json
import linecache
import sqlite3
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

import numpy as np

from gradviz.background import Background
from gradviz.events.handles import Later, Reader
from gradviz.events.kinds import Kind
from gradviz.events.layout import LAYOUTS, ROW
from gradviz.tracefile.batch import Batch, Interned
from gradviz.tracefile.digest import Digests
from gradviz.tracefile.expected import as_is
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.ring import Ring
from gradviz.tracefile.schema import APPLICATION_ID, SKIPPED, STATE, TABLES, VERSION
from gradviz.tracefile.sites import Sites
from gradviz.tracefile.squeeze import Kept, Squeezer
from gradviz.tracefile.thinning import drop_unused, thin

_HEADER = 100  # bytes of SQLite's header; the application's id is at 68
INTERVAL = 0.05  # seconds between commits
_PATIENCE = 60  # seconds
_LARGE = 1 << 20  # bytes of values, from which on they are written beside the program


class Source(Protocol):
    """What the writer needs of a recorder."""

    sites: Sites
    strings: Interned
    forms: Interned
    rules: Interned
    lock: threading.Lock

    def take(self) -> Batch:
        """Take away what has been recorded since the last call; the lock is held."""

    def move(self, moved: np.ndarray, texts: set[int], rules: set[int]) -> None:
        """Events were taken out of the file, with texts and rules that no other names: `moved` is where each event is
        now, −1 for none. The lock is held."""


class Writer:
    """Owns the file. Raises OSError where it cannot be made."""

    def __init__(
        self, path: Path | str, source: Source, meta: dict[str, str], last: int | None = None
    ) -> None:
        self.path = Path(path)
        self.source = source
        # No Event: Ctrl-C inside its `set` can leave its lock taken for good.
        self.due: SimpleQueue[None] = SimpleQueue()
        self.writing = threading.Lock()  # held while something is written; taken before the source's lock
        self.closing = False
        self.failure: Exception | None = None
        self.chunks = 0
        self.sources: set[str] = set()
        self.texts: list[str] = []
        self.digests = Digests(self.texts)
        self.ring = None if last is None else Ring(last)
        self.squeezer = Squeezer()
        self.dtypes: dict[int, str] = {}  # of forms, by their numbers
        linecache.checkcache()  # a file may have been edited since another recording
        self.connection = _create(self.path, meta)
        self.thread = Background(self._run)
        self.thread.start()

    def wake(self) -> None:
        """Write now."""
        self.due.put(None)

    def flush(self) -> None:
        """Write everything up to here. Raises OSError where that cannot be."""
        try:
            if self.failure is None:
                self._commit({})
        except sqlite3.Error as error:
            self.failure = error
        if self.failure is not None:
            raise OSError(f"{self.path} cannot be written: {self.failure}") from self.failure

    def note(self, meta: dict[str, str]) -> None:
        """Write more about the run, unless the file cannot be written: then that is said elsewhere."""
        if self.failure is None:
            with suppress(sqlite3.Error):
                self._commit(meta)

    def close(self, meta: dict[str, str]) -> None:
        """Write what is left and close the file. Raises what kept the file from being written."""
        if self.closing:
            return
        self.closing = True
        self.wake()
        self.thread.join()
        if self.failure is None:
            self._commit({})
            self._commit(meta)
            if self.ring is not None:
                self._thin(self.ring, at_end=True)
                self.connection.execute("VACUUM")
            self.connection.execute("PRAGMA journal_mode = DELETE")
        self.connection.close()
        if self.failure is not None:
            raise OSError(f"the trace could not be written to {self.path}: {self.failure}") from self.failure

    def _run(self) -> None:
        while not self.closing:
            with suppress(Empty):
                self.due.get(timeout=INTERVAL)
                while True:  # woken once more is woken
                    self.due.get_nowait()
            if self.failure is not None:
                with self.source.lock:
                    self.source.take()  # and forget it
                continue
            try:
                self._commit({})
            except Exception as error:  # whatever it is, the program must go on, and its user must know
                self.failure = error
                print(
                    f"gradviz: recording stopped, {self.path} cannot be written: {error!r}", file=sys.stderr
                )

    def _commit(self, meta: dict[str, str]) -> None:
        """Write what has been recorded. The program's next event waits for it: the two share one interpreter, and
        a program that did not wait would keep it from this thread (SQLite gives it up at every row) until much
        was unwritten. It does not wait for large values: they are one row, which takes long."""
        with self.writing:
            with self.source.lock:
                batch = self.source.take()
                if not (batch.rows or meta):
                    return
                waits = self.ring is not None or batch.bytes < _LARGE
                if waits:
                    self._write(batch, meta)
            if not waits:
                self._write(batch, meta)

    def _write(self, batch: Batch, meta: dict[str, str]) -> None:
        """Write a batch in one transaction."""
        events = np.frombuffer(batch.rows, ROW)
        cursor = self.connection.cursor()
        cursor.execute("BEGIN")
        self._write_interned(cursor)
        if len(events):
            self._write_chunk(cursor, batch)
        self._write_tables(cursor, batch.first, events)
        cursor.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(meta.items()))
        cursor.execute("COMMIT")
        self.digests.read(batch.first, events, np.frombuffer(batch.links, "<u4"))  # now they are safe
        if self.ring is not None:
            self.ring.note(batch, self.dtypes)
            if self.ring.is_due:
                self._thin(self.ring)

    def _thin(self, ring: Ring, at_end: bool = False) -> None:
        """Take out of the file what is older than the passes that are to be kept; the lock is held, or all is over."""
        cursor = self.connection.cursor()
        cursor.execute("BEGIN")
        self._write_finished(cursor)
        trace = Trace(self.path, self.connection)
        kept, whole = ring.kept(trace, at_end)
        texts = drop_unused(cursor, trace, kept, "strings", "text")
        rules = drop_unused(cursor, trace, kept, "rules", "rule")
        moved = thin(cursor, trace, kept, whole)
        cursor.execute("COMMIT")
        ring.thinned(trace, whole, moved)
        self.source.move(moved, texts, rules)
        for number in texts:
            self.texts[number] = ""

    def _write_interned(self, cursor: sqlite3.Cursor) -> None:
        """Write what got a number: places, texts, forms and rules."""
        source = self.source
        for frame in source.sites.take_new():
            place = frame.place
            row = (
                frame.number, frame.parent, place.file, place.line, place.col, place.end_line, place.end_col,
                place.function, json.dumps(frame.names), frame.is_library,
            )  # fmt: skip
            cursor.execute("INSERT INTO sites VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            if place.file not in self.sources:
                self.sources.add(place.file)
                text = "".join(linecache.getlines(place.file))
                cursor.execute("INSERT OR REPLACE INTO sources VALUES (?, ?)", (place.file, _storable(text)))
        strings = [(number, _storable(text)) for number, text in source.strings.take_new()]
        self.texts += [text for _, text in strings]
        cursor.executemany("INSERT INTO strings VALUES (?, ?)", strings)
        new_forms = source.forms.take_new()
        self.dtypes.update((number, form.dtype) for number, form in new_forms)
        forms = [(number, json.dumps(form.shape), form.dtype, form.device) for number, form in new_forms]
        cursor.executemany("INSERT INTO forms VALUES (?, ?, ?, ?)", forms)
        rules = [
            (number, json.dumps(rule.inputs), bool(rule.elementwise))
            for number, rule in source.rules.take_new()
        ]
        cursor.executemany("INSERT INTO rules VALUES (?, ?, ?)", rules)

    def _write_chunk(self, cursor: sqlite3.Cursor, batch: Batch) -> None:
        """Write the packed arrays of a batch."""
        settle(batch)
        self.chunks += 1
        count = len(batch.rows) // ROW.itemsize
        arrays = bytes(batch.rows), bytes(batch.links), bytes(batch.states)
        if self.ring is None:
            kept = self.squeezer.chunk(self.chunks, batch.first + count, *arrays, batch.payload)
            since = self.squeezer.group
            batch.payload.clear()  # not both in memory while they are written
        else:  # its chunks are changed one by one
            kept, since = Kept._make(map(as_is, (*arrays, b"".join(batch.payload)))), self.chunks
        row = (self.chunks, batch.first, count, time.time(), since)
        cursor.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", row)
        for table, packed in kept._asdict().items():
            cursor.execute(f"INSERT INTO {table} VALUES (?, ?)", (self.chunks, packed))

    def _write_tables(self, cursor: sqlite3.Cursor, first: int, events: np.ndarray) -> None:
        """Write what a person would query: passes, parameters, errors."""
        kinds = events["head"] & 0xFF
        text = self.texts.__getitem__
        for index, row in _of_kind(Kind.PASS_BEGAN, first, events, kinds):
            recorded = not row["head"] >> 8 & SKIPPED
            began = (row["number"], index, row["head"] >> 16, row["site"], recorded)
            cursor.execute(
                "INSERT INTO passes (number, first, thread, site, recorded) VALUES (?, ?, ?, ?, ?)", began
            )
        for _, row in _of_kind(Kind.NAMED, first, events, kinds):
            if text(row["role"]):
                named = (row["tensor"], text(row["name"]))
                cursor.execute("INSERT OR REPLACE INTO parameters VALUES (?, ?)", named)
        for index, row in _of_kind(Kind.ERROR, first, events, kinds):
            error = (index, text(row["type"]), text(row["message"]), row["node"], row["site"])
            cursor.execute("INSERT INTO errors VALUES (?, ?, ?, ?, ?)", error)
        self._write_finished(cursor)

    def _write_finished(self, cursor: sqlite3.Cursor) -> None:
        """Write the digests of the passes that have ended."""
        finished = [(run.last, run.nodes, run.digest, run.number) for run in self.digests.take_finished()]
        cursor.executemany("UPDATE passes SET last = ?, nodes = ?, digest = ? WHERE number = ?", finished)


def _of_kind(
    kind: Kind, first: int, events: np.ndarray, kinds: np.ndarray
) -> Iterable[tuple[int, dict[str, int]]]:
    """The events of a kind: index, and the row with its columns by the fields' names."""
    layout = LAYOUTS[kind]
    for at in np.flatnonzero(kinds == kind).tolist():
        row = events[at]
        named = {field.name: int(row[column]) for column, field in zip("abcd", layout.columns, strict=False)}
        yield first + at, {"head": int(row["head"]), "site": int(row["site"]), **named}


def _storable(text: str) -> str:
    """Text that SQLite takes: without lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def settle(batch: Batch) -> None:
    """Put what was kept for later into the payload, and its lengths into the states."""
    if not batch.waiting:
        return
    readers: dict[int, tuple[Reader, list[int], list[Later]]] = {}
    for position, reader, later in batch.waiting:
        _, positions, waiting = readers.setdefault(id(reader), (reader, [], []))
        positions.append(position)
        waiting.append(later)
    for reader, positions, waiting in readers.values():
        for position, data in zip(positions, reader.settle(waiting), strict=True):
            batch.payload[position] = data
    states = np.frombuffer(batch.states, STATE)
    valued = states["what"] >> 8 != 0
    states["length"][valued] = [len(payload) for payload in batch.payload]


def _check_replaceable(path: Path) -> None:
    """Raise OSError if there is something at `path` that is no trace: it must not be lost."""
    if not path.exists():
        return
    if not path.is_file():
        raise OSError(f"{path} is not a regular file: choose another name for the trace")
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if header and (
        not header.startswith(b"SQLite format 3\0") or header[68:72] != APPLICATION_ID.to_bytes(4, "big")
    ):
        raise OSError(
            f"{path} is not a gradviz trace, and is not overwritten: choose another name for the trace"
        )


def _create(path: Path, meta: dict[str, str]) -> sqlite3.Connection:
    """A new, empty trace at `path`, in place of an earlier trace there. Raises OSError for any other file."""
    _check_replaceable(path)
    try:
        for leftover in (path, Path(f"{path}-journal")):
            leftover.unlink(missing_ok=True)
        # A reader of the same file (`--watch`) may keep a commit waiting.
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=_PATIENCE)
        # A rollback journal without fsync: a killed process leaves a sound file, and only one.
        connection.executescript(
            "PRAGMA page_size = 8192; PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF;"
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            f"BEGIN; {TABLES} COMMIT;"
        )
        connection.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))
    except sqlite3.Error as error:
        raise OSError(f"cannot write {path}: {error}") from error
    return connection
