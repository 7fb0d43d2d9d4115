"""The ways to damage a trace, by their names, and what they share."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

from gradviz.tracefile.file import PAGE as PAGE

_STEPS = 10_000_000  # of SQLite's machine, in one query
JOURNAL = bytes.fromhex("d9d505f920a163d7")

Mutation = Callable[[Random, Path], None]
WAYS: dict[str, list[Mutation]] = {}


def way(name: str) -> Callable[[Mutation], Mutation]:
    """Put a mutation among those of this name."""

    def put(mutation: Mutation) -> Mutation:
        WAYS.setdefault(name, []).append(mutation)
        return mutation

    return put


def opened(path: Path) -> sqlite3.Connection:
    """A connection that writes at once, and does not wait for the disk. What an earlier mutation has made a query of
    without an end is broken off."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.set_progress_handler(lambda: True, _STEPS)
    try:
        connection.execute("PRAGMA synchronous = OFF")
    except sqlite3.Error:  # else it is closed while a trial looks at what files there are
        connection.close()
        raise
    return connection


def run(path: Path, *statements: str) -> None:
    with closing(opened(path)) as connection:
        for statement in statements:
            connection.execute(statement)
