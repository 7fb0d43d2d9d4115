"""Optimizers that never step, though passes compute gradients for their parameters, and the line of the step that is
never reached."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.events.kinds import Kind
from gradviz.query.source_trees import trees
from gradviz.query.writes import Writes
from gradviz.sets import contained, distinct
from gradviz.tracefile import PassInfo, Site

_CLEARED, _UNCLEARED = 3, 6  # the fewest passes without a step, with clearing between them and without it


@dataclass(frozen=True, slots=True)
class NeverStepped:
    """An optimizer that never steps: the event at which it was made, its leaves with gradients, the last pass that gave
    them gradients, the number of these passes, and the line of the step that is never reached, if there is one."""

    made: int
    leaves: tuple[int, ...]
    backward_pass: PassInfo
    passes: int
    unreached: Site | None


def never_stepped(case: Case) -> list[NeverStepped]:
    """The optimizers that never step, of a run that came to its end. Use `case.of(never_stepped)`."""
    if case.trace.meta.get("error") or case.trace.meta.get("stopped"):
        return []
    held, came = case.trace.table(Kind.HOLDS), case.trace.table(Kind.ACCUMULATED)
    written = case.query.of(Writes).trained
    stepping = set(case.training.stepped["optimizer"].tolist())
    found = []
    for row in np.unique(held["optimizer"], return_index=True)[1].tolist():
        event = int(held.events[row])
        if int(held["optimizer"][row]) in stepping:
            continue
        got = contained(came["tensor"], held.lists("parameters").of(row)) & (came.events > event)
        leaves, passes = distinct(came["tensor"][got]), distinct(came["in_pass"][got])
        if (
            len(passes) < _least(case, leaves)
            or contained(leaves, written).any()
            or _stepped_on(case, leaves)
        ):
            continue
        last = case.query.passes.by_number[int(passes[-1])]
        found.append(NeverStepped(event, tuple(leaves.tolist()), last, len(passes), _unreached(case, last)))
    return found


def _least(case: Case, leaves: np.ndarray) -> int:
    """The fewest passes after which a step is missing."""
    assigned = case.trace.table(Kind.GRAD_ASSIGNED)
    cleared = case.trace.table(Kind.GRADS_CLEARED).lists("tensors").values
    set_here = assigned["tensor"][assigned.sites > 0]  # without a site: assigned before the recording
    has = contained(leaves, cleared).any() or contained(leaves, set_here).any()
    return _CLEARED if has else _UNCLEARED


def _stepped_on(case: Case, leaves: np.ndarray) -> bool:
    """Whether another optimizer, or the program itself, steps on some of the leaves."""
    return bool(set(leaves.tolist()) & (set(case.training.owners) | set(case.training.by_hand[1].tolist())))


def _unreached(case: Case, backward_pass: PassInfo) -> Site | None:
    """The first call of `step()` that never ran in the file of a pass. If the call, but not the pass, is under an `if`:
    the line of this condition. None if there is no such call."""
    site = case.query.places.site(backward_pass.site)
    tree = case.query.of(trees).get(site.place.file) if site is not None else None
    if site is None or tree is None:
        return None
    kinds = (case.training.stepped, case.scheduled)
    ran = {
        caller.place.line
        for table in kinds
        for number in distinct(table.sites).tolist()
        for caller in case.query.places.callers(number)
    }
    pass_line = site.place.line
    lines = sorted(set(_steps(tree)) - ran, key=lambda line: (line < pass_line, line))
    for line in lines[:1]:
        conditions = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and _spans(node, line) and not _spans(node, pass_line)
        ]
        return case.query.places.of_line(site.place.file, max(conditions, default=line))
    return None


def _spans(node: ast.If, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def _steps(tree: ast.Module) -> Iterator[int]:
    """The lines that call `step()` of an optimizer, or of a scaler with an optimizer, known by `opt` in its name."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        named = any("opt" in ast.unparse(part).lower() for part in (node.func.value, *node.args))
        if node.func.attr == "step" and named:
            yield node.lineno
