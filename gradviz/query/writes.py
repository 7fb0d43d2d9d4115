"""The writes to leaves, through any tensor on their memory: `p.data.add_(...)` changes `p`. Each has a time (a write
before the first gradient of a leaf is its initialisation), an author and a place. Also the nodes that still need the
value that is written over, and the writes between forward and backward that autograd does not see."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.events.field_types import Saved
from gradviz.events.kinds import UNWATCHED, Accumulated, Kind, NodeMade, OpRan
from gradviz.query.copies import original, same_elements
from gradviz.query.flow import reach
from gradviz.query.ops import COPYING, RUNNING
from gradviz.query.query import Query
from gradviz.query.tensors import FIRST, State
from gradviz.sets import contained, distinct, grouped
from gradviz.tracefile import Snapshot


def value_changes(query: Query, tensor: int) -> np.ndarray:
    """The events that made a tensor, changed it in place, or gave it other memory, in order."""
    query.trace.reach_all()
    direct, in_memory = query.tensors.value_events(tensor), query.memory.changes(tensor)
    changes = _ordered(direct, in_memory) if in_memory else direct
    base = query.memory.parts.get(tensor)
    return changes if base is None else _ordered(changes, _unknown_from(query, tensor, base, changes))


def _unknown_from(query: Query, tensor: int, base: int, changes: np.ndarray) -> list[int]:
    """The writes to the base of a tensor that shows a part of it, behind each change of the tensor up to the first by
    which its value is unknown."""
    writes = sorted({*query.tensors.value_events(base).tolist(), *query.memory.changes(base)})
    found: list[int] = []
    for since, until in zip(changes.tolist(), [*changes.tolist()[1:], query.trace.count], strict=True):
        for event in writes[bisect_right(writes, since) : bisect_left(writes, until)]:
            found.append(event)
            if query.memory.is_stale(tensor, event):
                break
    return found


def writes_by_any_name(query: Query, tensor: int, since: int = 0, until: int | None = None) -> list[int]:
    """The events from `since` to before `until` that wrote to a tensor, itself or through another on the same memory,
    or gave it other memory, in order."""
    end = query.trace.count if until is None else until
    written = (query.tensors.writes(tensor), query.memory.changes(tensor))
    return sorted({k for events in written for k in events[bisect_left(events, since) : bisect_left(events, end)]})


def grad_changes(query: Query, tensor: int) -> np.ndarray:
    """The events that changed which tensor the `.grad` is, or the value of the `.grad`, in order."""
    query.trace.reach_all()
    events, grads = query.tensors.grads.of(tensor)
    if not len(events):
        return events
    before = np.concatenate([np.zeros(1, np.int64), grads])[: len(grads)]
    return _ordered(events[(grads > 0) | (before > 0)], _written(query, events, grads))


def added_up(query: Query, tensor: int, k: int) -> np.ndarray:
    """The last events up to k that accumulated into a leaf's `.grad` with no other change of it between them."""
    changed = grad_changes(query, tensor)
    changed = changed[changed <= k]
    others = np.flatnonzero(query.trace.kinds[changed] != Kind.ACCUMULATED)
    return changed[others[-1] + 1 :] if len(others) else changed


def _written(query: Query, events: np.ndarray, grads: np.ndarray) -> np.ndarray:
    """The events that changed in place the tensor that was the `.grad` at that time. `grads[i]` is the `.grad` since
    `events[i]`."""
    if not grads.any():
        return events[:0]
    log = query.tensors.value_log
    of_grads = contained(log.tensors, grads[grads > 0])
    # leave out the event that made the tensor
    again = of_grads & np.append(False, log.tensors[1:] == log.tensors[:-1])[: len(of_grads)]
    pairs = [(log.tensors[again], log.events[again])]
    for grad in sorted(query.memory.shared.intersection(grads[grads > 0].tolist())):
        through = np.array(query.memory.changes(grad), np.int64)
        pairs.append((np.full(len(through), grad), through))
    tensors, written = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    since = np.searchsorted(events, written, side="right") - 1
    return written[(since >= 0) & (grads[since] == tensors)]


def _ordered(*parts: object) -> np.ndarray:
    return distinct(np.concatenate([np.asarray(part, np.int64) for part in parts]))


