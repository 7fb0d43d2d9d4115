"""The history of tensors: the events that made them and changed them in place, their versions and flags at any event,
and the values of those that share memory."""

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW, WHOLE, Kind, Mutated, OpRan, TensorMade
from gradviz.events.values import VMAP
from gradviz.query.sorted_tables import Log, Lookup
from gradviz.sets import contained, distinct, grouped
from gradviz.tracefile import Snapshot, Trace
from gradviz.tracefile.columns import Lists

_OP = int(Kind.OP)  # NumPy compares a number with an IntEnum slowly
_WANTED = LEAF | REQUIRES_GRAD
FIRST = -1  # used as the `since` of a State before any write


class State(NamedTuple):
    """A tensor between two writes in place. `since` is the event of the earlier write (an op in place, or
    MUTATED), or FIRST."""

    tensor: int
    since: int


class _Unwritten(dict[int, State]):
    """The state of each tensor before its first write in place, cached: most tensors have only this one."""

    def __missing__(self, tensor: int) -> State:
        state = self[tensor] = State(tensor, FIRST)
        return state


class Tensors(Lookup):
    """Look-ups about the tensors of one trace. Events are decoded on demand."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._unwritten = _Unwritten()
        self._read: dict[int, list[State | None]] = {}

    # --- ops

    @cached_property
    def ops(self) -> np.ndarray:
        """All OP events."""
        return self.trace.table(Kind.OP).events

    def op(self, event: int) -> OpRan:
        """The OP event with this index, decoded."""
        self.trace.reach(event)
        return self._decoded_op(event)

    @cached_property
    def _decoded_op(self) -> Callable[[int], OpRan]:
        return self.trace.table(Kind.OP).object

    def is_op(self, event: int) -> bool:
        """Whether an event is an OP event."""
        self.trace.reach(event)
        return int(self.trace.kinds[event]) == _OP

    @property
    def outputs(self) -> Lists:
        """The outputs of all OP events."""
        return self.trace.table(Kind.OP).lists("outputs")

    def reads(self, event: int) -> list[State | None]:
        """The state of each input when the op ran; None for an input that is not a tensor."""
        states = self._read.get(event)
        if states is None:
            before = self.before
            states = [before(tensor, event) if tensor else None for tensor in self.op(event).inputs]
            self._read[event] = states
        return states

    # --- what made a tensor

    def maker(self, tensor: int) -> int | None:
        """The OP or TENSOR event that made a tensor; None if there is none."""
        self.trace.reach_tensors([tensor])
        return self.makers.get(tensor)

    @cached_property
    def makers(self) -> dict[int, int]:
        """The event that made each tensor."""
        outputs, made = self.outputs, self.trace.table(Kind.TENSOR)
        new = ~self._is_write
        tensors = np.concatenate([outputs.values[new], made["tensor"]])
        events = np.concatenate([self.ops[outputs.owners[new]], made.events])
        order = np.argsort(-events, kind="stable")  # so that the first of several events wins
        return dict(zip(tensors[order].tolist(), events[order].tolist(), strict=True))

    def made(self, tensor: int) -> OpRan | TensorMade | None:
        """The event that made a tensor, decoded; None if there is none."""
        decoded = self._known_makers.get(tensor)
        if decoded is not None:
            return decoded
        event = self.maker(tensor)  # this may read more of a part, which clears `_known_makers`
        if event is None:
            return None
        decoded = self.op(event) if self.is_op(event) else self.trace.table(Kind.TENSOR).object(event)
        self._known_makers[tensor] = decoded
        return decoded

    def site(self, tensor: int) -> int:
        """The number of the site where a tensor was made; 0 if it is unknown."""
        made = self.made(tensor)
        return 0 if made is None else made.site

    @cached_property
    def _known_makers(self) -> dict[int, OpRan | TensorMade]:
        """The events that made tensors, as far as they were needed: a search needs each of them several times."""
        return {}

    def op_that_made(self, state: State) -> int | None:
        """The OP event whose result this state is; None if there is none."""
        event = self.maker(state.tensor) if state.since == FIRST else state.since
        if event is None or self.is_op(event):
            return event
        if state.since == FIRST:
            return None
        mutated = self.mutation(event)
        return mutated.op if mutated.op >= 0 and self.is_op(mutated.op) else None

    def op_behind(self, state: State) -> OpRan | None:
        """The op whose result this state is, decoded; None if there is none."""
        event = self.op_that_made(state)
        return None if event is None else self.op(event)

    # --- writes in place

    @cached_property
    def _is_write(self) -> np.ndarray:
        """Whether an op changed each of its outputs in place: the output is also an input, or the op is a collective
        that was called with it."""
        outputs, inputs = self.outputs, self.trace.table(Kind.OP).lists("inputs")
        pairs = [part.owners << 32 | part.values for part in (outputs, inputs)]
        return contained(*pairs) | self.are_collectives[outputs.owners]

    @cached_property
    def are_collectives(self) -> np.ndarray:
        """Whether each OP event is the work of a collective: the first op of its name after the collective was called.
        `gather` and `scatter` are also ops of PyTorch that have nothing to do with ranks."""
        ops, called = self.trace.table(Kind.OP), self.trace.table(Kind.COLLECTIVE)
        are_done = np.zeros(len(ops.events), bool)
        if not len(called.events):
            return are_done
        call = np.searchsorted(called.events, ops.events) - 1
        matching = np.flatnonzero((call >= 0) & (called["how"][call] == ops["op"]))
        are_done[matching[np.unique(call[matching], return_index=True)[1]]] = True
        return are_done

    @cached_property
    def all_writes(self) -> tuple[np.ndarray, np.ndarray]:
        """The events that changed a tensor in place, in order, and the tensor of each; an event occurs once for each
        tensor that it changed."""
        outputs, mutated = self.outputs, self.trace.table(Kind.MUTATED)
        again = self._is_write
        tensors = np.concatenate([outputs.values[again], mutated["tensor"]])
        events = np.concatenate([self.ops[outputs.owners[again]], mutated.events])
        order = np.argsort(events, kind="stable")
        return events[order], tensors[order]

    @cached_property
    def _writes(self) -> dict[int, list[int]]:
        """The events that changed each tensor in place, in order; without tensors that were never changed."""
        events, tensors = self.all_writes
        return grouped(zip(tensors.tolist(), events.tolist(), strict=True))

    def writes(self, tensor: int) -> list[int]:
        """The events that changed a tensor in place, in order."""
        self.trace.reach_history(tensor, self.trace.count)
        return self._writes.get(tensor, [])

    def mutation(self, event: int) -> Mutated:
        """The MUTATED event with this index, decoded."""
        self.trace.reach(event)
        mutated: Mutated = self.trace.table(Kind.MUTATED).object(event)
        return mutated

    def is_written(self, tensor: int, event: int) -> bool:
        """Whether an event changed a tensor in place."""
        self.trace.reach(event)
        return event in self._writes.get(tensor, ())

    def writer(self, event: int) -> str:
        """The op or function that changed a tensor in place at an event: `add_`, `SGD`."""
        return self.op(event).op if self.is_op(event) else self.mutation(event).how

    def before(self, tensor: int, event: int) -> State:
        """The state of a tensor just before `event`."""
        self.trace.reach_tensors([tensor], event - 1)
        earlier = self._writes.get(tensor)
        if not earlier:
            return self._unwritten[tensor]
        at = bisect_left(earlier, event)
        return State(tensor, earlier[at - 1]) if at else self._unwritten[tensor]

    def after(self, tensor: int, event: int) -> State:
        """The state of a tensor just after `event`."""
        return self.before(tensor, event + 1)

    def last_event(self, state: State, at: int) -> int:
        """The last event up to `at` during which the tensor is in this state."""
        self.trace.reach_history(state.tensor, at, state.since)
        later = self._writes.get(state.tensor, [])
        following = bisect_right(later, state.since)
        return min(at, later[following] - 1) if following < len(later) else at

    # --- versions and flags

    def version(self, tensor: int, at: int) -> int:
        """A tensor's version just after event `at`."""
        self.trace.reach_tensors([tensor], at)
        row = self.trace.states.last(tensor, at)
        return 0 if row < 0 else int(self.trace.states.versions[row])

    def flags(self, tensor: int, at: int) -> int:
        """A tensor's flags just after event `at`. If it did not exist yet, its first flags."""
        self.trace.reach_tensors([tensor], at)
        states = self.trace.states
        row = states.last(tensor, at)
        row = row if row >= 0 else states.first(tensor)
        flags = 0 if row < 0 else int(states.flags[row])
        return flags if flags & REQUIRES_GRAD else flags | LEAF  # events of gradients have no flags

    def requires_grad(self, tensor: int, at: int) -> bool:
        """Whether a tensor requires grad just after event `at`. If it did not exist yet, whether it did at first."""
        return bool(self.flags(tensor, at) & REQUIRES_GRAD)

    def shape(self, tensor: int) -> tuple[int, ...] | None:
        """A tensor's shape in its first state; None if it has no recorded state."""
        form = self.trace.shape(tensor)
        return None if form is None else form[0]

    def told_flags(self, tensor: int, at: int) -> int:
        """A tensor's flags as they were last recorded up to event `at`; 0 if they were not."""
        self.trace.reach_tensors([tensor], at)
        row = self.trace.states.last(tensor, at)
        return 0 if row < 0 else int(self.trace.states.flags[row])

    def is_leaf_that_requires_grad(self, tensor: int, at: int) -> bool:
        """Whether a tensor was a leaf requiring grad just after event `at`."""
        self.trace.reach_tensors([tensor], at)
        if tensor not in self.ever_wanted:
            return False
        return self.flags(tensor, at) & _WANTED == _WANTED

    @cached_property
    def ever_wanted(self) -> frozenset[int]:
        """The tensors that are leaves requiring grad at any time."""
        states = self.trace.states
        return frozenset(distinct(states.tensors[states.flags & _WANTED == _WANTED]).tolist())

    def base(self, state: State) -> State | None:
        """The tensor whose memory a new tensor shares, or that it stands for inside `vmap` and behind it; None if there
        is none."""
        self.trace.reach_tensors([state.tensor])
        base = self.bases.get(state.tensor) if state.since == FIRST else None
        return self.before(*base) if base is not None else None

    @cached_property
    def bases(self) -> dict[int, tuple[int, int]]:
        """The tensor whose memory each tensor shared from the first, or that it stands for in `vmap`, and the event."""
        states, made = self.trace.states, self.trace.table(Kind.TENSOR)
        rows = states.firsts[states.bases[states.firsts] > 0]
        stand = self.trace.named(made["how"], (VMAP,)) & (made["source"] > 0)
        pairs = (made["tensor"], states.tensors), (made["source"], states.bases), (made.events, states.events)
        tensors, bases, events = (np.concatenate([one[stand], other[rows]]).tolist() for one, other in pairs)
        return dict(zip(tensors, zip(bases, events, strict=True), strict=True))

    @cached_property
    def leaf_flags(self) -> Log:
        """The flags of all tensors that are leaves at any time: the events that changed them, and the new flags."""
        states = self.trace.states
        ever = distinct(states.tensors[states.flags & LEAF > 0])
        rows = contained(states.tensors, ever)
        return Log(states.tensors[rows], states.events[rows], states.flags[rows]).without_repeats()

    @cached_property
    def views_of_leaves(self) -> np.ndarray:
        """The tensors that PyTorch calls leaves that require grad, and that only show another one: `w.T`, where grad
        mode is off."""
        states, flags = self.trace.states, _WANTED | VIEW
        rows = states.firsts
        rows = rows[(states.flags[rows] & flags == flags) & (states.bases[rows] > 0)]
        bases = states.rows_of(states.bases[rows], states.events[rows])
        of_leaf = (bases >= 0) & (states.flags[bases] & REQUIRES_GRAD > 0)
        of_leaf &= self.trace.kinds[states.events[rows]] == _OP
        return states.tensors[rows[of_leaf]]

    # --- gradients and tangents

    @cached_property
    def grads(self) -> Log:
        """The history of `.grad`: the tensor that the `.grad` of each tensor is."""
        parts = [self.trace.table(kind) for kind in (Kind.ACCUMULATED, Kind.RETAINED, Kind.GRAD_ASSIGNED)]
        return Log(
            np.concatenate([part["tensor"] for part in parts]),
            np.concatenate([part.events for part in parts]),
            np.concatenate([part["grad"] for part in parts]),
        )

    def grad(self, tensor: int, at: int) -> int:
        """The tensor that is the `.grad` of a tensor just after event `at`; 0 for None."""
        self.trace.reach_tensors([tensor], at)
        return self.grads.last(tensor, at) or 0

    def gradient(self, tensor: int, at: int) -> Snapshot | None:
        """The value of the `.grad` of a tensor just after event `at`; None if it has none."""
        number = self.grad(tensor, at)
        return self.trace.snapshot(number, at) if number else None

    def emptied(self, tensor: int, at: int) -> int:
        """The last event up to `at` that set the `.grad` of a tensor, if that set it to None after it was a gradient;
        otherwise −1."""
        self.trace.reach_tensors([tensor], at)
        events, grads = self.grads.of(tensor)
        last = int(np.searchsorted(events, at, side="right")) - 1
        if last < 0 or grads[last]:
            return -1
        event = int(events[last])
        return event if np.any(grads[:last]) or self.grad(tensor, event - 1) else -1

    def tangent(self, tensor: int, at: int) -> int:
        """The tensor that is the tangent of a tensor just after event `at`; 0 if there is none."""
        self.trace.reach_tensors([tensor], at)
        return self.tangents.last(tensor, at) or 0

    def is_retained(self, tensor: int, at: int) -> bool:
        """Whether a non-leaf had kept its gradient by event `at`, because of retain_grad()."""
        self.trace.reach_history(tensor, at)
        return self._retained.get(tensor, at + 1) <= at

    @cached_property
    def _retained(self) -> dict[int, int]:
        """The first event at which each tensor kept its gradient."""
        kept = self.trace.table(Kind.RETAINED)
        return dict(zip(kept["tensor"][::-1].tolist(), kept.events[::-1].tolist(), strict=True))

    @cached_property
    def tangents(self) -> Log:
        """The history of tangents: the tensor that the tangent of each tensor is."""
        pushed = self.trace.table(Kind.TANGENT)
        return Log(pushed["tensor"], pushed.events, pushed["tangent"])

    # --- changes of values

    @cached_property
    def value_log(self) -> Log:
        """The events that gave a tensor a value: the event that made it, and those that changed it in place."""
        states = self.trace.states
        has_value = states.forms > 0
        return Log(states.tensors[has_value], states.events[has_value], np.zeros(int(has_value.sum()), np.int64))

    def value_events(self, tensor: int) -> np.ndarray:
        """The events that made a tensor or changed it in place, in order."""
        self.trace.reach_history(tensor, self.trace.count)
        return distinct(self.value_log.of(tensor)[0])


