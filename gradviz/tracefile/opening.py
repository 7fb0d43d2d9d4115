"""Opens a file as a trace, if it is one that this version reads; also if its run was killed during a commit. A
folder or a pattern names the traces of a run of several processes."""

import os
import re
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from glob import glob, has_magic
from pathlib import Path
from typing import TypeVar

from gradviz.errors import nearest
from gradviz.system.paths import as_argument
from gradviz.tracefile import database
from gradviz.tracefile.file import first_bytes
from gradviz.tracefile.reader import Trace

# SQLite's file header: its magic string, how it is written and read, and further on the user version and the
# application id.
_HEADER = struct.Struct(">16s2x2s40xI4xI")
_ROLLBACK_JOURNAL = b"\1\1"
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
# The answers of SQLite to a reader that may not roll back a commit that a killed process left half done.
_NEEDS_ROLLBACK = {sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_CANTOPEN}

_Opened = TypeVar("_Opened", bound=Trace)


def newest_trace(folder: Path = Path()) -> Path:
    """The newest `*.gradviz` in a folder: the current one. Raises TraceError if there is none."""
    traces = sorted(folder.glob("*.gradviz"), key=lambda path: path.stat().st_mtime)
    if not traces:
        raise database.TraceError("no TRACE given, and no *.gradviz here (make one with: gradviz trace SCRIPT)")
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
        raise database.TraceError(f"{path} cannot be read: {error.strerror or error}") from None
    except (sqlite3.Error, ValueError) as error:
        raise database.damaged(path, error) from None
    try:
        return kind(path, connection)
    except BaseException:
        connection.close()
        raise


def _header_of(path: Path) -> bytes:
    """The first bytes of a file. Anything but a regular file is not opened."""
    if path.is_dir():
        raise database.TraceError(f"{path} is a directory, not a trace")
    if not path.exists():
        near = nearest(path.stem, sorted(other.stem for other in path.parent.glob("*.gradviz")))
        hint = f" (did you mean {path.with_name(near)}.gradviz?)" if near else ""
        raise database.TraceError(f"no such file: {path}{hint}")
    if not path.is_file():
        raise database.TraceError(f"{path} is not a regular file, so it is no trace")
    try:
        return first_bytes(path, _HEADER.size)
    except PermissionError:
        raise database.TraceError(f"{path} may not be read: permission denied") from None


def _check_header(path: Path, header: bytes) -> None:
    if not header:
        raise database.TraceError(f"{path} is empty: not a gradviz trace")
    magic, journaling, version, application = _HEADER.unpack(header.ljust(_HEADER.size, b"\0"))
    if magic != b"SQLite format 3\0" or application != database.APPLICATION_ID:
        script = as_argument(path) if path.suffix == ".py" else "SCRIPT"
        raise database.TraceError(f"{path} is not a gradviz trace (make one with: gradviz trace {script})")
    if journaling != _ROLLBACK_JOURNAL:  # reading a write-ahead log leaves files behind
        raise database.TraceError(f"{path} was changed by another program: gradviz writes no write-ahead log")
    if version < database.VERSION:
        raise database.TraceError(
            f"{path} was written by an older gradviz (trace format {version}; this one reads {database.VERSION}): "
            "record it again"
        )
    if version > database.VERSION:
        raise database.TraceError(
            f"{path} was written by a newer gradviz (trace format {version}, this one reads {database.VERSION}): "
            "update gradviz (in its checkout: git pull && pip install .)"
        )


def _connect(path: Path) -> database.Database:
    """A read-only connection to a trace. It is to a recovered copy if the run was killed during a commit, and to a copy
    if events are removed from the trace while they are recorded."""
    try:
        connection = database.opened(path)
    except sqlite3.OperationalError as error:
        journal = Path(f"{path.resolve()}-journal")
        if database.code_of(error) not in _NEEDS_ROLLBACK or not journal.is_file():
            raise
        return _recovered(path.resolve(), journal)
    return _copied(connection) if _is_changed_while_read(connection) else connection


def _is_changed_while_read(connection: database.Database) -> bool:
    """Whether a recording may remove events from the trace (`--last`): the parts of it would not fit each other."""
    meta = dict(database.rows_of(connection, "SELECT key, value FROM meta WHERE key IN ('last', 'ended')"))
    return meta.get("last", "") != "" and meta.get("ended") == ""


