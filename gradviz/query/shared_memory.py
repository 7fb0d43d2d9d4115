"""The value of a tensor at a moment, even if it was written through another tensor on the same memory.

`w.grad.data.zero_()` writes to a tensor that `.data` made, and so changes `w.grad`; `w.data = v` gives `w` the memory
of `v`. The states of tensors name their bases. Only tensors that cover the whole of each other's memory are followed: a
write to a slice does not change the base here.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import replace
from functools import cached_property

import numpy as np

from gradviz.events.kinds import WHOLE, Kind
from gradviz.query.lookup import Lookup
from gradviz.query.sorted_tables import Log
from gradviz.sets import contained, distinct
from gradviz.tracefile import Snapshot

_SHARE, _WRITE = range(2)


class Memory(Lookup):
    """The memory of each tensor of one trace over time, and the writes into it."""

    def value(self, tensor: int, at: int) -> Snapshot | None:
        """The value of a tensor just after event `at`; None if it is unknown."""
        self.trace.reach_tensors([tensor], at)
        snapshot = self.trace.snapshot(tensor, at=at)
        if snapshot is None or tensor not in self.shared:
            return snapshot
        written = self._last_write(tensor, at)
        if written is None:
            return snapshot
        event, writer = written
        if writer == tensor or event <= self._own_change(tensor, at):
            return snapshot
        other = self.trace.snapshot(writer, at=event)
        if other is None or np.prod(other.shape) != np.prod(snapshot.shape):
            return snapshot
        array = other.array.reshape(snapshot.shape) if other.array is not None else None
        return replace(snapshot, array=array, told=other.told)

    def rows_of(self, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
        """The state with the value of each tensor just after the event beside it, by its row, as `value` finds it for
        one tensor; −1 if it is unknown. Reads the whole trace."""
        rows = self.trace.states.rows_of(tensors, events)
        order = np.argsort(tensors, kind="stable")
        order = order[contained(tensors[order], sorted(self.shared))]
        bounds = np.flatnonzero(np.diff(tensors[order])) + 1
        for places in np.split(order, bounds) if len(order) else ():
            rows[places] = self._rows_in_memory(int(tensors[places[0]]), events[places], rows[places])
        return rows

    def _rows_in_memory(self, tensor: int, events: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The rows of one tensor that shares memory; `rows` are the rows of its own states."""
        states, forms = self.trace.states, self.trace.forms
        homes, writes = self._shared
        had = homes.get(tensor, [])
        spans = [(0, tensor), *had] if not had or had[0][0] > 0 else had
        home = np.searchsorted([since for since, _ in spans], events, side="right") - 1
        rows = rows.copy()
        for place in distinct(home).tolist():
            written = writes.get(spans[place][1], [])
            here = np.flatnonzero((home == place) & (rows >= 0))
            if not written or not len(here):
                continue
            at, writers = np.array(written, np.int64).T
            last = np.searchsorted(at, events[here], side="right") - 1
            later = (last >= 0) & (writers[last] != tensor) & (at[last] > states.events[rows[here]])
            here, last = here[later], last[later]
            others = states.rows_of(writers[last], at[last])
            sizes = {number: math.prod(form.shape) for number, form in forms.items()}
            alike = [
                other >= 0 and sizes[int(states.forms[other])] == sizes[int(states.forms[row])]
                for other, row in zip(others.tolist(), rows[here].tolist(), strict=True)
            ]
            rows[here[alike]] = others[alike]
        return rows

    @cached_property
    def shared(self) -> frozenset[int]:
        """The tensors that shared memory with another tensor at any time."""
        homes = self._shared[0]
        return frozenset(homes) | {memory for had in homes.values() for _, memory in had if memory > 0}

    def share(self, tensor: int, other: int, at: int) -> bool:
        """Whether two tensors have the same memory just after event `at`."""
        if tensor == other:
            return True
        self.trace.reach_tensors([tensor, other], at)
        return self.home(tensor, at) == self.home(other, at)

    def changes(self, tensor: int) -> list[int]:
        """The events that gave a tensor other memory, and the events that wrote to its memory through any
        tensor, in order. Empty for a tensor that never shared its memory."""
        if tensor not in self._known_changes:
            self._known_changes[tensor] = self._found_changes(tensor)
        return self._known_changes[tensor]

    @cached_property
    def _known_changes(self) -> dict[int, list[int]]:
        """The changes of the tensors that have been asked for: a page asks for a parameter in each of its passes."""
        return {}

    def _found_changes(self, tensor: int) -> list[int]:
        homes, writes = self._shared
        had = homes.get(tensor, [])
        spans = [(0, tensor), *had] if not had or had[0][0] > 0 else had
        ends = [*(since for since, _ in spans[1:]), self.trace.count]
        found = {since for since, _ in had}
        for (since, memory), end in zip(spans, ends, strict=True):
            written = writes.get(memory, [])
            first, last = (bisect_left(written, (event,)) for event in (since, end))
            found.update(event for event, _ in written[first:last])
        return sorted(found)

    def home(self, tensor: int, at: int) -> int:
        """The memory of a tensor just after event `at`: the number of the tensor that the memory was made for, or a
        negative number."""
        homes = self._shared[0].get(tensor, [])
        position = bisect_right(homes, at, key=lambda home: home[0]) - 1
        return homes[position][1] if position >= 0 else tensor

    def _last_write(self, tensor: int, at: int) -> tuple[int, int] | None:
        writes = self._shared[1].get(self.home(tensor, at), [])
        position = bisect_right(writes, at, key=lambda write: write[0]) - 1
        return writes[position] if position >= 0 else None

    def _own_change(self, tensor: int, at: int) -> int:
        states = self.trace.states
        row = states.valued(tensor, at)
        return int(states.events[row]) if row >= 0 else 0

    @cached_property
    def _shared(self) -> tuple[dict[int, list[tuple[int, int]]], dict[int, list[tuple[int, int]]]]:
        """The memories that each tensor with shared memory has had, as (since, memory); and the writes into each of
        these memories, as (event, tensor)."""
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
        """The events about shared memory in order: (event, _SHARE or _WRITE, tensor, other tensor)."""
        states = self.trace.states
        whole = np.where(states.flags & WHOLE > 0, states.bases, 0)
        ever = distinct(states.tensors[whole > 0])
        ever_shared = contained(states.tensors, ever) & (states.forms > 0)
        bases = Log(
            states.tensors[ever_shared], states.events[ever_shared], whole[ever_shared]
        ).without_repeats()
        begun = np.append(True, bases.tensors[1:] != bases.tensors[:-1])[: len(bases.tensors)]
        changed = (bases.values > 0) | ~begun
        shares = np.stack(
            [
                bases.events[changed],
                np.full(int(changed.sum()), _SHARE),
                bases.tensors[changed],
                bases.values[changed],
            ],
            axis=1,
        )
        concerned = distinct(shares[:, 2:])
        again = contained(states.tensors, concerned) & (states.forms > 0)
        again &= np.isin(self.trace.kinds[states.events], [Kind.OP, Kind.MUTATED, Kind.ACCUMULATED])
        rows = np.flatnonzero(again)
        born = np.array([states.first(int(tensor)) for tensor in states.tensors[rows]], np.int64)
        rows = rows[rows != born]
        moved = set(zip(shares[:, 0].tolist(), shares[:, 2].tolist(), strict=True))
        happenings = [tuple(row) for row in shares.tolist()]
        happenings += [
            (event, _WRITE, tensor, 0)
            for event, tensor in zip(states.events[rows].tolist(), states.tensors[rows].tolist(), strict=True)
            if (event, tensor) not in moved
        ]
        return sorted(happenings)
