"""A trace as it would be had the run stopped after event k."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import numpy as np

from gradviz.tracefile.reader import Chunk, ErrorInfo, PassInfo, Trace


class Prefix(Trace):
    """The first events of a trace, up to `last`. Names and places stay those of the whole; it shares the file of
    the trace that it was cut from, which has to stay open."""

    def __init__(self, trace: Trace, last: int) -> None:
        super().__init__(trace.path, trace._connection)
        self._chunks = [chunk for chunk in self._chunks if chunk[1] <= last]
        self._firsts = self._firsts[: len(self._chunks)]
        self.whole, self.count = trace, min(last + 1, trace.count)

    def _load_chunk(self, position: int) -> Chunk:
        chunk = self.whole._chunk(position)
        kept = chunk.snapshots["event"] < self.count
        ends = chunk.ends[: self.count - self._firsts[position]]
        return Chunk(chunk.links[: ends[-1]], ends, chunk.snapshots[kept], chunk.offsets[kept])

    def blobs(self, table: str) -> Iterator[bytes]:
        """As of the whole, without snapshots of later events."""
        for position, data in zip(range(len(self._chunks)), self.whole.blobs(table), strict=False):
            yield self._chunk(position).snapshots.tobytes() if table == "snapshots" else data

    @cached_property
    def events(self) -> np.ndarray:
        """The first events of the whole."""
        return self.whole.events[: self.count]

    @cached_property
    def passes(self) -> list[PassInfo]:
        """The passes that have begun; one that has not ended yet has no last event."""
        begun = [run for run in self.whole.passes if run.first < self.count]
        return [
            run
            if run.last is not None and run.last < self.count
            else replace(run, last=None, nodes=None, digest=None)
            for run in begun
        ]

    @cached_property
    def errors(self) -> list[ErrorInfo]:
        """The errors so far."""
        return [error for error in self.whole.errors if error.event < self.count]
