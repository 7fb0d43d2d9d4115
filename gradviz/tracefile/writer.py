"""The cold half of recording: a thread that packs what was recorded and commits it to the file."""

import json
import linecache
import sqlite3
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from itertools import compress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic, sleep, time  # bound now: a program may replace them in `time`
from typing import Protocol

import numpy as np

from gradviz import background
from gradviz.background import Background
from gradviz.events.event_layout import LAYOUTS, ROW
from gradviz.events.handles import Later, Reader
from gradviz.events.kinds import TIED, Kind
from gradviz.events.listener import LeafHistogram
from gradviz.system.turns import new_turn
from gradviz.tracefile.batch import Batch, ByKind, Interned
from gradviz.tracefile.chosen import AutoPasses
from gradviz.tracefile.chunks import ChunkTables, execute_each
from gradviz.tracefile.database import SKIPPED, STATE
from gradviz.tracefile.digest import Digests, FinishedPass
from gradviz.tracefile.file import TraceFile, cause_of, storable, storable_items
from gradviz.tracefile.nans import News, with_nan
from gradviz.tracefile.pass_rows import PassInfo, runs_of
from gradviz.tracefile.printed_lines import PrintedLines
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.ring import Ring, drop_unused, thin
from gradviz.tracefile.sites import Sites

INTERVAL = 0.08  # seconds between commits: with the time for a commit, at most a tenth of a second is lost
_SELDOM = 0.5  # ...while the source rests, and there are only a few numbers of each pass to write
_SHORTLY = 0.01  # seconds
_PATIENCE = 60  # the most seconds that another program may hold the file
# Bytes of values in memory, from which on they are written at once. As many more may be on their way.
PAYLOAD_LIMIT = 4 << 20
_ROOM_WHILE_HELD = 256 << 20  # the same, while another program holds the file
_LARGE = 1 << 20  # bytes of values, from which on the program does not wait for the write


class Source(Protocol):
    """The parts of a recorder that the writer needs."""

    sites: Sites
    strings: Interned
    forms: Interned
    rules: Interned
    printed: PrintedLines
    histograms: deque[tuple[int, LeafHistogram]]
    lock: threading.Lock
    auto: AutoPasses | None  # chooses passes by what is written

    @property
    def rests(self) -> bool:
        """Whether only a few numbers of each pass are recorded at present."""

    @property
    def has_news(self) -> bool:
        """Whether something has been recorded since the last `take`."""

    def take(self) -> Batch:
        """Take everything recorded since the last call; the lock is held."""

    def move(self, moved: np.ndarray, texts: set[int], rules: set[int]) -> None:
        """Adapt to the removal of events from the file, with the texts and rules that no other event names. `moved` is
        the place where each event is now, −1 for none. The lock is held."""


