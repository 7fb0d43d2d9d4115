"""Reading a trace, a stranger's too, changes no file, leaves none behind and deletes none."""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
from pathlib import Path

import pytest

import gradviz.engine as torch
from gradviz.sources.record import record
from gradviz.tracefile import TraceError, open_trace
from gradviz.tracefile.file import PAGE

MAGIC = bytes.fromhex("d9d505f920a163d7")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A recorded trace in a directory of its own."""
    folder = tmp_path / "received"
    folder.mkdir()
    path = folder / "run.gradviz"
    with record(path):
        (torch.tensor([1.0, 2.0], requires_grad=True) ** 2).sum().backward()
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def cut_off_in_a_commit(path: Path, tmp_path: Path) -> Path:
    """The files that a process leaves that is killed while it commits: pages half written, a journal to undo them."""
    folder = tmp_path / "killed"
    folder.mkdir()
    writer = sqlite3.connect(path, isolation_level=None)
    writer.executescript("PRAGMA cache_size = 1; PRAGMA journal_mode = TRUNCATE; BEGIN;")
    writer.execute("UPDATE meta SET value = 'half done'")
    writer.execute("UPDATE payloads SET data = zeroblob(100000)")
    for file in path.parent.iterdir():
        shutil.copy(file, folder)
    writer.execute("ROLLBACK")
    writer.close()
    killed = folder / path.name
    assert Path(f"{killed}-journal").stat().st_size > PAGE
    assert killed.read_bytes() != path.read_bytes()
    return killed


def test_a_commit_that_was_cut_off_is_undone_for_the_reader_alone(trace: Path, tmp_path: Path) -> None:
    killed = cut_off_in_a_commit(trace, tmp_path)
    before = files(killed.parent)
    with open_trace(trace) as whole, open_trace(killed) as read:
        assert read.meta == whole.meta
        assert list(read) == list(whole)
    assert files(killed.parent) == before


def test_a_journal_that_names_a_super_journal_deletes_nothing(trace: Path, tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work\n")
    name = os.fsencode(thesis)
    header = MAGIC + struct.pack(">IIIII", 0, 1234, trace.stat().st_size // PAGE, 512, PAGE)
    super_journal = struct.pack(">I", (1 << 30) // PAGE + 1) + name + struct.pack(">II", len(name), sum(name))
    Path(f"{trace}-journal").write_bytes(header.ljust(512, b"\0") + super_journal + MAGIC)
    before = files(trace.parent)
    with pytest.raises(TraceError, match="journal names another file"):
        open_trace(trace)
    assert thesis.read_text() == "years of work\n"
    assert files(trace.parent) == before


def test_a_trace_turned_to_a_write_ahead_log_leaves_no_files(trace: Path) -> None:
    changed = sqlite3.connect(trace)
    changed.execute("PRAGMA journal_mode = WAL")
    changed.close()
    with pytest.raises(TraceError, match="changed by another program"):
        open_trace(trace)
    assert list(files(trace.parent)) == [trace.name]


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gradviz"
    os.mkfifo(pipe)
    with pytest.raises(TraceError, match="not a regular file"):
        open_trace(pipe)