def _copied(connection: database.Database) -> database.Database:
    """A connection to a private copy of the present state. The copy is deleted with the connection."""
    copy: database.Database = sqlite3.connect(
        "", check_same_thread=False, isolation_level=None, factory=database.Database
    )
    with closing(connection):
        connection.backup(copy)
    database.bound(copy, connection.bytes)
    return copy


def _recovered(path: Path, journal: Path) -> database.Database:
    """A connection to a private copy of a trace, in which the commit that was cut off is rolled back.

    The original is not opened for writing: a journal from a stranger can name files that SQLite's recovery then
    deletes (section 5 of sqlite.org/atomiccommit.html). Raises ValueError for such a journal, OSError if there is no
    room for the copy."""
    with tempfile.TemporaryDirectory(prefix="gradviz-", ignore_cleanup_errors=True) as folder:
        needed = 2 * path.stat().st_size + journal.stat().st_size
        if needed > shutil.disk_usage(folder).free:
            raise OSError(f"its run was killed during a commit; to undo that takes {needed:,} bytes in {folder}")
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
        return _copied(database.opened(copy))  # closes the copy, so that its file can be deleted


ENDING = ".gradviz"
_RANK = re.compile(r"\.rank(\d+)")


def traces_of(path: Path) -> list[Path]:
    """The traces that a path names, by rank: the traces of a folder or of a pattern, else the path itself. Raises
    TraceError if there is none, or if there are traces of several runs."""
    if path.is_dir():
        traces, where = list(path.glob(f"*{ENDING}")), f"in the folder {path}"
    elif has_magic(str(path)) and not path.exists():
        traces, where = [Path(name) for name in glob(str(path))], f"with a name like {path}"
    else:
        return [path]
    if not traces and path.is_dir():
        raise database.TraceError(f"{path} is a directory, and there is no trace in it")
    if not traces:
        raise database.TraceError(f"there is no trace {where}")
    ordered = in_order(traces)
    if ordered is None and len(traces) > 1:
        runs = sorted({_run_of(trace) for trace in traces})
        raise database.TraceError(f"there are traces of several runs {where}: {', '.join(runs[:3])}; name those of one")
    return ordered or traces


def in_order(paths: Iterable[Path]) -> list[Path] | None:
    """The traces of the ranks of one run by their ranks, 2 before 10; None if they are not of one run. Their names show
    it, or else the traces themselves."""
    known = list(paths)
    if _are_named_alike(known):
        return sorted(known, key=lambda path: (rank_in(path), path.name))
    if len(known) < 2:
        return None
    try:
        ranks = _ranks_of([_meta_of(path) for path in known])
    except database.TraceError:
        return None
    return [path for _, path in sorted(zip(ranks, known, strict=True))] if ranks else None


def are_of_one_run(traces: Sequence[Trace]) -> bool:
    """Whether several open traces are those of the ranks of one run."""
    if len(traces) < 2:
        return False
    return _are_named_alike([trace.path for trace in traces]) or bool(_ranks_of([trace.meta for trace in traces]))


def _are_named_alike(paths: Sequence[Path]) -> bool:
    """Whether paths differ only in the ranks in their names."""
    have_ranks = all(rank_in(path) >= 0 for path in paths)
    return have_ranks and len({(path.parent, _run_of(path)) for path in paths}) == 1


def _ranks_of(metas: Sequence[Mapping[str, str]]) -> list[int]:
    """The ranks that traces record, if they are of one run: one script, one number of processes, each rank once. Else
    empty."""
    ranks = [meta.get("rank", "") for meta in metas]
    runs = {(meta.get("script", ""), meta.get("world", "")) for meta in metas}
    is_one = len(runs) == 1 and all(map(str.isdigit, ranks)) and len(set(ranks)) == len(ranks)
    return list(map(int, ranks)) if is_one else []


def _meta_of(path: Path) -> Mapping[str, str]:
    with open_trace(path) as trace:
        return trace.meta


def rank_in(path: Path) -> int:
    """The rank in the name of a trace; -1 if there is none."""
    match = _RANK.search(path.name)
    return int(match[1]) if match else -1


def pattern_of(name: str) -> str:
    """The pattern for the names of the traces of all ranks, by the name of one trace: `train.rank*.gradviz`."""
    return _RANK.sub(".rank*", name)


def _run_of(path: Path) -> str:
    """The name of a trace without its rank."""
    return _RANK.sub("", path.name)
