"""The value, in the line that ended a program, whose type has no such operation, and the expression it came from."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gradviz.query.failures import Failure, failures
from gradviz.query.query import Query
from gradviz.query.source_trees import trees

_ATTRIBUTE = re.compile(r"'(\w+)' object has no attribute '(\w+)'")
_OPERANDS = re.compile(r"unsupported operand type\(s\) for (\S+): '([\w.]+)' and '([\w.]+)'")
_SEQUENCE = re.compile(r"can't multiply sequence by non-int of type|unsupported operand \(")  # of a tuple
_FORMAT = re.compile(r"unsupported format string passed to (\w+)\.__format__")
_SUBSCRIPT = re.compile(r"'(\w+)' object is not subscriptable")
_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "** or pow()",
}  # fmt: skip
_Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class WrongValue:
    """An expression of the line that ended a program. By the exception, its type has no such operation. `type` is that
    type, `attribute` the attribute that it lacks (empty for an operator). `origin` is the expression that gave the
    value: `x.grad` for `g` after `g = x.grad`; it is the expression itself unless that is a name that was assigned
    once. `origin_line` is its line."""

    failure: Failure
    type: str
    attribute: str
    expression: ast.expr
    origin: ast.expr
    origin_line: int


def wrong_values(query: Query) -> list[WrongValue]:
    """The expressions that the exception that ended a program may be about; empty if the program ended well, or if its
    source was not kept. Use `query.of(wrong_values)`."""
    failure = next((one for one in failures(query) if not one.handled), None)
    tree = query.of(trees).get(failure.site.place.file) if failure is not None and failure.site else None
    if failure is None or failure.site is None or tree is None:
        return []
    statement = _statement(tree, failure.site.place.line)
    if statement is None:
        return []
    scope = _scope(tree, failure.site.place.line)
    return [
        WrongValue(failure, kind, attribute, expression, origin := _origin(scope, expression), origin.lineno)
        for kind, attribute, expression in _meant(statement, failure.message)
    ]


def _meant(statement: ast.stmt, message: str) -> Iterator[tuple[str, str, ast.expr]]:
    """The expressions of a statement that an exception may be about, with the type and the attribute in its message."""
    nodes = list(ast.walk(statement))
    lacks, operands, formatted = (pattern.search(message) for pattern in (_ATTRIBUTE, _OPERANDS, _FORMAT))
    subscript = _SUBSCRIPT.search(message)
    if lacks is not None:
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr == lacks[2]:
                yield lacks[1], lacks[2], node.value
    elif operands is not None:
        for left, operator, right in filter(None, map(_operation, nodes)):
            if operands[1].removesuffix("=") == _SIGNS.get(type(operator)):
                yield operands[2], "", left
                yield operands[3], "", right
    elif _SEQUENCE.search(message) is not None:
        for left, _, right in filter(None, map(_operation, nodes)):
            yield "tuple", "", left
            yield "tuple", "", right
    elif formatted is not None:
        for node in nodes:
            if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                yield formatted[1], "", node.value
    elif subscript is not None:
        for node in nodes:
            if isinstance(node, ast.Subscript):
                yield subscript[1], "", node.value


def _operation(node: ast.AST) -> tuple[ast.expr, ast.operator, ast.expr] | None:
    if isinstance(node, ast.BinOp):
        return node.left, node.op, node.right
    return (node.target, node.op, node.value) if isinstance(node, ast.AugAssign) else None


def _statement(tree: ast.Module, line: int) -> ast.stmt | None:
    """The innermost statement that a line belongs to; None if that is a compound statement."""
    innermost = None
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            innermost = node  # of the walk in breadth, the innermost comes last
    return None if innermost is None or hasattr(innermost, "body") else innermost


def _scope(tree: ast.Module, line: int) -> _Scope:
    """The function around a line, or the whole program."""
    innermost: _Scope = tree
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.lineno <= line <= (node.end_lineno or 0):
            innermost = node
    return innermost


def _origin(scope: _Scope, expression: ast.expr) -> ast.expr:
    """The value that was assigned to a name, if it was assigned once; else the expression itself."""
    if not isinstance(expression, ast.Name):
        return expression
    stores = [
        node
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == expression.id and isinstance(node.ctx, ast.Store)
    ]
    values = [
        node.value
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and node.targets[0] in stores
    ]
    return values[0] if len(stores) == len(values) == 1 else expression
