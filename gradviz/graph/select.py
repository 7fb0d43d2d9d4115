"""The part of a run that a graph shows: all of it, or the part that one pass differentiated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query import FIRST, Query, State
from gradviz.sets import contained

SMALL = 60  # a run with at most this many tensors and ops is shown whole
MOST_OPS = 25_000  # of a larger run the last ops are shown


@dataclass(slots=True)
class Part:
    """OP events, states of tensors, and MUTATED events that are drawn as ops. `beyond`: more of it is too far back."""

    ops: set[int] = field(default_factory=set)
    states: set[State] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    beyond: bool = False

    def __len__(self) -> int:
        return len(self.ops) + len(self.states) + len(self.writes)


def horizon(query: Query, at: int) -> int:
    """The event before which nothing is shown, so that at most `MOST_OPS` ops up to event `at` are shown."""
    events = query.trace.table(Kind.OP).events
    end = int(np.searchsorted(events, at, "right"))
    return int(events[end - MOST_OPS]) if end > MOST_OPS else 0


def everything(query: Query, at: int, inner: bool, since: int = 0) -> Part:
    """All ops and tensors from event `since` to event `at`. With `inner`, also ops inside a custom Function, and ops
    of a pass that records no graph."""
    trace, tensors, part = query.trace, query.tensors, Part(beyond=since > 0)
    trace.reach_all()
    ops = trace.table(Kind.OP)
    shown = (ops.events >= since) & (ops.events <= at)
    if not inner:
        shown &= (ops["in_pass"] == 0) | contained(ops.events, trace.table(Kind.NODE)["op"])
    made = trace.table(Kind.TENSOR)
    plain = (made.events >= since) & (made.events <= at) & ~trace.named(made["how"], ("gradient",))
    part.states.update(State(tensor, FIRST) for tensor in made["tensor"][plain].tolist())
    for event in ops.events[shown].tolist():
        if inner or not (query.scopes.in_function(event) or _writes_over_a_gradient(query, part, event)):
            _add_op(query, part, event)
    written = trace.table(Kind.MUTATED)
    for event, tensor in zip(written.events.tolist(), written["tensor"].tolist(), strict=True):
        if since <= event <= at and tensors.before(tensor, event) in part.states:
            _add_write(query, part, State(tensor, event))
    return part


def _writes_over_a_gradient(query: Query, part: Part, event: int) -> bool:
    """Whether an op in place without a node, as in `x.grad.zero_()`, writes only over tensors that a pass made."""
    op = query.tensors.op(event)
    written = [tensor for tensor in op.outputs if tensor in op.inputs]
    earlier = [query.tensors.before(tensor, event) for tensor in written]
    return bool(earlier) and not query.nodes.of_op(event) and not part.states.intersection(earlier)


def _add_op(query: Query, part: Part, event: int) -> None:
    part.ops.add(event)
    part.states.update(state for state in query.tensors.reads(event) if state)
    part.states.update(query.tensors.after(tensor, event) for tensor in query.tensors.op(event).outputs)


def _add_write(query: Query, part: Part, state: State) -> None:
    """Add a state that began with a MUTATED event. If no op in the trace did it, the event is drawn as an op."""
    part.states.add(state)
    mutated = query.tensors.mutation(state.since)
    if mutated.source and mutated.op < 0:
        part.writes.add(state.since)
        part.states.add(query.tensors.before(mutated.source, state.since))


def upstream(query: Query, roots: Iterable[int], at: int, since: int = 0) -> Part:
    """The ops and tensors that the `roots` were computed from, also across cuts, from event `since` on. The roots are
    tensors as they were before event `at`.

    It stops at leaves that require grad (earlier optimizer steps are not shown). Beyond a cut, it also stops at ops
    that a pass before `at` differentiated."""
    earlier = query.trace.passes_ended_before(at)
    part = Part()
    cut = _flood(query, part, [query.tensors.before(root, at) for root in roots], -1, since, at)
    while cut:
        cut = _flood(query, part, cut, earlier, since, at)
    return part


def _flood(
    query: Query, part: Part, states: Iterable[State], barrier: int, since: int, before: int
) -> list[State]:
    """Add states and all their ancestors, up to ops that made no node, and up to leaves that a pass `before` an event
    begins with. Returns the inputs of these ops. Ops that made a node and ran no later than event `barrier` are not
    added, nor any before event `since`."""
    tensors, nodes_of = query.tensors, query.nodes.of_op
    ops, reached = part.ops, part.states
    op_that_made, after, reads = tensors.op_that_made, tensors.after, tensors.reads
    stack = [state for state in states if state not in reached]
    behind: list[State] = []
    while stack:
        state = stack.pop()
        if state in reached:
            continue
        reached.add(state)
        if state.since != FIRST and tensors.is_leaf_that_requires_grad(state.tensor, state.since):
            continue
        event = op_that_made(state)
        if FIRST < (state.since if event is None else event) < since:
            part.beyond = True
            continue
        if event is None:
            stack += _before_without_op(query, part, state)
            continue
        has_node = bool(nodes_of(event))
        if has_node and event <= barrier:
            continue
        if not has_node and _begins_with(query, state, before):
            continue
        ops.add(event)
        reached.update([after(tensor, event) for tensor in tensors.op(event).outputs])
        read = [known for known in reads(event) if known]
        if state.since != FIRST and state.since != event:  # written through a tensor on the same memory
            read.append(tensors.before(state.tensor, state.since))
        (stack if has_node else behind).extend(read)
    return behind


def _begins_with(query: Query, leaf: State, before: int) -> bool:
    """Whether a state is a leaf that requires grad before an event, and came from nothing that requires grad: how it
    got its first value is no part of a pass."""
    tensors = query.tensors
    if not tensors.is_leaf_that_requires_grad(leaf.tensor, before):
        return False
    stack, seen = [leaf], {leaf}
    while stack:
        state = stack.pop()
        event = tensors.op_that_made(state)
        earlier = _before_without_op(query, Part(), state) if event is None else tensors.reads(event)
        for source in earlier:
            if source and source not in seen:
                if tensors.requires_grad(source.tensor, tensors.last_event(source, before)):
                    return False
                seen.add(source)
                stack.append(source)
    return True


def _before_without_op(query: Query, part: Part, state: State) -> list[State]:
    """The predecessors of a state that no op made: its earlier state, or the tensor whose memory it shares."""
    tensors = query.tensors
    if state.since != FIRST:
        source = tensors.mutation(state.since).source
        if source:
            part.writes.add(state.since)
        return [tensors.before(tensor, state.since) for tensor in (state.tensor, source) if tensor]
    base = tensors.base(state)
    return [base] if base is not None else []
