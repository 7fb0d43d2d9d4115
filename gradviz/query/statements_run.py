"""Which statements of a program are sure to have run, though nothing of them was recorded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from gradviz.query.functions_of_source import Function, called, function_around
from gradviz.query.query import Query
from gradviz.query.source_trees import trees

_BLOCKS = ("body", "orelse", "finalbody")
_PARAMETERS = ("parameters", "named_parameters")
_JUMPS = ast.Continue | ast.Break | ast.Return | ast.Raise
_ITEM = re.compile(r"\[(\d+)\]")  # of `net[0]`, whose parameters are called `net.0.weight`
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
        if isinstance(around, ast.With) or (
            isinstance(around, ast.For) and self._is_over_parameters(file, around)
        ):
            return statement in around.body and self.has_run(file, around, depth)
        return isinstance(around, Function) and depth > 0 and self._is_called(around, depth - 1)

    def _is_seen(self, file: str, statement: ast.stmt) -> bool:
        last = statement.end_lineno or statement.lineno
        return not self.lines.get(file, set()).isdisjoint(range(statement.lineno, last + 1))

    def _is_called(self, function: Function, depth: int) -> bool:
        """Whether a statement has run that does nothing but call a function, the only one of its name."""
        return len(self._functions.get(function.name, [])) == 1 and any(
            self.has_run(file, statement, depth) for file, statement, _ in self._calls.get(function.name, [])
        )

    def _is_over_parameters(self, file: str, loop: ast.For) -> bool:
        """Whether a loop goes over the parameters of a module that has some: `for p in net.head.parameters()`."""
        call = loop.iter
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr in _PARAMETERS
            and self._functions.keys().isdisjoint(_PARAMETERS)
            and self._has_parameters(file, call.func.value, loop.lineno)
        )

    def _has_parameters(self, file: str, module: ast.expr, line: int, depth: int = _DEEPEST) -> bool:
        """Whether an expression at a line is a module with parameters. An argument of a function is what the call that
        has run passes, if it is the only call."""
        root, _, path = _ITEM.sub(r".\1", ast.unparse(module)).partition(".")
        function = function_around(self.query.of(trees)[file], line)
        if function is not None and root in (arguments := [own.arg for own in function.args.args]):
            if root == "self" and path:
                return any(f".{path}." in name for name in self.query.trace.parameters.values())
            calls = self._calls.get(function.name, [])
            if path or depth == 0 or len(calls) != 1 or len(self._functions[function.name]) != 1:
                return False
            (caller, _, call), at = calls[0], arguments.index(root)
            passed = call.args[at : at + 1]
            return bool(passed) and self._has_parameters(caller, passed[0], call.lineno, depth - 1)
        beginning = f"{root}.{path}." if path else f"{root}."
        return any(name.startswith(beginning) for name in self.query.trace.parameters.values())

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
    def _calls(self) -> dict[str, list[tuple[str, ast.Expr | ast.Assign, ast.Call]]]:
        """The statements that are a call, or assign what a call gives, by the name of the called function."""
        found: dict[str, list[tuple[str, ast.Expr | ast.Assign, ast.Call]]] = {}
        for file, node in self._nodes():
            if isinstance(node, ast.Expr | ast.Assign) and isinstance(node.value, ast.Call):
                found.setdefault(called(node.value), []).append((file, node, node.value))
        return found

    def _nodes(self) -> Iterator[tuple[str, ast.AST]]:
        for file, tree in self.query.of(trees).items():
            for node in ast.walk(tree):
                yield file, node
