"""A trace with its events in other chunks: as another machine, faster or slower, would have written it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from gradviz.tracefile import open_trace
from gradviz.tracefile.batch import ByKind
from gradviz.tracefile.chunks import NOT_PLAIN, Contents
from gradviz.tracefile.database import STATE
from gradviz.tracefile.expected import as_is


def recut(path: Path, to: Path, lengths: Sequence[int]) -> Path:
    """A copy of a trace whose chunks have so many events, again and again."""
    shutil.copyfile(path, to)
    with open_trace(path) as trace:
        places = range(len(trace.chunks))
        rows = trace.events
        links = np.concatenate([trace.chunks.one("links", place) for place in places])
        states = np.concatenate([trace.chunks.one("states", place).view(STATE) for place in places])
        values = b"".join(trace.chunks.values(place) for place in places)
        dtypes = {number: form.dtype for number, form in trace.forms.items()}
        plain = [number for number, text in trace.strings.items() if text in NOT_PLAIN]
    link_ends = np.concatenate([[0], np.cumsum(rows["links"], dtype=np.int64)])
    value_ends = np.concatenate([[0], np.cumsum(states["length"], dtype=np.int64)])
    contents = Contents()
    with closing(sqlite3.connect(to)) as connection, connection:
        for table in ("chunks", "events", "links", "states", "payloads", "contents", "site_ops"):
            connection.execute(f"DELETE FROM {table}")
        first, number = 0, 0
        while first < len(rows):
            end = min(first + lengths[number % len(lengths)], len(rows))
            number += 1
            low, high = np.searchsorted(states["event"], [first, end])
            own = states[low:high]
            valued = np.flatnonzero(own["what"] >> 8 != 0) + low
            payload = [values[value_ends[at] : value_ends[at + 1]] for at in valued.tolist()]
            connection.execute("INSERT INTO chunks VALUES (?, ?, ?, 0.0, ?)", (number, first, end - first, number))
            arrays = {
                "events": rows[first:end].tobytes(),
                "links": links[link_ends[first] : link_ends[end]].tobytes(),
                "states": own.tobytes(),
                "payloads": values[value_ends[low] : value_ends[high]],
            }
            for table, data in arrays.items():
                connection.execute(f"INSERT INTO {table} VALUES (?, ?)", (number, as_is(data)))
            told = contents.chunk(ByKind(first, rows[first:end]), own, payload, dtypes, plain)
            connection.execute("INSERT INTO contents VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (number, *told))
            connection.executemany("INSERT INTO site_ops VALUES (?, ?, 0)", contents.new_ops)
            connection.executemany("UPDATE site_ops SET is_last = (op = ?) WHERE site = ?", contents.changed_ops)
            first = end
    return to
