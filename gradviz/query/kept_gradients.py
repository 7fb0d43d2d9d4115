"""Variables that keep the `.grad` of a leaf, which changes in place before they are read: `first = w.grad`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.source_trees import trees
from gradviz.query.training import CLEARED, Training

_SAME_MEMORY = ("data", "detach")


@dataclass(frozen=True, slots=True)
class KeptGradient:
    """A statement of a program, outside of loops and functions, that assigns the `.grad` of a `leaf` to a `name`.
    `made` accumulated that gradient (`grad`) before the statement; `event` changes it in place, at line `changed_at`;
    the name is read behind that line."""

    file: str
    statement: ast.Assign
    name: str
    leaf: int
    grad: int
    made: int
    event: int
    changed_at: int


def kept_gradients(query: Query) -> Iterator[KeptGradient]:
    """The variables of a program that keep a `.grad`. Only statements that run once and in the order of their lines are
    examined, so that the line of an event shows whether it came before or after them."""
    for file, tree in query.of(trees).items():
        for statement in tree.body:
            value = statement.value if isinstance(statement, ast.Assign) else None
            of = _whose_grad(value) if value is not None else None
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if of is None or not isinstance(target, ast.Name) or not isinstance(statement, ast.Assign):
                continue
            read_at = _last_read(tree, target.id, statement)
            leaf = query.names.tensor_called(ast.unparse(of), query.trace.count) if read_at else 0
            if not leaf:
                continue
            lines = range((statement.end_lineno or statement.lineno) + 1, read_at)
            for made, event, line in _changes(query, leaf, file, statement.lineno, lines):
                grad = query.tensors.grad(leaf, event)
                yield KeptGradient(file, statement, target.id, leaf, grad, made, event, line)
                break


def _whose_grad(value: ast.expr) -> ast.expr | None:
    """The expression whose `.grad` a value is, or shares memory with; None if there is none."""
    while True:
        if isinstance(value, ast.Call) and not value.args and isinstance(value.func, ast.Attribute):
            if value.func.attr not in _SAME_MEMORY:
                return None
            value = value.func.value
        elif isinstance(value, ast.Attribute) and value.attr in _SAME_MEMORY:
            value = value.value
        else:
            is_grad = isinstance(value, ast.Attribute) and value.attr == "grad"
            return value.value if is_grad and isinstance(value, ast.Attribute) else None


def _last_read(tree: ast.Module, name: str, statement: ast.Assign) -> int:
    """The first line of the last statement of a program that reads a name; 0 where the name is assigned again, or is
    read in no later statement."""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    if sum(isinstance(node.ctx, ast.Store) for node in uses) != 1:
        return 0
    readers = [
        later.lineno
        for later in tree.body
        if later.lineno > statement.lineno
        and any(node in uses and not isinstance(node.ctx, ast.Store) for node in _names(later))
    ]
    return max(readers, default=0)


def _names(statement: ast.stmt) -> list[ast.Name]:
    return [node for node in ast.walk(statement) if isinstance(node, ast.Name)]


def _changes(
    query: Query, leaf: int, file: str, assigned_at: int, lines: range
) -> Iterator[tuple[int, int, int]]:
    """The events that change the `.grad` of a leaf in place at one of `lines` of the main program. Each comes behind
    the event that accumulated this gradient before the line of the assignment, and with its line."""
    came, lives = query.trace.table(Kind.ACCUMULATED), query.of(Training).lives
    accumulations = came.events[came["tensor"] == leaf].tolist()
    cleared = lives.events[(lives.leaves == leaf) & (lives.whats == CLEARED)].tolist()
    for event in sorted([*accumulations, *cleared]):
        line = _line_in(query, file, event)
        before, after = query.tensors.grad(leaf, event - 1), query.tensors.grad(leaf, event)
        if line not in lines or not after or before != after:
            continue
        had = [
            earlier
            for earlier in accumulations
            if query.tensors.grad(leaf, earlier) == before and earlier < event
        ]
        if had and 0 < _line_in(query, file, had[0]) < assigned_at:
            yield had[0], event, line


def _line_in(query: Query, file: str, event: int) -> int:
    """The line of a file at which an event happened; for an event in a pass, the line that called the pass. 0 if it was
    elsewhere."""
    backward_pass = query.passes.at(event)
    site = backward_pass.site if backward_pass is not None else int(query.trace.events["site"][event])
    places = [one.place for one in query.places.callers(site) if one.place.file == file]
    return places[-1].line if places else 0