def added_to(query: Query, event: Accumulated, at: int) -> tuple[Snapshot, Snapshot] | None:
    """The value of a leaf's `.grad` before an event added a gradient to it, and that gradient. None if the `.grad` was
    None or 0, if elements were not kept, or if the `.grad` at event `at` is no longer the sum of both."""
    earlier = query.tensors.grad(event.tensor, event.index - 1)
    if not earlier:
        return None
    before = query.memory.value(earlier, event.index - 1)
    came = query.memory.value(event.gradient, event.index - 1)
    grad = query.tensors.grad(event.tensor, at)
    now = query.memory.value(grad, at) if grad else None
    if before is None or came is None or now is None:
        return None
    if before.array is None or came.array is None or now.array is None or not before.array.any():
        return None
    with np.errstate(all="ignore"):
        is_sum = now.array.shape == came.array.shape == before.array.shape and np.allclose(
            before.array + came.array, now.array, rtol=1e-4, equal_nan=True
        )
    return (before, came) if is_sum else None


def cleared_before(query: Query, event: Accumulated) -> tuple[Snapshot, str] | None:
    """The value of a leaf's `.grad` before it was cleared, if that was the last that happened to it before an event
    adds a gradient to it, and by what: `zero_`, or `None`, which was assigned to it."""
    tensors, grad = query.tensors, query.tensors.grad(event.tensor, event.index - 1)
    events, _ = tensors.grads.of(event.tensor)
    since = tensors.before(grad, event.index).since if grad else int(max(events[events < event.index], default=FIRST))
    was = tensors.grad(event.tensor, since - 1) if since != FIRST else 0
    now = query.memory.value(grad, since) if grad else None
    before = query.memory.value(was, since - 1) if was else None
    if before is None or before.array is None or not before.array.any() or (grad and now is None):
        return None
    is_zero = now is None or (now.array is not None and not now.array.any())
    return (before, tensors.writer(since) if grad else "None") if is_zero else None


_FAR = 8  # the most views of views that are followed
_LOADING = ("load_state_dict", "copy_")


class Author(Enum):
    """The kinds of authors of writes to leaves."""

    OPTIMIZER = "the step of an optimizer"
    INITIALISER = "what gave the leaf its first values"
    LOAD = "values that are loaded from another tensor"
    PROGRAM = "the program itself"
    UNKNOWN = "whatever ran in passes that were not watched"