_SHARE, _WRITE = range(2)


class Memory(Lookup):
    """The memory of each tensor of one trace over time, and the writes into it. `w.grad.data.zero_()` writes to a
    tensor that `.data` made, and so changes `w.grad`; `w.data = v` gives `w` the memory of `v`. Only tensors that cover
    the whole of each other's memory are followed: a write to a slice does not change the base here. The value of a
    slice is unknown after a write to its base by which it got none."""

    def value(self, tensor: int, at: int) -> Snapshot | None:
        """The value of a tensor just after event `at`; None if it is unknown."""
        self.trace.reach_tensors([tensor], at)
        snapshot = self.trace.snapshot(tensor, at=at)
        if snapshot is not None and self.is_stale(tensor, at):
            return replace(snapshot, array=None, told=None)
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

    @cached_property
    def parts(self) -> dict[int, int]:
        """The tensor of which each view shows a part, by itself or as a view of such a view."""
        states, rows = self.trace.states, self.trace.states.firsts
        rows = rows[(states.bases[rows] > 0) & (states.flags[rows] & VIEW > 0)]
        found: dict[int, int] = {}
        columns = (states.tensors, states.bases, states.flags & WHOLE)
        for tensor, base, whole in sorted(zip(*(column[rows].tolist() for column in columns), strict=True)):
            if not whole or base in found:
                found[tensor] = found.get(base, base)
        return found

    def is_stale(self, tensor: int, at: int) -> bool:
        """Whether the memory of which a tensor is a part was written to since the tensor's last known value."""
        base = self.parts.get(tensor)
        if base is None:
            return False
        written = self._last_write(base, at) if base in self.shared else None
        event = max(self._own_change(base, at), written[0] if written is not None else 0)
        by = self._written_by(event)
        if by <= self._own_change(tensor, at):
            return False
        events = self.trace.states.events[self.trace.states.rows(tensor)]
        following = events[events > at]
        return not len(following) or self._written_by(int(following[0])) != by  # the write is being recorded

    def _written_by(self, event: int) -> int:
        """The op that changed a tensor at an event, if that is known; otherwise the event."""
        if self.trace.kinds[event] != Kind.MUTATED:
            return event
        op: int = self.trace.table(Kind.MUTATED).object(event).op
        return op if op >= 0 else event

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
        bases = Log(states.tensors[ever_shared], states.events[ever_shared], whole[ever_shared]).without_repeats()
        begun = np.append(True, bases.tensors[1:] != bases.tensors[:-1])[: len(bases.tensors)]
        changed = (bases.values > 0) | ~begun
        shares = np.stack(
            [bases.events[changed], np.full(int(changed.sum()), _SHARE), bases.tensors[changed], bases.values[changed]],
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
