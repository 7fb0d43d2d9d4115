"""The history of tensors: the events that made them and changed them in place, and their versions and flags at any
event."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import LEAF, REQUIRES_GRAD, VIEW, Kind, Mutated, OpRan, TensorMade
from gradviz.query.lookup import Lookup
from gradviz.query.sorted_tables import Log
from gradviz.sets import contained, distinct
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
        by_tensor: dict[int, list[int]] = {}
        for event, tensor in zip(*(column.tolist() for column in self.all_writes), strict=True):
            by_tensor.setdefault(tensor, []).append(event)
        return by_tensor

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
        if tensor not in self._ever_wanted:
            return False
        return self.flags(tensor, at) & _WANTED == _WANTED

    @cached_property
    def _ever_wanted(self) -> frozenset[int]:
        """The tensors that are leaves requiring grad at any time."""
        states = self.trace.states
        return frozenset(distinct(states.tensors[states.flags & _WANTED == _WANTED]).tolist())

    def base(self, state: State) -> State | None:
        """The tensor whose memory a new tensor shares; None if there is none."""
        self.trace.reach_tensors([state.tensor])
        base = self._bases.get(state.tensor) if state.since == FIRST else None
        return self.before(*base) if base is not None else None

    @cached_property
    def _bases(self) -> dict[int, tuple[int, int]]:
        """The tensor whose memory each tensor shared from the first, and the event; without tensors that shared
        none."""
        states = self.trace.states
        rows = states.firsts
        rows = rows[states.bases[rows] > 0]
        bases = zip(states.bases[rows].tolist(), states.events[rows].tolist(), strict=True)
        return dict(zip(states.tensors[rows].tolist(), bases, strict=True))

    @cached_property
    def leaf_flags(self) -> Log:
        """The flags of all tensors that are leaves at any time: the events that changed them, and the new
        flags."""
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

    def is_grad_cleared(self, tensor: int, at: int) -> bool:
        """Whether the `.grad` of a tensor is None just after event `at` because it was cleared."""
        if self.grad(tensor, at):
            return False
        events, _ = self.grads.of(tensor)
        cleared = events[events <= at]
        return len(cleared) > 0 and self.grad(tensor, int(cleared[-1]) - 1) > 0

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
        return Log(
            states.tensors[has_value], states.events[has_value], np.zeros(int(has_value.sum()), np.int64)
        )

    def value_events(self, tensor: int) -> np.ndarray:
        """The events that made a tensor or changed it in place, in order."""
        self.trace.reach_history(tensor, self.trace.count)
        return distinct(self.value_log.of(tensor)[0])
