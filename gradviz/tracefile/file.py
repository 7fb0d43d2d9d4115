"""The file of a recording: made, locked, written in transactions, ended."""

import ctypes
import os
import sqlite3
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from gradviz.events.values import WITH_ELEMENTS
from gradviz.system.descriptors import (
    DELETES_OPEN_FILES,
    HIGH,
    Watched,
    first_bytes_of_open,
    high_copy,
    high_descriptors,
    identity,
    is_locked,
)
from gradviz.tracefile.database import APPLICATION_ID, TABLES, VERSION

_HEADER = 100  # bytes of SQLite's header; the application's id is at 68
MOMENT = 0.02  # seconds to wait for another program
_PATIENCE = 10  # seconds to wait for programs that only look whether the file is being recorded
_ANOTHER = "choose another name for the trace"
_claimed: dict[Path, int] = {}  # the files of recordings that have not begun, with a descriptor of each


class TakenError(OSError):
    """Another run records into the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path} is being recorded by another run: {_ANOTHER}")


def claim_first(paths: Iterable[Path]) -> Path:
    """Claim the first of some names that no other run records into. Raises OSError if no file can be made."""
    for path in paths:
        try:
            _claimed[path.absolute()] = _new_file(path)
        except TakenError:
            continue
        return path
    raise OSError("no name is left for the trace")


def locked_file(path: Path) -> int:
    """The descriptor of a new file at `path`, in place of an earlier trace. No other run replaces it while the
    descriptor is open. Raises TakenError if another run records into it, OSError for a file that is no trace."""
    claimed = _claimed.pop(path.absolute(), None)
    return _new_file(path) if claimed is None else claimed


def stays_locked(descriptor: int, shared: bool = False) -> bool:
    """Whether another run holds the lock of a file; if not, it is now ours. A reader shares the lock while it tests it,
    which takes long if the machine is busy: it is waited for. (On Windows it cannot share, and has only a moment.)"""
    until = time.monotonic() + _PATIENCE
    while is_locked(descriptor, shared):
        time.sleep(MOMENT)
        if is_locked(descriptor, shared=True) or time.monotonic() > until:
            return True
    return False


def _new_file(path: Path) -> int:
    """The descriptor of a new, locked file: at `path`, or beside an earlier trace there that holds something."""
    with ExitStack() as stack:  # the locks of earlier files are held until the new file is there and locked
        earlier = _lock_earlier(path, stack)
        place = beside(path) if earlier is not None and _holds_something(path) else path
        leftover = earlier if place == path else _lock_earlier(place, stack)
        try:
            if leftover is not None:  # a file that came since then is another run's
                place.unlink(missing_ok=True)
            low = os.open(place, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise TakenError(path) from None
        except OSError as error:
            raise OSError(f"cannot write {path}: {error.strerror}") from error
        descriptor = high_copy(low) if low < HIGH else low
        if descriptor != low:
            os.close(low)
        is_ours = not stays_locked(descriptor) and identity(descriptor) == identity(place)
        if place != path and identity(path) != earlier:  # another run has replaced it meanwhile
            place.unlink(missing_ok=True)
            is_ours = False
        if not is_ours:  # another run was faster
            os.close(descriptor)
            raise TakenError(path)
        journal_of(place).unlink(missing_ok=True)
        return descriptor


def _lock_earlier(path: Path, stack: ExitStack) -> tuple[int, int] | None:
    """Take the lock of an earlier trace, and return its identity; None if there is no file. Raises OSError if the file
    must not be lost."""
    if not path.exists():
        return None
    if not path.is_file():
        raise OSError(f"{path} is not a regular file: {_ANOTHER}")
    file = stack.enter_context(path.open("rb"))
    if stays_locked(file.fileno()):
        raise TakenError(path)
    header = file.read(_HEADER)
    if header and (not header.startswith(b"SQLite format 3\0") or header[68:72] != APPLICATION_ID.to_bytes(4, "big")):
        raise OSError(f"{path} is not a gradviz trace, and is not overwritten: {_ANOTHER}")
    found = identity(file.fileno())
    if not DELETES_OPEN_FILES:
        file.close()
    if identity(path) != found:  # another run has replaced it meanwhile
        raise TakenError(path)
    return found


def beside(path: Path) -> Path:
    """Where a run is recorded until it holds something, if there is an earlier trace at `path`."""
    return Path(f"{path}-new")


def journal_of(path: Path) -> Path:
    """The journal in which SQLite keeps what a transaction replaces."""
    return Path(f"{path}-journal")


def take_away(path: Path) -> None:
    """Delete a trace that is of no use, and its journal."""
    for left in (path, journal_of(path)):
        left.unlink(missing_ok=True)


def _holds_something(path: Path) -> bool:
    """Whether a trace has a tensor or a pass; also if that cannot be read."""
    if not path.stat().st_size:
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)) as connection:
            return _has_something(connection)
    except sqlite3.Error:
        return True


def _has_something(connection: sqlite3.Connection) -> bool:
    (found,) = connection.execute("SELECT EXISTS (SELECT 1 FROM forms) OR EXISTS (SELECT 1 FROM passes)").fetchone()
    return bool(found)


# Bytes of a page of the database: small pages waste less at the end of an array, large pages are written faster.
PAGE, LARGE_PAGE = 2048, 16384
_CACHE = 14 << 10  # KiB of pages, for large pages: the values of a chunk, so that each page is written once


class TraceFile:
    """A new, empty trace. It is beside an earlier trace at `path` that holds something, until it `replaces` that one.
    Raises OSError for any other file, and for a trace that another run is recording."""

    def __init__(self, path: Path, meta: Mapping[str, str]) -> None:
        self.path = path.absolute()
        self.page = LARGE_PAGE if meta.get("values") in WITH_ELEMENTS else PAGE
        try:
            with high_descriptors():
                self.lock = locked_file(path)
                is_at_path = identity(self.lock) == identity(self.path)
                self.place = self.path if is_at_path else beside(self.path)
                self.connection = _connected(self.place, self.page)
            self.connection.executescript(
                f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};BEGIN; {TABLES} COMMIT;"
            )
            self.identity = _identity(os.fstat(self.lock))
            _recorded[self.identity] = self.lock
            self.connection.executemany("INSERT INTO meta VALUES (?, ?)", storable_items(meta))
            self.descriptors = Watched(self.place)
        except sqlite3.Error as error:
            raise OSError(f"cannot write {path}: {error}") from error

    @property
    def is_beside(self) -> bool:
        """Whether an earlier trace is still at `path`."""
        return self.place != self.path

    def replace(self, if_it_holds: bool = False) -> None:
        """Take the place of the earlier trace, if that is still there: with `if_it_holds` only if this one holds
        something. Between transactions. Whenever the process is killed, a sound trace is at `path`."""
        if not self.is_beside or (if_it_holds and not _has_something(self.connection)):
            return
        if not self.descriptors.are_ours:
            raise OSError("the program has closed its file")
        with high_descriptors():
            self.connection.close()  # SQLite keeps the name of the file, for its journal
            if not DELETES_OPEN_FILES:
                os.close(self.lock)
            for journal in (journal_of(self.place), journal_of(self.path)):
                journal.unlink(missing_ok=True)
            self.place.replace(self.path)
            self.place = self.path
            if not DELETES_OPEN_FILES:
                self.lock = _recorded[self.identity] = os.open(self.path, os.O_RDWR)
                stays_locked(self.lock)
            self.connection = _connected(self.path, self.page)
        self.descriptors = Watched(self.path)

    def begin(self) -> bool:
        """Begin a transaction. False if another program reads or writes the file at this moment. Raises OSError if the
        file cannot be written to any more."""
        if not self.descriptors.are_ours:
            raise OSError("the program has closed its file")
        try:
            self.connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                return False
            raise
        return True

    def end(self, meta: Mapping[str, str], failure: BaseException) -> None:
        """Record in a file that cannot grow any more how its recording ended, if possible."""
        if not self.descriptors.are_ours:
            return
        with suppress(sqlite3.Error):
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            self.connection.execute("PRAGMA journal_mode = MEMORY")  # there may be no room for a journal
            with self.connection:
                self.connection.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", storable_items(meta))

    def close(self) -> None:
        """Close the file, and delete it if an earlier trace is still in its place. If the program has closed it, its
        descriptor is now the program's own."""
        if not self.descriptors.are_ours:
            self.abandon()
            return
        _recorded.pop(self.identity, None)
        with suppress(sqlite3.Error):
            self.connection.close()
        os.close(self.lock)
        if self.is_beside:
            take_away(self.place)

    def abandon(self) -> None:
        """Never touch the file again, not even when the process ends: SQLite would roll back and close what is not
        ours."""
        _recorded.pop(self.identity, None)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))