class Writes:
    """The writes to the leaves of one trace, in order: `events` has the event of each, `leaves` the leaf. A leaf is a
    tensor that was a leaf and required grad at some time. Use `query.of(Writes)`."""

    def __init__(self, query: Query) -> None:
        self.query, self.trace = query, query.trace
        events, tensors = query.tensors.all_writes
        originals = ~contained(events, self._echoes)
        events, tensors = events[originals], tensors[originals]
        written, which = np.unique(tensors, return_inverse=True)
        leaves = np.array([self.leaf_of(tensor) for tensor in written.tolist()], np.int64)[which]
        self.events, self.leaves = events[leaves > 0], leaves[leaves > 0]

    def leaf_of(self, tensor: int) -> int:
        """The leaf that a tensor is, or shares memory with; 0 if there is none."""
        return next((name for name in self.on_memory(tensor) if name in self.query.tensors.ever_wanted), 0)

    def touched(self, tensor: int) -> bool:
        """Whether anything wrote to the memory of a tensor, by any of its names."""
        return not self._with_bases_written.isdisjoint(self.on_memory(tensor))

    @cached_property
    def _with_bases_written(self) -> set[int]:
        _, tensors = self.query.tensors.all_writes
        return {name for tensor in distinct(tensors).tolist() for name in self.on_memory(tensor)}

    def on_memory(self, tensor: int) -> Iterator[int]:
        """A tensor and its bases, from view to view."""
        for _ in range(_FAR):
            if not tensor:
                return
            yield tensor
            tensor = self.bases.get(tensor, 0)

    def author(self, event: int, leaf: int) -> Author:
        """The author of a write to a leaf at an event."""
        if event in self._set_of_optimizers:
            return Author.OPTIMIZER
        if self.query.tensors.writer(event) == UNWATCHED:
            return Author.UNKNOWN
        if event < self.started(leaf):
            return Author.INITIALISER
        return Author.LOAD if self.query.tensors.writer(event) in _LOADING else Author.PROGRAM

    def started(self, leaf: int) -> int:
        """The event after which a write to a leaf is no initialisation: the leaf's first gradient; for a leaf without a
        gradient, the beginning of the first pass."""
        return self._first_gradients.get(leaf, self._first_pass)

    def has_loaded_values(self, leaf: int) -> bool:
        """Whether the program gave a leaf the values of another tensor before its first gradient: from a checkpoint, or
        from another network."""
        events = self.events[self.leaves == leaf]
        early = events[events < self.started(leaf)].tolist()
        return any(self.query.tensors.writer(event) in _LOADING for event in early) or original(
            self.query, leaf
        ) not in (0, leaf)

    @cached_property
    def changed(self) -> np.ndarray:
        """The leaves that were written to after their initialisation."""
        started = np.array([self.started(leaf) for leaf in self.leaves.tolist()], np.int64)
        return distinct(self.leaves[self.events > started])

    @cached_property
    def of_optimizers(self) -> np.ndarray:
        """The events at which optimizers changed their parameters: the writes whose writer is the type of the step
        before them."""
        mutated, stepped = self.trace.table(Kind.MUTATED), self.trace.table(Kind.STEPPED)
        if not len(stepped):
            return mutated.events[:0]
        at = np.searchsorted(stepped.events, mutated.events) - 1
        return mutated.events[(at >= 0) & (stepped["type"][at] == mutated["how"])]

    @cached_property
    def unwatched(self) -> np.ndarray:
        """The events which say that a tensor was written to in passes that were not watched."""
        return self.trace.events_named(Kind.MUTATED, "how", (UNWATCHED,))

    @cached_property
    def unwatched_leaves(self) -> np.ndarray:
        """The leaves that were written to in passes that were not watched."""
        return distinct(self.leaves[contained(self.events, self.unwatched)])

    @cached_property
    def _set_of_optimizers(self) -> set[int]:
        return set(self.of_optimizers.tolist())

    @cached_property
    def _echoes(self) -> np.ndarray:
        """The events that repeat, for the base of a view, an op's write to the view."""
        mutated = self.trace.table(Kind.MUTATED)
        events, _ = self.query.tensors.all_writes
        return mutated.events[contained(mutated["op"], events)]

    @cached_property
    def _first_gradients(self) -> dict[int, int]:
        came = self.trace.table(Kind.ACCUMULATED)
        leaves, at = np.unique(came["tensor"], return_index=True)
        return dict(zip(leaves.tolist(), came.events[at].tolist(), strict=True))

    @cached_property
    def _first_pass(self) -> int:
        return self.trace.passes[0].first if self.trace.passes else self.trace.count

    @cached_property
    def bases(self) -> dict[int, int]:
        """The base of each tensor that shares memory from the first."""
        return self.trace.states.bases_at(self.trace.states.firsts)

    def follows_another(self, leaf: int) -> bool:
        """Whether a leaf gets its values from another leaf, at once or as an average over time: a target network."""
        for event in self.events[self.leaves == leaf].tolist():
            if self.query.tensors.is_op(event):
                sources = self.query.tensors.op(event).inputs[1:]
            else:
                sources = (self.query.tensors.mutation(event).source,)
            if any(source and self._stems_from_another(source, leaf) for source in sources):
                return True
        return False

    def _stems_from_another(self, tensor: int, leaf: int) -> bool:
        """Whether a tensor was computed, element by element, from another leaf of the same shape."""

        def onward(source: int) -> tuple[int, ...]:
            made = self.query.tensors.made(source)
            return made.inputs if isinstance(made, OpRan) and (made.rule.elementwise or made.op in COPYING) else ()

        shape = self.trace.shape
        return any(
            self.leaf_of(source) not in (0, leaf) and shape(source) == shape(leaf)
            for source in reach([tensor], onward, _FAR)
        )


_LOOKED_AT = 10_000  # the most events before the write that are searched
_SHOWN = 8  # the most nodes


def needing(query: Query, tensor: int, k: int) -> list[tuple[NodeMade, Saved]]:
    """The nodes that saved an earlier version of a tensor that event k changes and that have not run yet, each with the
    saved tensor. Their backward would fail. Only events shortly before k are searched."""
    version = query.tensors.version(tensor, k)
    if not version:
        return []
    first = max(k - _LOOKED_AT, 0)
    query.trace.reach(first, k)
    nodes, received = query.trace.table(Kind.NODE), query.trace.table(Kind.RECEIVED)
    saved = nodes.lists("saved")
    window = (nodes.events[saved.owners] >= first) & (nodes.events[saved.owners] < k)
    window &= saved.elements[:, 1] < version
    ran = received["node"][(received.events >= first) & (received.events < k)]
    window[window] = ~contained(nodes["node"][saved.owners[window]], ran)
    others = distinct(saved.elements[window, 0]).tolist()
    sharing = {tensor, *(other for other in others if query.memory.share(tensor, other, k))}
    apart = {t for t in sharing if counts_apart(query, t)}  # a result of `.data` has a version counter of its own
    written = {tensor} if tensor in apart else sharing - apart
    window &= contained(saved.elements[:, 0], list(written))
    pairs = []
    for event in nodes.events[distinct(saved.owners[window])][-_SHOWN:].tolist():
        node = nodes.object(event)
        kept = next(s for s in node.saved if s.tensor in written and s.version < version)
        # else the node's op itself wrote over the tensor, and saved a copy
        if kept.version == query.tensors.version(kept.tensor, node.index):
            pairs.append((node, kept))
    return pairs


