"""What a trace says of tensors over time: what made them, what wrote over them, what they were when."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind, Mutated, OpRan, TensorMade
from gradviz.events.listener import LEAF, REQUIRES_GRAD, VIEW
from gradviz.tracefile import Trace
from gradviz.tracefile.errors import damaged

_BLOCK = 512  # ops
FIRST = -1  # in place of a mutation, in a State


class State(NamedTuple):
    """A tensor between two mutations: `since` is the MUTATED event that began it, or FIRST."""

    tensor: int
    since: int


class _Unwritten(dict[int, State]):
    """The state of each tensor before it was written over, made once: most tensors have no other."""

    def __missing__(self, tensor: int) -> State:
        state = self[tensor] = State(tensor, FIRST)
        return state


class _Ids(dict[int, str]):
    """A graph's ids for things of one kind, by number, each made once: every table about a graph has them as keys."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def __missing__(self, number: int) -> str:
        name = self[number] = f"{self._prefix}{number}"
        return name


class _Decoded(dict[int, OpRan]):
    """OP events by number, decoded when they are asked for; the neighbours too: that takes a third of the time of
    one by one."""

    def __init__(self, trace: Trace, ops: np.ndarray) -> None:
        super().__init__()
        self._trace, self._ops = trace, ops

    def __missing__(self, event: int) -> OpRan:
        first = int(np.searchsorted(self._ops, event)) // _BLOCK * _BLOCK
        block = self._ops[first : first + _BLOCK]
        self.update(zip(block.tolist(), self._trace.decoded_ops(block), strict=True))
        return super().__getitem__(event)