_Identity = tuple[int, int]
_recorded: dict[_Identity, int] = {}  # the files that this process records, with a descriptor of each


def _identity(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino


def first_bytes(path: Path, size: int) -> bytes:
    """The first bytes of a file. A file that this process records is not opened, if that would drop the locks of a
    commit that is under way."""
    identity = _identity(path.stat())
    descriptor = _recorded.get(identity)
    if descriptor is not None:
        with suppress(OSError):  # the program may have closed it
            if _identity(os.fstat(descriptor)) == identity:
                first = first_bytes_of_open(descriptor, size)
                if first is not None:
                    return first
    with path.open("rb") as file:
        return file.read(size)


def is_being_recorded(path: Path) -> bool:
    """Whether a run records this file now. False if the system has no locks: then it cannot be known."""
    try:
        if _identity(path.stat()) in _recorded:
            return True
        with path.open("rb") as file:
            return stays_locked(file.fileno(), shared=True)
    except OSError:  # it has gone
        return False


def _connected(path: Path, page: int) -> sqlite3.Connection:
    connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=MOMENT)
    # A rollback journal without fsync: a killed process leaves a sound file, and only that one.
    connection.executescript(f"PRAGMA page_size = {page}; PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF;")
    if page == LARGE_PAGE:
        connection.execute(f"PRAGMA cache_size = -{_CACHE}")
    return connection


def storable(text: str) -> str:
    """Text that SQLite takes: without lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def storable_items(meta: Mapping[str, str]) -> list[tuple[str, str]]:
    """The notes about a run as texts that SQLite takes."""
    return [(key, storable(text)) for key, text in meta.items()]


def cause_of(failure: BaseException) -> str:
    """The reason why a recording stopped, in a few words."""
    if isinstance(failure, MemoryError):
        return "out of memory"
    if isinstance(failure, struct.error) and str(2**32 - 1) in str(failure):
        return "there are more than 2**32 tensors or events"
    if isinstance(failure, (sqlite3.Error, OSError)):
        return f"its file cannot be written: {failure}"
    return f"a fault of gradviz's: {failure!r}"
