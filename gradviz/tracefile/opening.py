"""Opening a trace: is it one, can this version read it, was its run killed in the middle of a commit?"""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path

from gradviz.tracefile.errors import TraceError, damaged
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.schema import APPLICATION_ID, VERSION

# SQLite's file header: its magic string, and further on the user version and the application id.
_HEADER = struct.Struct(">16s44xI4xI")


def open_trace(path: Path | str) -> Trace:
    """Open a trace for reading. Raises TraceError, in one line, where there is none or it is none."""
    path = Path(path)
    if path.is_dir():
        raise TraceError(f"{path} is a directory, not a trace")
    if not path.exists():
        raise TraceError(f"no such file: {path}")
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
    except PermissionError:
        raise TraceError(f"{path} may not be read: permission denied") from None
    if not header:
        raise TraceError(f"{path} is empty: not a gradviz trace")
    magic, version, application = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    if magic != b"SQLite format 3\0" or application != APPLICATION_ID:
        raise TraceError(f"{path} is not a gradviz trace (make one with: gradviz trace SCRIPT)")
    if version > VERSION:
        raise TraceError(
            f"{path} was written by a newer gradviz (trace format {version}, this one reads up to {VERSION}): "
            "upgrade with pip install -U gradviz"
        )
    try:
        return Trace(path, _connect(path))
    except (sqlite3.Error, ValueError, KeyError, TypeError) as error:
        raise damaged(path, error) from None


def _connect(path: Path) -> sqlite3.Connection:
    """A read-only connection. A run that was killed in the middle of a commit is rolled back first."""
    journal = Path(f"{path}-journal")
    if journal.exists() and journal.stat().st_size:
        with sqlite3.connect(path) as healing:
            healing.execute("SELECT count(*) FROM meta").fetchone()
    connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    return connection
