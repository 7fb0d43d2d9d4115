"""Which part of a run a graph shows: all of it, or what one pass differentiated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from gradviz.events.kinds import Kind, PassBegan, TensorMade
from gradviz.graph.history import FIRST, History, State
from gradviz.graph.scopes import Scopes
from gradviz.tracefile import PassInfo

SMALL = 60  # tensors and ops together: such a run is shown whole


@dataclass(slots=True)
class Part:
    """OP events, tensors by their states, and MUTATED events that are drawn as ops of their own."""

    ops: set[int] = field(default_factory=set)
    states: set[State] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self.ops) + len(self.states) + len(self.writes)


def everything(history: History, scopes: Scopes, at: int, inner: bool) -> Part:
    """All ops and tensors up to event `at`. `inner`: also those that only serve an op of the user's: inside a
    custom Function, or inside a pass that records nothing."""
    trace, part = history.trace, Part()
    events = history.ops[history.ops <= at]
    if not inner:
        events = events[~_within_passes(history, events)]
    for event in events.tolist():
        if inner or not scopes.in_function(event):
            _add_op(history, part, event)
    made = trace.indices(Kind.TENSOR)
    seeds = {number for number, text in trace.strings.items() if text == "gradient"}
    for event in made[made <= at].tolist():
        row = trace.events[event]
        if int(row["name"]) not in seeds:
            part.states.add(State(int(row["subject"]), FIRST))
    written = trace.indices(Kind.MUTATED)
    for event in written[written <= at].tolist():
        tensor = int(trace.events["subject"][event])
        if history.before(tensor, event) in part.states:
            _add_write(history, part, State(tensor, event))
    return part


def _within_passes(history: History, events: np.ndarray) -> np.ndarray:
    """Which OP events belong to the running of a pass, and made no node."""
    rows = history.trace.events[events]
    inside = np.zeros(len(events), bool)
    for run in history.trace.passes:
        last = history.trace.count if run.last is None else run.last
        window = slice(*np.searchsorted(events, [run.first, last + 1]))
        inside[window] |= rows["head"][window] >> 16 == run.thread
    return inside & (rows["subject"] == 0)


def _add_op(history: History, part: Part, event: int) -> None:
    part.ops.add(event)
    part.states.update(state for state in history.reads(event) if state)
    part.states.update(history.output(tensor) for tensor in history.op(event).outputs)


def _add_write(history: History, part: Part, state: State) -> None:
    """Add a state that began with a mutation, and the op that stands for it if the trace has none."""
    part.states.add(state)
    source = history.mutation(state.since).source
    if source and state.since not in history.written_by:
        part.writes.add(state.since)
        part.states.add(history.before(source, state.since))


def upstream(history: History, run: PassInfo) -> Part:
    """What the roots of a pass were computed from, through cuts too.

    It ends at leaves that require grad (what an optimizer made of them before is another story), and, behind a
    cut, at what an earlier pass differentiated."""
    began = history.trace.event(run.first)
    assert isinstance(began, PassBegan)
    earlier = max((p.last for p in history.trace.passes if p.last and p.last < run.first), default=-1)
    part = Part()
    roots = [history.before(tensor, run.first) for tensor in began.root_tensors if tensor]
    cut = _flood(history, part, roots, -1)
    while cut:
        cut = _flood(history, part, cut, earlier)
    return part


def _flood(history: History, part: Part, states: Iterable[State], barrier: int) -> list[State]:
    """Add states and all before them, up to ops that recorded no node; returns those ops' inputs. Ops that
    recorded one and ran up to event `barrier` are not added."""
    ops, found = part.ops, part.states
    op_behind, output, reads = history.op_behind, history.output, history.reads
    stack = [state for state in states if state not in found]
    behind: list[State] = []
    while stack:
        state = stack.pop()
        if state in found:
            continue
        found.add(state)
        if state.since != FIRST and history.is_leaf_that_requires_grad(state.tensor, state.since):
            continue
        op = op_behind(state)
        if op is None:
            stack += _before_without_op(history, part, state)
            continue
        if op.node and op.index <= barrier:
            continue
        ops.add(op.index)
        found.update([output(tensor) for tensor in op.outputs])
        (stack if op.node else behind).extend([state for state in reads(op.index) if state])
    return behind


def _before_without_op(history: History, part: Part, state: State) -> list[State]:
    """What a state that no op made came from: what it was before, or the tensor whose memory it shares."""
    if state.since != FIRST:
        source = history.mutation(state.since).source
        if source:
            part.writes.add(state.since)
        return [history.before(tensor, state.since) for tensor in (state.tensor, source) if tensor]
    made = history.made(state.tensor)
    if isinstance(made, TensorMade) and made.base:
        return [history.before(made.base, made.index)]
    return []


def walk(history: History, roots: Iterable[int]) -> list[int]:
    """The nodes that `next_functions` leads to from `roots`, roots first."""
    found: dict[int, None] = {}
    stack = [root for root in reversed(list(roots)) if root]
    while stack:
        node = stack.pop()
        if node in found:
            continue
        found[node] = None
        event = history.node_op(node)
        if event is not None:
            stack += [target for target, _ in reversed(history.op(event).edges) if target]
    return list(found)


def ends(history: History, at: int) -> list[int]:
    """The nodes, up to event `at`, that no other node leads to."""
    ops = [history.op(event) for event in history.ops[history.ops <= at].tolist()]
    led_to = {target for op in ops for target, _ in op.edges}
    return [op.node for op in ops if op.node and op.node not in led_to]


def is_loop(passes: list[PassInfo], history: History) -> bool:
    """Whether passes repeat a structure, each on a graph of its own."""
    roots: dict[str, set[tuple[int, ...]]] = {}
    for run in passes:
        began = history.trace.event(run.first)
        if run.digest and isinstance(began, PassBegan):
            roots.setdefault(run.digest, set()).add(began.roots)
    return any(len(found) > 1 for found in roots.values())
