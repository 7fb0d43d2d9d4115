"""What a tensor holds at a moment, also where it was written through another tensor on the same memory.

`w.grad.data.zero_()` writes to a tensor that `.data` made, and with it to `w.grad`; `w.data = v` gives `w` the
memory of `v`. Only tensors that cover the whole of each other's memory are followed: a slice that is written to
does not change here what it was cut from.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.listener import VIEW
from gradviz.tracefile import Snapshot, Trace

WHOLE_VIEWS = ("detach", "alias", "reshape", "view", "squeeze", "unsqueeze")
REBINDS = "data"  # `w.data = v`, as a Mutated event says it

_SHARE, _REBIND, _WRITE = range(3)


class Memory:
    """The memories of one trace's tensors, and what was written into each when."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    def value(self, tensor: int, at: int) -> Snapshot | None:
        """What a tensor was just after event `at`; None where nothing is known of it."""
        own = self.trace.snapshot(tensor, at=at)
        written = self._last_write(tensor, at) if own is not None else None
        if own is None or written is None:
            return own
        event, writer = written
        if writer == tensor or event <= self._own_change(tensor, at):
            return own
        other = self.trace.snapshot(writer, at=event)
        if other is None or np.prod(other.shape) != np.prod(own.shape):
            return own
        array = other.array.reshape(own.shape) if other.array is not None else None
        return replace(own, array=array, stats=other.stats)

    @cached_property
    def shared(self) -> frozenset[int]:
        """The tensors that have ever shared memory with another."""
        homes = self._shared[0]
        return frozenset(homes) | {memory for had in homes.values() for _, memory in had if memory > 0}

    def share(self, tensor: int, other: int, at: int) -> bool:
        """Whether two tensors are the same memory at a moment."""
        return tensor == other or self.home(tensor, at) == self.home(other, at)

    def changes(self, tensor: int) -> list[int]:
        """The events that gave a tensor other memory, and those that wrote to its memory through whatever tensor;
        none for a tensor that never shared its memory."""
        homes, writes = self._shared
        had = homes.get(tensor, [])
        spans = [(0, tensor), *had] if not had or had[0][0] > 0 else had
        ends = [*(since for since, _ in spans[1:]), self.trace.count]
        found = {since for since, _ in had}
        for (since, memory), end in zip(spans, ends, strict=True):
            found.update(event for event, _ in writes.get(memory, ()) if since <= event < end)
        return sorted(found)

    def home(self, tensor: int, at: int) -> int:
        """Which memory a tensor has at a moment: the number of the tensor it was made for, or below 0."""
        homes = self._shared[0].get(tensor, [])
        position = bisect_right(homes, at, key=lambda home: home[0]) - 1
        return homes[position][1] if position >= 0 else tensor

    def _last_write(self, tensor: int, at: int) -> tuple[int, int] | None:
        writes = self._shared[1].get(self.home(tensor, at), [])
        position = bisect_right(writes, at, key=lambda write: write[0]) - 1
        return writes[position] if position >= 0 else None

    def _own_change(self, tensor: int, at: int) -> int:
        changes = self.trace.changes(tensor)
        position = int(np.searchsorted(changes, at, side="right"))
        return int(changes[position - 1]) if position else self.trace.born(tensor) or 0

    @cached_property
    def _shared(self) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, int]]]]:
        """For tensors that share memory the memories they have had, as (since, memory); and for each such memory
        what was written into it, as (event, tensor)."""
        homes: dict[int, list[tuple[int, int]]] = {}
        writes: dict[int, list[tuple[int, int]]] = defaultdict(list)

        def home(tensor: int) -> int:
            return homes[tensor][-1][1] if tensor in homes else tensor

        for event, what, tensor, other in self._happenings():
            if what == _WRITE:
                writes[home(tensor)].append((event, tensor))
            else:
                homes.setdefault(tensor, []).append((event, home(other) if other else -event - 1))
        return homes, dict(writes)

    def _happenings(self) -> list[tuple[int, int, int, int]]:
        """What concerns memory that is shared, in order: (event, what, tensor, other tensor)."""
        trace, events = self.trace, self.trace.events
        made = trace.indices(Kind.TENSOR)
        made = made[events["object"][made] > 0]
        mutated, accumulated = trace.indices(Kind.MUTATED), trace.indices(Kind.ACCUMULATED)
        rebinds = events["name"][mutated] == self._text(REBINDS)
        found = [_rows(made, _SHARE, events["subject"][made], events["object"][made]), self._views()]
        found.append(self._rebinds(mutated[rebinds]))
        shared = np.unique(np.concatenate([part[:, 2:].ravel() for part in found]))
        for written, column in ((mutated[~rebinds], "subject"), (accumulated, "object")):
            tensors = events[column][written]
            here = np.isin(tensors, shared)
            found.append(_rows(written[here], _WRITE, tensors[here], 0))
        rows = np.concatenate(found)
        return [tuple(row) for row in rows[np.lexsort((rows[:, 1], rows[:, 0]))].tolist()]

    def _views(self) -> np.ndarray:
        """The ops whose output is a view of the whole of their input."""
        events = self.trace.events
        ops = self.trace.indices(Kind.OP)
        names = [self._text(name) for name in WHOLE_VIEWS]
        ops = ops[np.isin(events["name"][ops], names) & (events["head"][ops] >> 8 & VIEW > 0)]
        links, counts = self.trace.links(ops)
        starts = np.cumsum(counts) - counts
        inputs = links[starts].astype(np.int64)
        whole = (inputs > 0) & (inputs + 3 < counts)  # it has an input and an output
        ops, starts, inputs = ops[whole], starts[whole], inputs[whole]
        return _rows(ops, _SHARE, links[starts + 3 + inputs], links[starts + 3])

    def _rebinds(self, mutated: np.ndarray) -> np.ndarray:
        sources, _ = self.trace.links(mutated)
        return _rows(mutated, _REBIND, self.trace.events["subject"][mutated], sources)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {text: number for number, text in self.trace.strings.items()}

    def _text(self, text: str) -> int:
        return self._numbers.get(text, -1)


def _rows(events: np.ndarray, what: int, tensors: np.ndarray, others: np.ndarray | int) -> np.ndarray:
    rows = np.empty((len(events), 4), np.int64)
    rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] = events, what, tensors, others
    return rows
