"""All snapshots of a trace at once, as columns: for questions about a million events."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from gradviz.events.values import stats_table
from gradviz.tracefile.errors import damaged
from gradviz.tracefile.reader import Trace
from gradviz.tracefile.schema import DTYPES, ELEMENTS, SNAPSHOT, STATS

_STATISTICS = 7


class Snapshots:
    """The snapshots of a trace in the order they were taken: `tensors`, `events`, `versions`, `shapes` (numbers of
    the trace's table) and `stats`, one row of seven doubles each (NaN where no value was kept)."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        rows = [np.frombuffer(data, SNAPSHOT) for data in trace.blobs("snapshots")]
        self._lengths = [len(part) for part in rows]
        table = np.concatenate([np.zeros(0, SNAPSHOT), *rows])
        self.tensors, self.events = table["tensor"].copy(), table["event"].copy()
        self.versions, self.shapes = table["version"].copy(), table["shape"].copy()
        self._what, self._bytes = table["what"].copy(), table["length"].copy()
        if np.any(self.events >= max(trace.count, 1)):
            raise damaged(trace.path, ValueError("a snapshot of an event that there is not"))

    def __len__(self) -> int:
        return len(self.tensors)

    @cached_property
    def stats(self) -> np.ndarray:
        """min, max, mean, rms, nan, inf and zeros of each."""
        found = np.full((len(self), _STATISTICS), np.nan)
        start = 0
        for data, length in zip(self.trace.blobs("payloads"), self._lengths, strict=True):
            self._read(
                found[start : start + length], slice(start, start + length), np.frombuffer(data, np.uint8)
            )
            start += length
        return found

    def _read(self, found: np.ndarray, here: slice, payload: np.ndarray) -> None:
        """The statistics of one chunk: those that were kept, and those of what was kept in full, all of a kind at
        once."""
        what, lengths = self._what[here], self._bytes[here].astype(np.int64)
        offsets = np.cumsum(lengths) - lengths
        if len(lengths) and offsets[-1] + lengths[-1] > len(payload):
            raise damaged(self.trace.path, ValueError("values are missing"))
        kinds = lengths << 16 | what >> 24 << 8 | what & 0xFF
        for kind in np.unique(kinds).tolist():
            length, grade, dtype = kind >> 16, kind >> 8 & 0xFF, kind & 0xFF
            rows = np.flatnonzero(kinds == kind)
            if grade not in (ELEMENTS, STATS) or not length:
                continue
            whole = np.all(np.diff(offsets[rows]) == length)
            first = int(offsets[rows[0]])
            packed = (
                payload[first : first + length * len(rows)].reshape(len(rows), length)
                if whole
                else payload[offsets[rows][:, None] + np.arange(length)]
            )
            found[rows] = self._statistics(packed, grade, dtype)

    def _statistics(self, packed: np.ndarray, grade: int, dtype: int) -> np.ndarray:
        try:
            if grade == STATS:
                return packed.view(np.float64).reshape(len(packed), _STATISTICS)
            name = DTYPES[dtype]
            if name == "bfloat16":
                return stats_table((packed.view(np.uint16).astype(np.uint32) << 16).view(np.float32))
            return stats_table(packed.view(name))
        except (ValueError, IndexError, TypeError) as error:
            raise damaged(self.trace.path, error) from None

    @cached_property
    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Where each snapshot stands when they are sorted by tensor and event, and those pairs as one number."""
        pairs = self.tensors.astype(np.int64) << 32 | self.events
        order = np.argsort(pairs, kind="stable")
        return order.astype(np.int32), pairs[order]

    def rows_of(self, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
        """The newest snapshot of each tensor just after the event beside it; -1 where there is none."""
        order, pairs = self._order
        if not len(order):
            return np.full(len(tensors), -1)
        wanted = tensors.astype(np.int64) << 32 | events
        at = np.searchsorted(pairs, wanted, side="right") - 1
        known = (at >= 0) & (pairs[at] >> 32 == tensors) & (tensors > 0)
        return np.where(known, order[at], -1)
