"""The cold half of recording: a thread that packs what was recorded and commits it to the file."""

from __future__ import annotations

import json
import linecache
import sqlite3
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np

from gradviz.events.values import pack_stats, stats_of_rows
from gradviz.tracefile.digest import Digests
from gradviz.tracefile.schema import APPLICATION_ID, EVENT, SNAPSHOT, TABLES, VERSION
from gradviz.tracefile.sites import Sites

INTERVAL = 0.05  # seconds between commits


class Interned:
    """Numbers for things that repeat, and the list of those not yet written."""

    def __init__(self) -> None:
        self.known: dict[Any, int] = {}
        self.new: deque[tuple[int, Any]] = deque()  # the recorder adds to it while it is being written

    def number(self, thing: Any) -> int:
        """The thing's number, counted from 0."""
        number = self.known.get(thing)
        if number is None:
            number = self.known[thing] = len(self.known)
            self.new.append((number, thing))
        return number

    def take_new(self) -> list[tuple[int, Any]]:
        """What got a number since the last call."""
        return [self.new.popleft() for _ in range(len(self.new))]


class Batch:
    """What was recorded between two commits."""

    __slots__ = (
        "bytes",
        "deferred",
        "errors",
        "first",
        "links",
        "parameters",
        "passes_begun",
        "payload",
        "rows",
        "snapshots",
    )

    def __init__(self) -> None:
        self.first = 0
        self.rows = bytearray()  # EVENT after EVENT
        self.links = bytearray()  # four bytes each
        self.snapshots = bytearray()  # SNAPSHOT after SNAPSHOT
        self.payload: list[bytes] = []
        self.bytes = 0
        self.deferred: list[tuple[int, np.dtype, int]] = []  # payloads to be replaced by their statistics
        self.passes_begun: list[tuple] = []
        self.parameters: list[tuple[int, str]] = []
        self.errors: list[tuple] = []


class Source(Protocol):
    """What the writer needs of a recorder."""

    sites: Sites
    strings: Interned
    shapes: Interned
    lock: threading.Lock

    def take(self) -> Batch:
        """Take away what has been recorded since the last call; the lock is held."""


