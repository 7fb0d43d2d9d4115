"""Updates that never reach their leaf: `p = p - lr * p.grad`, `p.sub(lr * p.grad)`, or in the loop of an average
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
from gradviz.query.source_trees import statement_at, trees
from gradviz.query.writes import Writes
from gradviz.sets import contained

_CHANGING = ADDING | SUBTRACTING | {"addcmul", "addcdiv", "lerp"}
_NEAR = 3  # the most ops between a parameter and its average
_LEAST = 2  # the fewest times that the line ran


@dataclass(frozen=True, slots=True)
class LostChange:
    """The events of a line that computes new values of leaves and writes them nowhere, and the leaves."""

    events: tuple[int, ...]
    leaves: tuple[int, ...]


def lost_changes(case: Case) -> list[LostChange]:
    """The lines whose changes never reach a leaf. Use `case.of(lost_changes)`."""
    ops = case.trace.table(Kind.OP)
    events = ops.events[case.trace.named(ops["op"], _CHANGING)]
    written = case.query.of(Writes).changed
    found = []
    for own in case.by_site(events).values():
        if len(own) < _LEAST or not _changed(case, case.query.tensors.op(int(own[0]))):
            continue
        changed = [_changed(case, case.query.tensors.op(event)) for event in own.tolist()]
        leaves = tuple(dict.fromkeys(changed))
        again = all(_gets_another(case, leaf, int(own[0])) for leaf in leaves)
        if (
            all(leaves)
            and again
            and not contained(leaves, written).any()
            and not _is_used(case, own.tolist())
            and not _is_handed_on(case, int(own[0]))
        ):
            found.append(LostChange(tuple(own.tolist()), leaves))
    return found


def lost_averages(case: Case) -> list[LostChange]:
    """The lines that give the variable of a loop over parameters a new tensor, which nothing reads: the parameters stay
    as they were. Use `case.of(lost_averages)`."""
    ops = case.trace.table(Kind.OP)
    events = ops.events[case.trace.named(ops["op"], _CHANGING)]
    written = set(case.query.of(Writes).changed.tolist())
    found = []
    for own in case.by_site(events).values():
        if len(own) < _LEAST or not _rebinds_its_loop(case, int(own[0])):
            continue
        last = case.query.tensors.op(int(own[-1]))
        behind = (leaf for event in own.tolist() for leaf in _parameters_behind(case, event))
        leaves = tuple(leaf for leaf in dict.fromkeys(behind) if leaf not in written)
        if leaves and last.outputs and not _is_used(case, own.tolist()):
            found.append(LostChange(tuple(own.tolist()), leaves))
    return found


def _rebinds_its_loop(case: Case, event: int) -> bool:
    """Whether the value of an event is assigned to the variable of a loop around it, from which it is computed."""
    site = case.place(event)
    statement = statement_at(case.query, site)
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if site is None or not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
        return False
    value = statement.value
    if (value.lineno, value.col_offset) != (site.place.line, site.place.col) or target.id not in _names(
        value
    ):
        return False
    loops = (node for node in ast.walk(case.query.of(trees)[site.place.file]) if isinstance(node, ast.For))
    return any(
        target.id in _names(loop.target) and loop.lineno < statement.lineno <= (loop.end_lineno or 0)
        for loop in loops
    )


def _names(node: ast.AST) -> set[str]:
    return {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}


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
    arguments = [argument for call in calls if not _is_print(call) for argument in call.args]
    return site is not None and any(
        (node.lineno, node.col_offset, node.end_col_offset)
        == (site.place.line, site.place.col, site.place.end_col)
        for node in arguments
    )


def _is_print(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id == "print"
