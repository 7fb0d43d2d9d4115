"""Assignments to a misspelt `requires_grad`: Python makes a new attribute, which nothing reads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.nearest import nearest
from gradviz.query.source_trees import trees
from gradviz.query.statements_run import StatementsRun
from gradviz.tracefile import Site

_MEANT = "requires_grad"
_LEAST = "grad"  # what each misspelling of it still has


@dataclass(frozen=True, slots=True)
class Misspelt:
    """The line of an assignment, its text, and its text with the attribute that is meant."""

    site: Site
    text: str
    cure: str


def misspelt(case: Case) -> list[Misspelt]:
    """The assignments to an attribute that is called nearly `requires_grad`, and that the program never reads, as far
    as they are sure to have run."""
    found, run = [], case.query.of(StatementsRun)
    sources = case.query.of(trees)
    read = {name for tree in sources.values() for name in _read(tree)}
    for file, tree in sources.items():
        for statement, target in assignments(tree):
            site = case.query.places.of_line(file, statement.lineno)
            if target.attr in read or not _is_meant(target) or site is None:
                continue
            if not run.has_run(file, statement):
                continue
            cure = f"{ast.unparse(target.value)}.{_MEANT} = {ast.unparse(statement.value)}"
            found.append(Misspelt(site, ast.unparse(statement), cure))
    return found


def _read(tree: ast.Module) -> Iterator[str]:
    """The attributes that a file reads, and its texts: `getattr` may be given one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def assignments(tree: ast.Module) -> Iterator[tuple[ast.Assign, ast.Attribute]]:
    """The assignments to one attribute, and their targets."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Attribute)
        ):
            yield node, node.targets[0]


def _is_meant(target: ast.Attribute) -> bool:
    """Whether an attribute of another object than `self` is nearly called so. A class may have attributes of its own
    that are called alike."""
    is_own = isinstance(target.value, ast.Name) and target.value.id == "self"
    return (
        not is_own
        and target.attr != _MEANT
        and _LEAST in target.attr
        and nearest(target.attr, [_MEANT]) != ""
    )
