"""The file of a recording: made, locked, written in transactions, ended."""

from __future__ import annotations

import ctypes
import os
import sqlite3
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gradviz.events.values import WITH_ELEMENTS
from gradviz.system.descriptors import Watched, first_bytes_of_open, high_descriptors
from gradviz.tracefile.claim import MOMENT, locked_file, stays_locked
from gradviz.tracefile.schema import APPLICATION_ID, TABLES, VERSION

# Bytes of a page of the database: small pages waste less at the end of an array, large pages are written faster.
PAGE, LARGE_PAGE = 2048, 16384
_CACHE = 14 << 10  # KiB of pages, for large pages: the values of a chunk, so that each page is written once


class TraceFile:
    """A new, empty trace at `path`, in place of an earlier one there. Raises OSError for any other file, and for a
    trace that another run is recording."""

    def __init__(self, path: Path, meta: Mapping[str, str]) -> None:
        self.path = path.absolute()
        try:
            with high_descriptors():
                self.lock = locked_file(path)
                self.connection = _connected(
                    self.path, LARGE_PAGE if meta.get("values") in WITH_ELEMENTS else PAGE
                )
            self.identity = _identity(os.fstat(self.lock))
            _recorded[self.identity] = self.lock
            self.connection.executemany("INSERT INTO meta VALUES (?, ?)", storable_items(meta))
            self.descriptors = Watched(self.path)
        except sqlite3.Error as error:
            raise OSError(f"cannot write {path}: {error}") from error

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
        """Close the file. If the program has closed it, its descriptor is now the program's own."""
        if not self.descriptors.are_ours:
            self.abandon()
            return
        _recorded.pop(self.identity, None)
        with suppress(sqlite3.Error):
            self.connection.close()
        os.close(self.lock)

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
    connection.executescript(
        f"PRAGMA page_size = {page}; PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = OFF;"
        f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
        f"BEGIN; {TABLES} COMMIT;"
    )
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
