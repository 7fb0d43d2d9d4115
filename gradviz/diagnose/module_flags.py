"""Assignments to `requires_grad` of a module: `net.encoder.requires_grad = False`. A module has no such flag: Python
makes a new attribute, and the parameters stay as they were."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradviz.diagnose.case import Case
from gradviz.diagnose.misspelt import assignments
from gradviz.query.source_trees import trees
from gradviz.query.statements_run import StatementsRun
from gradviz.tracefile import Site

_FLAG = "requires_grad"


@dataclass(frozen=True, slots=True)
class ModuleFlag:
    """The line of an assignment, its text, the call that is meant, and the parameters of the module."""

    site: Site
    text: str
    cure: str
    leaves: tuple[int, ...]


def module_flags(case: Case) -> list[ModuleFlag]:
    """The assignments of False to `requires_grad` of modules whose parameters all require grad at the end and are
    trained, as far as they are sure to have run."""
    found, run = [], case.query.of(StatementsRun)
    for file, tree in case.query.of(trees).items():
        for statement, target in assignments(tree):
            if target.attr != _FLAG or ast.unparse(statement.value) != "False":
                continue
            site = case.query.places.of_line(file, statement.lineno)
            leaves = _parameters(case, run.modules(file, target.value, statement.lineno))
            if site is None or not leaves or not all(_is_trained(case, leaf) for leaf in leaves):
                continue
            if run.has_run(file, statement):
                cure = f"{ast.unparse(target.value)}.requires_grad_(False)"
                found.append(ModuleFlag(site, ast.unparse(statement), cure, leaves))
    return found


def _parameters(case: Case, paths: set[str]) -> tuple[int, ...]:
    names = case.trace.parameters.items()
    return tuple(leaf for leaf, name in names if any(name.startswith(f"{path}.") for path in paths))


def _is_trained(case: Case, leaf: int) -> bool:
    return leaf in case.training.trained and case.query.tensors.requires_grad(leaf, case.trace.count - 1)
