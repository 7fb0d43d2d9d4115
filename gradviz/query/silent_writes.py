"""Writes that autograd does not see, between the forward that saved a tensor and the backward that uses it.

A write through `.data` does not count a version of the tensor, and `w.data = v` gives it other memory. A node that
saved the tensor then runs with the new values, and raises nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.equal_elements import same_elements
from gradviz.query.query import Query
from gradviz.query.savers import counts_apart
from gradviz.query.tensors import State
from gradviz.sets import contained, distinct
from gradviz.tracefile import Snapshot

_FAR = 8  # the most views of views that are followed


@dataclass(frozen=True, slots=True)
class SilentWrite:
    """A write at `event` to a tensor that `node` had saved. `made` is the event that made the node, and `ran` the event
    at which it received its gradients. `before` and `after` are the values of the tensor at these two events."""

    event: int
    tensor: int
    node: int
    made: int
    ran: int
    before: Snapshot
    after: Snapshot


def silent_writes(query: Query) -> list[SilentWrite]:
    """The silent writes of a run whose values differ, in the order of the nodes. Use `query.of(silent_writes)`."""
    return list(_Search(query).found())


def used_otherwise(query: Query, at: int) -> dict[State, SilentWrite]:
    """The states of tensors that backward used with other values than forward, up to event `at`."""
    writes = (write for write in query.of(silent_writes) if write.ran <= at)
    return {query.tensors.after(write.tensor, write.made): write for write in writes}


class _Search:
    """Pairs the nodes that saved a tensor with the writes to its memory that count no version of it."""

    def __init__(self, query: Query) -> None:
        self.query, self.trace = query, query.trace
        self.bases = self.trace.states.bases_at(self.trace.states.firsts)

    def found(self) -> Iterator[SilentWrite]:
        """All silent writes."""
        writes = self._writes()
        if not writes:
            return
        nodes = self.trace.table(Kind.NODE)
        saved = nodes.lists("saved")
        near = contained(saved.elements[:, 0], [*writes, *self.bases])
        done: set[tuple[int, int]] = set()
        for owner, tensor in zip(saved.owners[near].tolist(), saved.elements[near, 0].tolist(), strict=True):
            made, node = int(nodes.events[owner]), int(nodes["node"][owner])
            memory, counter = self._memory_and_counter(tensor)
            if memory not in writes or (node, memory) in done or not self._is_whole(tensor, memory):
                continue
            done.add((node, memory))
            for event, writer in writes[memory]:
                ran = self._run_after(node, event) if event > made else 0
                if not ran or (writer == counter if writer else tensor != memory):
                    continue
                write = self._compared(event, memory, node, made, ran)
                if write is not None:
                    yield write
                    break

    def _writes(self) -> dict[int, list[tuple[int, int]]]:
        """The writes to each memory that a write may change unseen, each with the version counter that it counts; 0 for
        an assignment to `.data`, which counts none."""
        events, tensors = self.query.tensors.all_writes
        mutated = self.trace.table(Kind.MUTATED)
        assigned = set(mutated.events[self.trace.named(mutated["how"], ("data",))].tolist())
        places = {tensor: self._memory_and_counter(tensor) for tensor in distinct(tensors).tolist()}
        by_memory: dict[int, list[tuple[int, int]]] = {}
        several: set[int] = set()  # memories with a counter of their own beside that of the tensor
        for event, tensor in zip(events.tolist(), tensors.tolist(), strict=True):
            memory, counter = places[tensor]
            if event in assigned:
                by_memory.setdefault(tensor, []).append((event, 0))
                several.add(tensor)
                continue
            by_memory.setdefault(memory, []).append((event, counter))
            if counter != memory:
                several.add(memory)
        several.update(self._memory_and_counter(tensor)[0] for tensor in self.bases if self._apart(tensor))
        return {memory: by_memory[memory] for memory in several & by_memory.keys()}

    def _memory_and_counter(self, tensor: int) -> tuple[int, int]:
        """The tensor whose memory a tensor shares, and the tensor whose version counter it counts."""
        counter = 0
        for _ in range(_FAR):
            if not counter and self._apart(tensor):
                counter = tensor
            if tensor not in self.bases:
                break
            tensor = self.bases[tensor]
        return tensor, counter or tensor

    def _apart(self, tensor: int) -> bool:
        return tensor in self._perhaps_apart and counts_apart(self.query, tensor)

    @cached_property
    def _perhaps_apart(self) -> set[int]:
        """The tensors with a base, but for those of which the columns show that an op made them which is not `data`:
        a long run has a view for each call of a layer, and only few need to be decoded."""
        ops, makers = self.trace.table(Kind.OP), self.query.tensors.makers
        others = ops.events[~self.trace.named(ops["op"], ("data",))]
        tensors = np.array(list(self.bases), np.int64)
        events = np.array([makers.get(tensor, -1) for tensor in self.bases], np.int64)
        return set(tensors[~contained(events, others)].tolist())

    def _is_whole(self, tensor: int, memory: int) -> bool:
        """Whether a tensor has all elements of a memory, so that every write to the memory changes it."""
        size_of = self.trace.states.size_of
        return tensor == memory or size_of(tensor) == size_of(memory)

    def _run_after(self, node: int, event: int) -> int:
        """The event at which a node received its gradients after a write; 0 if it did not run after it."""
        received = self._received.get(node, [])
        return next((ran for ran in received if ran > event), 0)

    @property
    def _received(self) -> dict[int, list[int]]:
        return self.query.of(_received)

    def _compared(self, event: int, tensor: int, node: int, made: int, ran: int) -> SilentWrite | None:
        """The write, if the values of the tensor differ between forward and backward; else None."""
        before, after = self.query.memory.value(tensor, made), self.query.memory.value(tensor, ran)
        if before is None or after is None or _are_equal(before, after):
            return None
        return SilentWrite(event, tensor, node, made, ran, before, after)


def _received(query: Query) -> dict[int, list[int]]:
    """The events at which each node received gradients."""
    table = query.trace.table(Kind.RECEIVED)
    by_node: dict[int, list[int]] = {}
    for node, event in zip(table["node"].tolist(), table.events.tolist(), strict=True):
        by_node.setdefault(node, []).append(event)
    return by_node


def _are_equal(before: Snapshot, after: Snapshot) -> bool:
    """Whether two values are the same, as far as they were kept."""
    if before.array is not None and after.array is not None:
        return same_elements(before.array, after.array)
    if before.stats is None or after.stats is None:
        return True
    return repr(before.stats) == repr(after.stats)