class History:
    """Look-ups over the events of one trace. Events are decoded when they are asked for."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._unwritten = _Unwritten()
        self._read: dict[int, list[State | None]] = {}
        self._tensor_ids = _Ids("t")
        self.op_ids, self.node_ids = _Ids("op"), _Ids("n")
        self.mutation = lru_cache(maxsize=None)(self._mutation)

    @cached_property
    def op(self) -> Callable[[int], OpRan]:
        """An OP event by its number."""
        return _Decoded(
            self.trace, self.ops
        ).__getitem__  # a look-up in C: it is asked for a dozen times an op

    def reads(self, event: int) -> list[State | None]:
        """What each input of an op was when it ran; None where it is no tensor."""
        states = self._read.get(event)
        if states is None:
            before = self.before
            states = [before(tensor, event) if tensor else None for tensor in self.op(event).inputs]
            self._read[event] = states
        return states

    def _tensor_made(self, event: int) -> TensorMade:
        made = self.trace.event(event)
        assert isinstance(made, TensorMade)
        return made

    def _mutation(self, event: int) -> Mutated:
        mutated = self.trace.event(event)
        assert isinstance(mutated, Mutated)
        return mutated

    # --- what made a tensor

    @cached_property
    def ops(self) -> np.ndarray:
        """All OP events."""
        return self.trace.indices(Kind.OP)

    @cached_property
    def _makers(self) -> dict[int, int]:
        trace = self.trace
        links, lengths = trace.links(self.ops)
        starts = np.cumsum(lengths) - lengths
        try:
            first_output, counts = starts + 3 + links[starts], links[starts + 1].astype(np.int64)
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            outputs = links[np.repeat(first_output, counts) + offsets]
        except IndexError as error:
            raise damaged(trace.path, error) from None
        told = trace.indices(Kind.TENSOR)
        tensors = np.concatenate([outputs, trace.events["subject"][told]])
        events = np.concatenate([np.repeat(self.ops, counts), told])
        order = np.argsort(-events, kind="stable")  # so that the first of several stays
        return dict(zip(tensors[order].tolist(), events[order].tolist(), strict=True))

    @cached_property
    def maker(self) -> Callable[[int], int | None]:
        """The OP or TENSOR event that made a tensor."""
        return self._makers.get

    def made(self, tensor: int) -> OpRan | TensorMade | None:
        """The event that made a tensor, decoded."""
        event = self.maker(tensor)
        if event is None:
            return None
        return self.op(event) if self.is_op[event] else self._tensor_made(event)

    @cached_property
    def is_op(self) -> list[bool]:
        """Which events are OP events."""
        return (self.trace.kinds == Kind.OP).tolist()  # a list: asked for one by one

    @cached_property
    def node_op(self) -> Callable[[int], int | None]:
        """The OP event that made a node; None for AccumulateGrad, and where the trace has none."""
        nodes = self.trace.events["subject"][self.ops]
        found = dict(zip(nodes.tolist(), self.ops.tolist(), strict=True))
        found.pop(0, None)  # ops without a node
        return found.get

    def op_that_made(self, state: State) -> int | None:
        """The OP event whose result the tensor then was."""
        if state.since != FIRST:
            return self.written_by.get(state.since)
        event = self.maker(state.tensor)
        return event if event is not None and self.is_op[event] else None

    def op_behind(self, state: State) -> OpRan | None:
        """The op whose result the tensor then was, decoded."""
        event = self.op_that_made(state)
        return None if event is None else self.op(event)

    def base(self, state: State) -> State | None:
        """The tensor whose memory a new one shares."""
        event = self.maker(state.tensor) if state.since == FIRST else None
        if event is None:
            return None
        if not self.is_op[event]:
            base = self._tensor_made(event).base
            return self.before(base, event) if base else None
        inputs = self.op(event).inputs if self._flags[event] & VIEW else ()
        return self.before(inputs[0], event) if inputs and inputs[0] else None

    def id_of(self, state: State) -> str:
        """A graph's id for a tensor at a version: `t12`, or `t12v1` after it was written over."""
        tensor, since = state
        if since == FIRST:
            return self._tensor_ids[tensor]
        return f"t{tensor}v{self.mutation(since).version}"

    # --- what wrote over it

    @cached_property
    def _mutations(self) -> dict[int, list[int]]:
        events = self.trace.indices(Kind.MUTATED)
        found: dict[int, list[int]] = {}
        for tensor, event in zip(self.trace.events["subject"][events].tolist(), events.tolist(), strict=True):
            found.setdefault(tensor, []).append(event)
        return found

    def mutations(self, tensor: int) -> list[int]:
        """The MUTATED events of a tensor, in order."""
        return self._mutations.get(tensor, [])

    @cached_property
    def written_by(self) -> dict[int, int]:
        """For each MUTATED event whose value came from an op that worked in place, that OP event."""
        trace, found = self.trace, {}
        events = trace.indices(Kind.MUTATED)
        sources, _ = trace.links(events)
        threads = trace.events["head"] >> 16
        for event, source in zip(events[sources > 0].tolist(), sources[sources > 0].tolist(), strict=True):
            op = self.maker(source)
            if op is None or op > event or trace.kinds[op] != Kind.OP:
                continue
            between = (trace.kinds[op + 1 : event] == Kind.OP) & (threads[op + 1 : event] == threads[event])
            copies = self.mutation(event).how == "copy_" and self.op(op).op != "copy"
            if not between.any() and not copies:
                found[event] = op
        return found

    @cached_property
    def became(self) -> dict[int, State]:
        """For the result of an op that worked in place, the tensor that took its value."""
        return {
            self.mutation(event).source: State(self.mutation(event).tensor, event)
            for event in self.written_by
        }

    def before(self, tensor: int, event: int) -> State:
        """What a tensor was when `event` happened."""
        took = self.became.get(tensor)
        if took is not None and took.since < event:
            return took
        earlier = self._mutations.get(tensor)
        if not earlier:
            return self._unwritten[tensor]
        at = bisect_right(earlier, event - 1)
        return State(tensor, earlier[at - 1]) if at else self._unwritten[tensor]

    def output(self, tensor: int) -> State:
        """The state of a tensor that an op has just made."""
        return self.became.get(tensor) or self._unwritten[tensor]

    def last_event(self, state: State, at: int) -> int:
        """The last event up to `at` of a state."""
        later = self.mutations(state.tensor)
        following = bisect_right(later, state.since)
        return min(at, later[following] - 1) if following < len(later) else at

    # --- what it was

    @cached_property
    def _flag_changes(self) -> dict[int, list[tuple[int, int]]]:
        events = self.trace.indices(Kind.MUTATED, Kind.REQUIRES_GRAD_CHANGED)
        rows = self.trace.events[events]
        changes: dict[int, list[tuple[int, int]]] = {}
        flags = rows["head"] >> 8 & 0xFF
        for tensor, event, flag in zip(
            rows["subject"].tolist(), events.tolist(), flags.tolist(), strict=True
        ):
            changes.setdefault(tensor, []).append((event, flag))
        return changes

    def flags(self, tensor: int, at: int) -> int:
        """A tensor's flags just after event `at`."""
        changes = self._flag_changes.get(tensor, ())
        if changes:
            found = bisect_right(changes, (at, 0xFF))
            if found:
                return changes[found - 1][1]
        event = self.maker(tensor)
        return LEAF if event is None else self._flags[event]

    @cached_property
    def _flags(self) -> list[int]:
        return (self.trace.events["head"] >> 8 & 0xFF).tolist()

    def is_leaf_that_requires_grad(self, tensor: int, at: int) -> bool:
        """Whether a tensor was a leaf requiring grad just after event `at`."""
        return self.flags(tensor, at) & (LEAF | REQUIRES_GRAD) == LEAF | REQUIRES_GRAD

    # --- gradients and tangents

    def latest(self, at: int, *kinds: Kind) -> dict[int, int]:
        """For each tensor that events of these kinds are about, the `object` of the last one up to `at`."""
        events = self.trace.indices(*kinds)
        rows = self.trace.events[events[events <= at]]
        return dict(zip(rows["subject"].tolist(), rows["object"].tolist(), strict=True))
