"""Opens a file as a trace, if it is one that this version reads; also if its run was killed during a commit."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from gradviz.errors import nearest
from gradviz.system.paths import as_argument
from gradviz.tracefile.database import Database, TraceError, bound, code_of, damaged, opened, rows_of
from gradviz.tracefile.file import first_bytes
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.schema import APPLICATION_ID, VERSION

# SQLite's file header: its magic string, how it is written and read, and further on the user version and the
# application id.
_HEADER = struct.Struct(">16s2x2s40xI4xI")
_ROLLBACK_JOURNAL = b"\1\1"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
# The answers of SQLite to a reader that may not roll back a commit that a killed process left half done.
_NEEDS_ROLLBACK = {sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_CANTOPEN}

_Opened = TypeVar("_Opened", bound=Trace)


def newest_trace() -> Path:
    """The newest `*.gradviz` in the current folder. Raises TraceError if there is none."""
    traces = sorted(Path().glob("*.gradviz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise TraceError("no TRACE given, and no *.gradviz here (make one with: gradviz trace SCRIPT)")
    return traces[-1]


def open_trace(path: Path | str) -> Trace:
    """Open a trace for reading. Raises TraceError, in one line, if the file is missing or is no trace."""
    return opened_as(Trace, path)


def opened_as(kind: type[_Opened], path: Path | str) -> _Opened:
    """Open a trace for reading, as an object of a class of traces. Raises TraceError."""
    path = Path(path)
    try:
        _check_header(path, _header_of(path))
        connection = _connect(path)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None
    except (sqlite3.Error, ValueError) as error:
        raise damaged(path, error) from None
    try:
        return kind(path, connection)
    except BaseException:
        connection.close()
        raise


def _header_of(path: Path) -> bytes:
    """The first bytes of a file. Anything but a regular file is not opened."""
    if path.is_dir():
        raise TraceError(f"{path} is a directory, not a trace")
    if not path.exists():
        near = nearest(path.stem, sorted(other.stem for other in path.parent.glob("*.gradviz")))
        hint = f" (did you mean {path.with_name(near)}.gradviz?)" if near else ""
        raise TraceError(f"no such file: {path}{hint}")
    if not path.is_file():
        raise TraceError(f"{path} is not a regular file, so it is no trace")
    try:
        return first_bytes(path, _HEADER.size)
    except PermissionError:
        raise TraceError(f"{path} may not be read: permission denied") from None


def _check_header(path: Path, header: bytes) -> None:
    if not header:
        raise TraceError(f"{path} is empty: not a gradviz trace")
    magic, journaling, version, application = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    if magic != b"SQLite format 3\0" or application != APPLICATION_ID:
        script = as_argument(path) if path.suffix == ".py" else "SCRIPT"
        raise TraceError(f"{path} is not a gradviz trace (make one with: gradviz trace {script})")
    if journaling != _ROLLBACK_JOURNAL:  # reading a write-ahead log leaves files behind
        raise TraceError(f"{path} was changed by another program: gradviz writes no write-ahead log")
    if version < VERSION:
        raise TraceError(
            f"{path} was written by an older gradviz (trace format {version}; this one reads {VERSION}): "
            "record it again"
        )
    if version > VERSION:
        raise TraceError(
            f"{path} was written by a newer gradviz (trace format {version}, this one reads {VERSION}): "
            "update gradviz (in its checkout: git pull && pip install .)"
        )


def _connect(path: Path) -> Database:
    """A read-only connection to a trace. It is to a recovered copy if the run was killed during a commit, and to a copy
    if events are removed from the trace while they are recorded."""
    try:
        connection = opened(path)
    except sqlite3.OperationalError as error:
        journal = Path(f"{path.resolve()}-journal")
        if code_of(error) not in _NEEDS_ROLLBACK or not journal.is_file():
            raise
        return _recovered(path.resolve(), journal)
    return _copied(connection) if _is_changed_while_read(connection) else connection


def _is_changed_while_read(connection: Database) -> bool:
    """Whether a recording may remove events from the trace (`--last`): the parts of it would not fit each other."""
    meta = dict(rows_of(connection, "SELECT key, value FROM meta WHERE key IN ('last', 'ended')"))
    return meta.get("last", "") != "" and meta.get("ended") == ""


def _copied(connection: Database) -> Database:
    """A connection to a private copy of the present state. The copy is deleted with the connection."""
    copy: Database = sqlite3.connect("", check_same_thread=False, isolation_level=None, factory=Database)
    with closing(connection):
        connection.backup(copy)
    bound(copy, connection.bytes)
    return copy


def _recovered(path: Path, journal: Path) -> Database:
    """A connection to a private copy of a trace, in which the commit that was cut off is rolled back.

    The original is not opened for writing: a journal from a stranger can name files that SQLite's recovery then
    deletes (section 5 of sqlite.org/atomiccommit.html). Raises ValueError for such a journal, OSError if there is no
    room for the copy."""
    with tempfile.TemporaryDirectory(prefix="gradviz-", ignore_cleanup_errors=True) as folder:
        needed = 2 * path.stat().st_size + journal.stat().st_size
        if needed > shutil.disk_usage(folder).free:
            raise OSError(
                f"its run was killed during a commit; to undo that takes {needed:,} bytes in {folder}"
            )
        copy = Path(folder, path.name)
        copied_journal = Path(f"{copy}-journal")
        shutil.copyfile(path, copy)
        shutil.copyfile(journal, copied_journal)
        with copied_journal.open("rb") as file:
            file.seek(-min(len(_JOURNAL_MAGIC), journal.stat().st_size), os.SEEK_END)
            if file.read() == _JOURNAL_MAGIC:  # the end of a journal that names a super-journal
                raise ValueError("its journal names another file, which no recording writes")
        recovering = sqlite3.connect(copy)
        try:
            recovering.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        finally:
            recovering.close()
        return _copied(opened(copy))  # closes the copy, so that its file can be deleted
