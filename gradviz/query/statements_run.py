"""Which statements of a program are sure to have run, though nothing of them was recorded."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property

from gradviz.query.functions_of_source import Function, called, function_around
from gradviz.query.query import Query
from gradviz.query.source_trees import loops_of_line, trees

_BLOCKS = ("body", "orelse", "finalbody")
_PARAMETERS = ("parameters", "named_parameters")
_MODULES, _CHILDREN = ("modules", "named_modules"), ("children", "named_children")
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
        """Whether a loop goes over the parameters of a module that has some, as `for p in net.head.parameters()`, or
        over modules with parameters."""
        return bool(self._modules_of_method(file, loop, _PARAMETERS) or self._modules_of_loop(file, loop))

    def _modules_of_method(self, file: str, loop: ast.For, methods: tuple[str, ...]) -> set[str]:
        """The modules with parameters whose method of PyTorch a loop goes over; none if the program defines it."""
        call = loop.iter
        is_method = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if not isinstance(call, ast.Call) or not is_method or called(call) not in methods:
            return set()
        assert isinstance(call.func, ast.Attribute)
        is_of_program = not self._functions.keys().isdisjoint(methods)
        return set() if is_of_program else self.modules(file, call.func.value, loop.lineno)

    def _modules_of_loop(self, file: str, loop: ast.For) -> set[str]:
        """The paths of the modules with parameters that a loop goes over: `for layer in net.children()`, `for layer in
        net.layers`."""
        if around := self._modules_of_method(file, loop, _MODULES):
            return around
        below = self._modules_of_method(file, loop, _CHILDREN)
        if not below and not isinstance(loop.iter, ast.Call):
            below = self.modules(file, loop.iter, loop.lineno)
            return {path for path in self._children(below) if path.rpartition(".")[2].isdigit()}
        return self._children(below)

    def _children(self, paths: set[str]) -> set[str]:
        names = self.query.trace.parameters.values()
        below = [
            (path, name[len(path) + 1 :]) for path in paths for name in names if name.startswith(f"{path}.")
        ]
        return {f"{path}.{name.partition('.')[0]}" for path, name in below if "." in name}

    def modules(self, file: str, module: ast.expr, line: int, depth: int = _DEEPEST) -> set[str]:
        """The paths that a module with parameters may have, which an expression at a line is; none if it is no such
        module. An argument of a function is what the call that has run passes, if it is the only call. The variable of
        a loop is each of the modules that the loop goes over."""
        root, _, path = _ITEM.sub(r".\1", ast.unparse(module)).partition(".")
        function = function_around(self.query.of(trees)[file], line)
        loop = self._loop_of(file, root, line) if not path else None
        if loop is not None:
            return self._modules_of_loop(file, loop)
        if function is not None and root in (arguments := [own.arg for own in function.args.args]):
            if root == "self" and path:
                return self._called(rf"(?:.*\.)?{re.escape(path)}(?=\.)")
            calls = self._calls.get(function.name, [])
            if path or depth == 0 or len(calls) != 1 or len(self._functions[function.name]) != 1:
                return set()
            (caller, _, call), at = calls[0], arguments.index(root)
            passed = call.args[at : at + 1]
            return self.modules(caller, passed[0], call.lineno, depth - 1) if passed else set()
        return self._called(re.escape(f"{root}.{path}" if path else root) + r"(?=\.)")

    def _called(self, beginning: str) -> set[str]:
        """The paths that match a pattern at the beginning of names of parameters."""
        matches = (re.match(beginning, name) for name in self.query.trace.parameters.values())
        return {match[0] for match in matches if match is not None}

    def _loop_of(self, file: str, name: str, line: int) -> ast.For | None:
        """The innermost loop around a line whose variable has this name; of two variables it is the second."""
        loops = [
            loop
            for loop in loops_of_line(self.query, file, line)
            if isinstance(loop, ast.For) and name == ast.unparse(loop.target).strip("()").rpartition(", ")[2]
        ]
        return max(loops, key=lambda loop: loop.lineno, default=None)

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