class Writer:
    """Owns the file. Raises OSError where it cannot be made."""

    def __init__(
        self, path: Path | str, source: Source, meta: dict[str, str], formulas: dict[str, str]
    ) -> None:
        self.path = Path(path)
        self.source = source
        # No Event: Ctrl-C inside its `set` can leave its lock taken for good.
        self.due: SimpleQueue[None] = SimpleQueue()
        self.closing = False
        self.failure: Exception | None = None
        self.chunks = 0
        self.newest = 0  # the highest tensor number written
        self.sources: set[str] = set()
        self.digests = Digests(source.strings.known)
        self.connection = _create(self.path, meta, formulas)
        self.thread = threading.Thread(target=self._run, name="gradviz-writer", daemon=True)
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
        was unwritten."""
        with self.source.lock:
            batch = self.source.take()
            if not (batch.rows or meta):
                return
            cursor = self.connection.cursor()
            cursor.execute("BEGIN")
            events, links = self._write_batch(cursor, batch)
            self._write_tables(cursor, batch)
            cursor.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(meta.items()))
            cursor.execute("COMMIT")
            self.digests.read(batch.first, events, links)  # only now, when they are safe

    def _write_batch(self, cursor: sqlite3.Cursor, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Write the packed arrays of a batch, if it has any; returns its events and links."""
        events = np.frombuffer(batch.rows, EVENT)
        links = np.frombuffer(batch.links, "<u4")
        if not batch.rows:
            return events, links
        snapshots = np.frombuffer(batch.snapshots, SNAPSHOT)
        _settle_deferred(batch, snapshots)
        if len(snapshots):
            self.newest = max(self.newest, int(snapshots["tensor"].max()))
        self.chunks += 1
        cursor.execute(
            "INSERT INTO chunks VALUES (?, ?, ?, ?, ?)",
            (self.chunks, batch.first, len(events), time.time(), self.newest),
        )
        blobs = {"events": batch.rows, "links": batch.links, "snapshots": batch.snapshots}
        for table, packed in blobs.items():
            cursor.execute(f"INSERT INTO {table} VALUES (?, ?)", (self.chunks, packed))
        cursor.execute("INSERT INTO payloads VALUES (?, ?)", (self.chunks, b"".join(batch.payload)))
        return events, links

    def _write_tables(self, cursor: sqlite3.Cursor, batch: Batch) -> None:
        for site in self.source.sites.take_new():
            place = site.place
            row = (
                site.number, site.parent, place.file, place.line, place.col, place.end_line, place.end_col,
                place.function, json.dumps(site.names),
            )  # fmt: skip
            cursor.execute("INSERT INTO sites VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            if place.file not in self.sources:
                self.sources.add(place.file)
                text = "".join(linecache.getlines(place.file))
                cursor.execute("INSERT OR REPLACE INTO sources VALUES (?, ?)", (place.file, text))
        strings = [(number, _storable(text)) for number, text in self.source.strings.take_new()]
        cursor.executemany("INSERT INTO strings VALUES (?, ?)", strings)
        shapes = [(number, json.dumps(shape)) for number, shape in self.source.shapes.take_new()]
        cursor.executemany("INSERT INTO shapes VALUES (?, ?)", shapes)
        cursor.executemany("INSERT OR REPLACE INTO parameters VALUES (?, ?)", batch.parameters)
        errors = [(at, kind, _storable(text), node, site) for at, kind, text, node, site in batch.errors]
        cursor.executemany("INSERT INTO errors VALUES (?, ?, ?, ?, ?)", errors)
        cursor.executemany(
            "INSERT INTO passes (number, first, thread, site, recorded) VALUES (?, ?, ?, ?, ?)",
            batch.passes_begun,
        )
        finished = [(run.last, run.nodes, run.digest, run.number) for run in self.digests.take_finished()]
        cursor.executemany("UPDATE passes SET last = ?, nodes = ?, digest = ? WHERE number = ?", finished)


def _storable(text: str) -> str:
    """Text that SQLite takes: without lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _settle_deferred(batch: Batch, snapshots: np.ndarray) -> None:
    """Replace payloads that were kept for their statistics by those, all of a kind at once."""
    groups: dict[tuple[np.dtype, int], list[int]] = {}
    for position, dtype, size in batch.deferred:
        groups.setdefault((dtype, size), []).append(position)
    if not groups:
        return
    for (dtype, size), positions in groups.items():
        rows = np.frombuffer(b"".join(batch.payload[i] for i in positions), dtype).reshape(-1, size)
        for position, packed in zip(positions, pack_stats(stats_of_rows(rows)), strict=True):
            batch.payload[position] = packed.tobytes()
    valued = snapshots["what"] >> 24 != 0
    snapshots["length"][valued] = [len(payload) for payload in batch.payload]


def _create(path: Path, meta: dict[str, str], formulas: dict[str, str]) -> sqlite3.Connection:
    """A new, empty trace at `path`, in place of any file there."""
    try:
        for leftover in (path, Path(f"{path}-journal")):
            leftover.unlink(missing_ok=True)
        connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        # A rollback journal without fsync: a killed process leaves a sound file, and only one.
        connection.executescript(
            "PRAGMA page_size = 8192; PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF;"
            f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
            f"BEGIN; {TABLES} COMMIT;"
        )
        connection.executemany("INSERT INTO meta VALUES (?, ?)", list(meta.items()))
        connection.executemany("INSERT INTO formulas VALUES (?, ?)", list(formulas.items()))
    except sqlite3.Error as error:
        raise OSError(f"cannot write {path}: {error}") from error
    return connection