class Writer:
    """Owns the file. Raises OSError if it cannot be made."""

    def __init__(
        self,
        path: Path | str,
        source: Source,
        meta: dict[str, str],
        last: int | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.path = Path(path)
        self.source = source
        self.say = say or (lambda line: print(line, file=sys.stderr))
        # No Event: Ctrl-C inside its `set` can leave its lock taken for good.
        self.due: SimpleQueue[None] = SimpleQueue()
        self.writing = new_turn()  # held while something is written; taken before the source's lock
        self.closing = False
        self.failure: BaseException | None = None  # the reason why nothing is written any more
        self.is_stopped = False  # whether the user has been told about the failure
        self.written = 0  # the number of events in the file
        self.held_since: float | None = None  # the time since which another program has kept us from writing
        self.fetches = False  # whether what is being written has values on a device
        self.notes: dict[str, str] = {}  # notes about the run that are not written yet
        self.sources: set[str] = set()
        self.texts: list[str] = []
        self.digests = Digests(self.texts)
        self.ring = None if last is None else Ring(last)
        self.news: News | None = None  # the test for what is new in each pass, if somebody needs it
        self.dtypes: dict[int, str] = {}  # the dtypes of forms by their numbers
        self.chunks = ChunkTables(source.strings.known, self.dtypes, is_ring=last is not None)
        linecache.checkcache()  # a file may have been edited since another recording
        self.file = TraceFile(self.path, meta)
        self.thread = Background(self._run, lambda: self.due.put(None), self._fail)
        self.thread.start()

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection to the file, which is another one from when it replaces an earlier trace."""
        return self.file.connection

    @property
    def room(self) -> int:
        """The bytes of values that may be in memory before the program has to wait."""
        return PAYLOAD_LIMIT if self.held_since is None else _ROOM_WHILE_HELD

    @property
    def is_writing_soon(self) -> bool:
        """Whether what is recorded now will be in the file in a moment, without waiting for a device or for another
        program."""
        is_alive = self.thread.is_running and self.failure is None and not self.closing
        return is_alive and self.held_since is None and not self.fetches

    def wake(self) -> None:
        """Write now: in this thread, if the writer's cannot run."""
        background.go_on_all()
        if self.thread.is_running:
            self.due.put(None)
        elif self.failure is None:
            self._try()

    def flush(self) -> None:
        """Write everything up to here. Raises OSError if that fails."""
        self._write_all()
        if self.failure is not None:
            raise OSError(f"{self.path} cannot be written: {cause_of(self.failure)}") from self.failure
        with self.writing:
            self.file.replace()

    def note(self, meta: dict[str, str]) -> None:
        """Write more notes about the run, soon."""
        self.notes.update(meta)
        self.wake()

    def give_up(self, error: Exception) -> None:
        """Write nothing any more. The program goes on, and its user is told."""
        if self.failure is None:
            self.failure = error
            self.wake()

    def _fail(self, error: BaseException | None) -> None:
        """Report that the thread has ended by a fault of ours: now, or at the end if the program has replaced something
        that the report needs."""
        self.failure = self.failure or error
        self._stop({})

    def close(self, meta: dict[str, str]) -> None:
        """Write the rest and close the file."""
        if self.closing:
            return
        self.closing = True
        self.wake()
        self.thread.join()
        self.failure = self.failure or self.thread.untold
        self._write_all()
        self.notes.update(meta)
        self._write_all()
        if self.failure is None:
            try:
                self.connection.execute(f"PRAGMA busy_timeout = {_PATIENCE * 1000}")
                if self.ring is not None:
                    self._thin(self.ring, at_end=True)
                    self.connection.execute("VACUUM")
                self.connection.execute("PRAGMA journal_mode = DELETE")
            except Exception as error:  # as in `_try`: the program must go on, and its user must know
                self.give_up(error)
        if self.failure is not None:
            self._stop(meta)
        elif self.file.is_beside:
            with suppress(Exception):  # there may be no stderr
                self.say(f"gradviz: nothing was recorded: {self._holding()}")
        self.file.close()

    def abandon(self) -> None:
        """Leave the file to another process, of which this one is a copy."""
        self.closing = True
        self.file.abandon()

    def _run(self) -> None:
        while not (self.closing or self.thread.pausing):
            with suppress(Empty):
                self.due.get(timeout=_SELDOM if self.source.rests else INTERVAL)
                while True:  # woken once more is woken
                    self.due.get_nowait()
            if self.failure is None:
                self._try()
            if self.failure is not None:
                self._stop({})
                with self.source.lock:
                    self.source.take()  # and forget it

    def _write_all(self) -> None:
        """Write everything, even if that means waiting for another program."""
        while self.failure is None and not self._try():
            sleep(_SHORTLY)

    def _try(self) -> bool:
        """Write everything; returns whether that was possible now."""
        try:
            done = self._commit()
        except Exception as error:  # whatever it is, the program must go on, and its user must know
            self.give_up(error)
            return True
        if done:
            self.held_since = None
        elif self.held_since is None:
            self.held_since = monotonic()
        elif monotonic() - self.held_since > _PATIENCE:
            self.give_up(OSError(f"another program has held it for {_PATIENCE} seconds"))
        return done

    def _stop(self, meta: dict[str, str]) -> None:
        """Report once, to the user and in the file, that the recording has ended before the program."""
        if self.failure is None or (self.is_stopped and not meta):
            return
        cause = cause_of(self.failure)
        self.file.end({**meta, "stopped": f"{cause}; complete up to event {self.written}"}, self.failure)
        if not self.is_stopped:
            self.is_stopped = True
            with suppress(Exception):  # there may be no stderr
                self.say(f"gradviz: recording stopped ({cause}): {self._holding()}, and the program goes on")

    def _holding(self) -> str:
        """A sentence about the recording that is at the path."""
        if not self.file.is_beside:
            return f"{self.path} is complete up to event {self.written:,}"
        earlier = datetime.fromtimestamp(self.path.stat().st_mtime)
        return f"{self.path} is still the recording of {earlier:%Y-%m-%d %H:%M}"

    def _commit(self) -> bool:
        """Write everything recorded so far; returns False if another program holds the file.

        The program's next event waits while it is written. The two share one interpreter, and a program that did not
        wait would keep it from this thread (SQLite gives it up at every row) until much was unwritten. The program does
        not wait for large values: they are one row, which takes long. It never waits for another program."""
        with self.writing:
            if not (self.source.has_news or self.notes):
                return True
            if not self.file.begin():
                return False
            with self.source.lock:
                batch = self.source.take()
                if self.failure is not None:  # since then: events after the gap are worth nothing
                    self.connection.execute("ROLLBACK")
                    return True
                self.fetches = has_distant(batch)
                is_long = batch.bytes >= _LARGE or self.fetches
                waits = self.ring is not None or not is_long
                if waits:
                    self._write(batch)
            if not waits:
                self._write(batch)
            self.fetches = False
        return True

    def _write(self, batch: Batch) -> None:
        """Write a batch, and end the transaction."""
        events = ByKind(batch.first, np.frombuffer(batch.rows, ROW))
        notes = dict(self.notes)
        cursor = self.connection.cursor()
        lines = self.source.printed.take()  # before the places are written, so that each has its own
        self._write_interned(cursor)
        for line in lines:
            row = (line.event, line.site, storable(line.text), line.length)
            cursor.execute("INSERT INTO printed VALUES (NULL, ?, ?, ?, ?)", row)
        if len(events.rows):
            self._write_chunk(cursor, batch, events)
            self.digests.read(events, np.frombuffer(batch.links, "<u4"))
            self._write_tables(cursor, events)
        counted = [self.source.histograms.popleft() for _ in range(len(self.source.histograms))]
        rows = [(number, *histogram) for number, histogram in counted]
        execute_each(cursor, "INSERT INTO histograms VALUES (?, ?, ?, ?, ?, ?)", rows)
        execute_each(cursor, "INSERT OR REPLACE INTO meta VALUES (?, ?)", storable_items(notes))
        cursor.execute("COMMIT")
        self.written = batch.first + len(events.rows)
        self.file.replace(if_it_holds=True)
        self.notes = {key: text for key, text in self.notes.items() if notes.get(key) != text}
        if self.ring is not None:
            self.ring.note(batch, self.dtypes)
            if self.ring.is_due and self.file.begin():
                self._thin(self.ring, begun=True)

    def _thin(self, ring: Ring, at_end: bool = False, begun: bool = False) -> None:
        """Remove everything older than the passes that stay; the lock is held, or the run is over."""
        cursor = self.connection.cursor()
        if not begun:
            cursor.execute("BEGIN EXCLUSIVE")
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
        """Write everything that got a number: places, texts, forms and rules."""
        source = self.source
        for frame in source.sites.take_new():
            row = frame.row(storable, storable)
            cursor.execute("INSERT INTO sites VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            file = frame.place.file
            if file not in self.sources:
                self.sources.add(file)
                text = source.sites.source_of(file)
                if text is not None:
                    cursor.execute("INSERT OR REPLACE INTO sources VALUES (?, ?)", (storable(file), storable(text)))
        strings = [(number, storable(text)) for number, text in source.strings.take_new()]
        self.texts += [text for _, text in strings]
        execute_each(cursor, "INSERT INTO strings VALUES (?, ?)", strings)
        new_forms = source.forms.take_new()
        self.dtypes.update((number, form.dtype) for number, form in new_forms)
        forms = [(number, json.dumps(form.shape), form.dtype, form.device) for number, form in new_forms]
        execute_each(cursor, "INSERT INTO forms VALUES (?, ?, ?, ?)", forms)
        rules = [(number, json.dumps(rule.inputs), bool(rule.elementwise)) for number, rule in source.rules.take_new()]
        execute_each(cursor, "INSERT INTO rules VALUES (?, ?, ?)", rules)

    def _write_chunk(self, cursor: sqlite3.Cursor, batch: Batch, events: ByKind) -> None:
        """Write the packed arrays of a batch."""
        settle(batch)
        if self.news is not None:
            self.news.note(batch, self.dtypes)
        if self.source.auto is not None:  # before the chunk is written, without what repeats
            bad = with_nan(np.frombuffer(batch.states, STATE), batch.payload, self.dtypes)
            self.source.auto.wrote(bad.tolist(), batch.pass_ends)
        self.chunks.write(cursor, events, batch, time())

    def _write_tables(self, cursor: sqlite3.Cursor, events: ByKind) -> None:
        """Write the tables that a person would query: passes, parameters, errors."""
        text = self.texts.__getitem__
        self._write_passes(cursor, list(_of_kind(Kind.PASS_BEGAN, events)))
        for _, row in _of_kind(Kind.NAMED, events):
            tensor, name, role = row["tensor"], text(row["name"]), text(row["role"])
            if role == TIED:
                continue  # the parameter keeps its first name
            if role:
                cursor.execute("INSERT OR REPLACE INTO parameters VALUES (?, ?, ?)", (tensor, name, role))
            else:
                cursor.execute("INSERT OR REPLACE INTO variables VALUES (?, ?)", (tensor, name))
        for index, row in _of_kind(Kind.ERROR, events):
            error = (index, text(row["type"]), text(row["message"]), row["node"], row["site"])
            cursor.execute("INSERT INTO errors VALUES (?, ?, ?, ?, ?)", error)

    def _write_passes(self, cursor: sqlite3.Cursor, begun: list[tuple[int, dict[str, int]]]) -> None:
        """Write the passes that began, and the ends of the passes that ended. Passes without recorded nodes are many,
        so runs of them are written; a ring, which renumbers its events, has each of them by itself."""
        ended = {backward_pass.number: backward_pass for backward_pass in self.digests.take_finished()}
        passes = [_pass_of(index, row, ended.pop(row["number"], None)) for index, row in begun]
        is_skipped = [self.ring is None and not (one.recorded or one.is_in_detail) for one in passes]
        skipped = runs_of(compress(passes, is_skipped))
        in_detail = [backward_pass for backward_pass, skip in zip(passes, is_skipped, strict=True) if not skip]
        execute_each(cursor, "INSERT INTO skipped VALUES (?, ?, ?, ?, ?, ?, ?)", skipped)
        execute_each(cursor, "INSERT INTO passes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", in_detail)
        late = [(one.last, one.nodes, one.digest, one.number) for one in ended.values()]
        execute_each(cursor, "UPDATE passes SET last = ?, nodes = ?, digest = ? WHERE number = ?", late)


def _pass_of(first: int, row: dict[str, int], ended: FinishedPass | None) -> PassInfo:
    """A pass from the event that began it, and from its end, if it ended."""
    thread, is_recorded = row["head"] >> 16, not row["head"] >> 8 & SKIPPED
    if ended is None:
        return PassInfo(row["number"], first, None, thread, row["site"], None, None, is_recorded)
    return PassInfo(row["number"], first, ended.last, thread, row["site"], ended.nodes, ended.digest, is_recorded)


def _of_kind(kind: Kind, events: ByKind) -> Iterable[tuple[int, dict[str, int]]]:
    """The events of a kind: index, and the row with its columns by the fields' names."""
    places = events.at(kind)
    if not len(places):
        return
    columns = [(field.name, column) for column, field in zip("abcd", LAYOUTS[kind].columns, strict=False)]
    named = [("head", "head"), ("site", "site"), *columns]
    for at, *row in zip(places.tolist(), *(events.rows[column][places].tolist() for _, column in named), strict=True):
        yield events.first + at, dict(zip((name for name, _ in named), row, strict=True))


def has_distant(batch: Batch) -> bool:
    """Whether a batch has values that are yet to be fetched from a device."""
    return any(later.is_distant for *_, later in batch.waiting)


def settle(batch: Batch) -> None:
    """Put the values that were kept for later into the payload, and their lengths into the states."""
    if not batch.waiting:
        return
    readers: dict[int, tuple[Reader, list[int], list[Later]]] = {}
    for position, reader, later in batch.waiting:
        _, positions, waiting = readers.setdefault(id(reader), (reader, [], []))
        positions.append(position)
        waiting.append(later)
    missing = set()
    for reader, positions, waiting in readers.values():
        for position, data in zip(positions, reader.settle(waiting), strict=True):
            if data is None:
                missing.add(position)
            else:
                batch.payload[position] += data
    states = np.frombuffer(batch.states, STATE)
    valued = np.flatnonzero(states["what"] >> 8)
    states["length"][valued] = [len(payload) for payload in batch.payload]
    if missing:
        states["what"][valued[sorted(missing)]] &= 0xFF  # their flags alone
        batch.payload = [data for at, data in enumerate(batch.payload) if at not in missing]
