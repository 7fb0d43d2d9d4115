"""The errors about a file that cannot be read as a trace."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gradviz.errors import GradvizError

UNREADABLE = (sqlite3.Error, ValueError, MemoryError)  # the exceptions from reading a damaged trace
_LONGEST = 120  # the most characters of a cause
_LOCKED = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NOT_READ = {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY}
_CAUSES = {
    sqlite3.SQLITE_INTERRUPT: "reading it takes more work than its size allows",
    sqlite3.SQLITE_TOOBIG: "it holds more than its size allows",
}


class TraceError(GradvizError):
    """A file cannot be read as a trace; the message is one line for the user."""


def code_of(error: Exception) -> int:
    """SQLite's code of an error; 0 if it has none, as the error about a text that is no UTF-8."""
    return getattr(error, "sqlite_errorcode", 0)


def damaged(path: Path, error: Exception) -> TraceError:
    """The error for a file that is a trace, but cannot be read through."""
    primary = code_of(error) & 0xFF  # the other bits are details
    if primary in _LOCKED:
        return TraceError(f"{path} is locked by another program, which is writing to it: try again")
    cause = " ".join(str(error).split())[:_LONGEST]  # SQLite quotes statements of several lines
    if primary in _NOT_READ:
        return TraceError(f"{path} cannot be read: {cause}")
    return TraceError(f"{path} is damaged or truncated ({_CAUSES.get(primary, cause)}): record it again")


@contextmanager
def told_of(path: Path) -> Iterator[None]:
    """Turn the exceptions from reading a damaged trace into TraceError."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> TraceError:
    """The error for an exception from reading a damaged trace."""
    if isinstance(error, MemoryError):
        return TraceError(f"{path} takes more memory to read than there is")
    return damaged(path, error)
