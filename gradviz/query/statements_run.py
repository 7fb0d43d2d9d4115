"""Which statements of a program are sure to have run, though nothing of them was recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from gradviz.query.functions_of_source import Function, called
from gradviz.query.query import Query
from gradviz.query.source_trees import trees

_BLOCKS = ("body", "orelse", "finalbody")
_PARAMETERS = ("parameters", "named_parameters")
_JUMPS = ast.Continue | ast.Break | ast.Return | ast.Raise
_DEEPEST = 8  # functions that call one another


class StatementsRun:
    """The statements of a program that are sure to have run. Use `query.of(StatementsRun)`."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.lines: dict[str, set[int]] = {}
        for site in query.trace.sites.values():
            self.lines.setdefault(site.place.file, set()).add(site.place.line)

    def has_run(self, file: str, statement: ast.stmt, depth: int = _DEEPEST) -> bool:
        """Whether a statement has run: something was recorded in it or in a later statement of its block; or the
        statement around it has run, and leads to it: a `with`, a loop over parameters, a function that was called."""
        around, block = self._around.get(statement, (None, []))
        at = next((number for number, own in enumerate(block) if own is statement), len(block))
        if any(self._is_seen(file, own) for own in block[at:]):
            return True
        if any(isinstance(node, _JUMPS) for own in block[:at] for node in ast.walk(own)):
            return False
        if isinstance(around, ast.With) or (isinstance(around, ast.For) and _is_over_parameters(around)):
            return statement in around.body and self.has_run(file, around, depth)
        return isinstance(around, Function) and depth > 0 and self._is_called(around, depth - 1)

    def _is_seen(self, file: str, statement: ast.stmt) -> bool:
        last = statement.end_lineno or statement.lineno
        return not self.lines.get(file, set()).isdisjoint(range(statement.lineno, last + 1))

    def _is_called(self, function: Function, depth: int) -> bool:
        """Whether a statement has run that does nothing but call a function, the only one of its name."""
        return len(self._functions.get(function.name, [])) == 1 and any(
            self.has_run(file, statement, depth) for file, statement in self._calls.get(function.name, [])
        )

    @cached_property
    def _around(self) -> dict[ast.stmt, tuple[ast.AST, list[ast.stmt]]]:
        """The node around each statement, and the block that it stands in."""
        return {
            statement: (node, block)
            for _, node in self._nodes()
            for block in (getattr(node, name, None) for name in _BLOCKS)
            if isinstance(block, list)
            for statement in block
        }

    @cached_property
    def _functions(self) -> dict[str, list[Function]]:
        found: dict[str, list[Function]] = {}
        for _, node in self._nodes():
            if isinstance(node, Function):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def _calls(self) -> dict[str, list[tuple[str, ast.stmt]]]:
        """The statements that are a call, or assign what a call gives, by the name of the called function."""
        found: dict[str, list[tuple[str, ast.stmt]]] = {}
        for file, node in self._nodes():
            if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
                found.setdefault(called(node.value), []).append((file, node))
        return found

    def _nodes(self) -> Iterator[tuple[str, ast.AST]]:
        for file, tree in self.query.of(trees).items():
            for node in ast.walk(tree):
                yield file, node


def _is_over_parameters(loop: ast.For) -> bool:
    return isinstance(loop.iter, ast.Call) and called(loop.iter) in _PARAMETERS
