"""Updates that never reach their leaf: `p = p - lr * p.grad`, `p.sub(lr * p.grad)`, or an average
`old = old.data * 0.9 + new.data * 0.1`. The result is a new tensor that no op reads, and the leaf stays as it was."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.flow import reach, sources
from gradviz.query.ops import ADDING, SUBTRACTING
from gradviz.query.source_trees import statement_at
from gradviz.query.writes import Writes

_CHANGING = ADDING | SUBTRACTING | {"addcmul", "addcdiv", "lerp"}
_NEAR = 3  # the most ops between a parameter and its average
_LEAST = 2  # the fewest times that the line ran


@dataclass(frozen=True, slots=True)
class LostChange:
    """The events of a line that computes new values of leaves and writes them nowhere, and the leaves."""

    events: tuple[int, ...]
    leaves: tuple[int, ...]


def lost_changes(case: Case) -> list[LostChange]:
    """The lines whose changes never reach a leaf: those by its gradient, and new values for the variable that had it.
    Use `case.of(lost_changes)`."""
    ops = case.trace.table(Kind.OP)
    events = ops.events[case.trace.named(ops["op"], _CHANGING)]
    written = set(case.query.of(Writes).changed.tolist())
    found = []
    for own in case.by_site(events).values():
        if len(own) < _LEAST:
            continue
        first, leaves = int(own[0]), _changed_by_gradients(case, own.tolist())
        if not leaves and _rebinds_a_name(case, first):
            behind = (leaf for event in own.tolist() for leaf in _parameters_behind(case, event))
            leaves = tuple(leaf for leaf in dict.fromkeys(behind) if leaf not in written)
        if leaves and written.isdisjoint(leaves) and not _is_used(case, own.tolist()):
            found.append(LostChange(tuple(own.tolist()), leaves))
    return found


def _changed_by_gradients(case: Case, events: list[int]) -> tuple[int, ...]:
    """The leaves that the ops of a line change by results of gradients, each of which gets another gradient later.
    Empty if an op changes none, or if the result is handed on to a call."""
    if not _changed(case, case.query.tensors.op(events[0])):
        return ()
    leaves = tuple(dict.fromkeys(_changed(case, case.query.tensors.op(event)) for event in events))
    again = all(leaf and _gets_another(case, leaf, events[0]) for leaf in leaves)
    return leaves if again and not _is_handed_on(case, events[0]) else ()


def _rebinds_a_name(case: Case, event: int) -> bool:
    """Whether the value of an event is assigned to a variable from which it is computed: `old = old * 0.9 + new`."""
    site = case.place(event)
    statement = statement_at(case.query, site)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if site is None or not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
        return False
    value = statement.value
    is_value = (value.lineno, value.col_offset) == (site.place.line, site.place.col)
    return is_value and any(isinstance(node, ast.Name) and node.id == target.id for node in ast.walk(value))


def _parameters_behind(case: Case, event: int) -> Iterator[int]:
    """The parameters from whose values the op of an event was computed, at most a few ops before it."""

    def onward(place: tuple[int, int]) -> list[tuple[int, int]]:
        tensor, depth = place
        if tensor in case.trace.parameters or depth == _NEAR:
            return []
        behind = sources(case.query, tensor, through_memory=True)
        return [(source, depth + 1) for source in behind if source]

    inputs = [(tensor, 0) for tensor in case.query.tensors.op(event).inputs if tensor]
    behind = dict.fromkeys(tensor for tensor, _ in reach(inputs, onward))
    return (tensor for tensor in behind if tensor in case.trace.parameters)


def _gets_another(case: Case, leaf: int, event: int) -> bool:
    """Whether a leaf gets another gradient after an event: then the event was meant as a step of the training."""
    came = case.trace.table(Kind.ACCUMULATED)
    return bool(np.any(came["tensor"][came.events > event] == leaf))


def _changed(case: Case, op: OpRan) -> int:
    """The leaf to which an op adds a result of a gradient, in a new tensor of the leaf's shape; 0 if there is none."""
    leaf = case.training.leaf_behind(op.inputs[0]) if op.inputs else 0
    if not leaf or not op.outputs or op.outputs[0] in op.inputs:
        return 0
    added = any(case.training.stems_from_gradient(t, op.index) for t in op.inputs[1:] if t)
    forms = [case.trace.states.form(case.trace.states.first(t)) for t in (leaf, op.outputs[0])]
    same = None not in forms and forms[0].shape == forms[1].shape  # type: ignore[union-attr]
    return leaf if added and same else 0


def _is_used(case: Case, events: list[int]) -> bool:
    """Whether an op reads a result of these events, or another tensor has its values or shares its memory."""
    results = {output for event in events for output in case.query.tensors.op(event).outputs}
    mutated, made = case.trace.table(Kind.MUTATED), case.trace.table(Kind.TENSOR)
    taken = set(mutated["source"].tolist()) | set(made["source"].tolist())
    taken |= set(case.trace.states.bases[case.trace.states.bases > 0].tolist())
    return bool(results & taken) or any(case.downstream.readers(result) for result in results)


def _is_handed_on(case: Case, event: int) -> bool:
    """Whether the statement at an event passes its result to a call. The call may do something that is not recorded:
    `x.set_(...)` gives a leaf other memory, and PyTorch emits no event for it."""
    site = case.place(event)
    statement = statement_at(case.query, site)
    calls = [node for node in ast.walk(statement) if isinstance(node, ast.Call)] if statement else []
    arguments = [argument for call in calls if ast.unparse(call.func) != "print" for argument in call.args]
    return site is not None and any(
        (node.lineno, node.col_offset, node.end_col_offset)
        == (site.place.line, site.place.col, site.place.end_col)
        for node in arguments
    )