def counts_apart(query: Query, tensor: int) -> bool:
    """Whether a tensor is an alias with its own version counter, as `.data` makes: the result of that op, or a TENSOR
    event with a base."""
    made = query.tensors.made(tensor)
    if made is None or not query.trace.states.base(tensor):
        return False
    return made.op == "data" if isinstance(made, OpRan) else True


class SilentWrite(NamedTuple):
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
    """The silent writes of a run whose values differ, in the order of the nodes. A write through `.data` does not count
    a version of the tensor, and `w.data = v` gives it other memory: a node that saved the tensor then runs with the new
    values, and raises nothing. Use `query.of(silent_writes)`."""
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
        size_of = self.trace.states.size_of
        for owner, tensor in zip(saved.owners[near].tolist(), saved.elements[near, 0].tolist(), strict=True):
            made, node = int(nodes.events[owner]), int(nodes["node"][owner])
            memory, counter = self._memory_and_counter(tensor)
            own, runs = writes.get(memory, []), self._received.get(node, [])
            if not (own and runs) or (node, memory) in done or self._is_unread(node, tensor):
                continue
            if size_of(tensor) != size_of(memory):  # not every write to the memory changes the tensor
                continue
            done.add((node, memory))
            between = slice(bisect_left(own, (made + 1,)), bisect_left(own, (runs[-1],)))
            for event, writer in own[between]:
                if writer == counter if writer else tensor != memory:
                    continue
                write = self._compared(event, memory, node, made, runs[bisect_right(runs, event)])
                if write is not None:
                    yield write
                    break

    @cached_property
    def _of_statistics(self) -> set[int]:
        """The writes of PyTorch's batch norms to their running statistics, which count no version."""
        mutated, states = self.trace.table(Kind.MUTATED), self.trace.states
        is_one = self.trace.named(mutated["how"], RUNNING)
        events, tensors = mutated.events[is_one], mutated["tensor"][is_one]
        before, after = (states.rows_of(tensors, at) for at in (events - 1, events))
        return set(events[(before >= 0) & (states.versions[before] == states.versions[after])].tolist())

    @cached_property
    def _statistics(self) -> set[int]:
        """The running statistics that batch norms wrote to."""
        mutated = self.trace.table(Kind.MUTATED)
        return set(mutated["tensor"][self.trace.named(mutated["how"], RUNNING)].tolist())

    def _is_unread(self, node: int, tensor: int) -> bool:
        """Whether a tensor is a running statistic that the backward of a node leaves alone: a batch norm's divides by
        the variance, and in training by that of the batch."""
        made = self.query.nodes.op(node) if tensor in self._statistics else None
        op = self.query.tensors.op(made) if made is not None else None
        return op is not None and op.op in RUNNING and ("training=True" in op.args or (tensor,) != op.inputs[2:3])

    def _writes(self) -> dict[int, list[tuple[int, int]]]:
        """The writes to each memory that a write may change unseen, each with the version counter that it counts; 0 for
        those that count none: an assignment to `.data`, and a batch norm's running statistics."""
        events, tensors = self.query.tensors.all_writes
        assigned = {*self.trace.events_named(Kind.MUTATED, "how", ("data",)).tolist(), *self._of_statistics}
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

    @cached_property
    def _received(self) -> dict[int, list[int]]:
        """The events at which each node received gradients."""
        table = self.trace.table(Kind.RECEIVED)
        return grouped(zip(table["node"].tolist(), table.events.tolist(), strict=True))

    def _compared(self, event: int, tensor: int, node: int, made: int, ran: int) -> SilentWrite | None:
        """The write, if the values of the tensor differ between forward and backward; else None."""
        before, after = self.query.memory.value(tensor, made), self.query.memory.value(tensor, ran)
        if before is None or after is None or _are_equal(before, after):
            return None
        return SilentWrite(event, tensor, node, made, ran, before, after)


def _are_equal(before: Snapshot, after: Snapshot) -> bool:
    """Whether two values are the same, as far as they were kept."""
    if before.array is not None and after.array is not None:
        return same_elements(before.array, after.array)
    if before.stats is None or after.stats is None:
        return True
    return repr(before.stats) == repr(after.stats)
