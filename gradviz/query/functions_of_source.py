"""The functions that the source of a program defines."""

from __future__ import annotations

import ast

Function = ast.FunctionDef | ast.AsyncFunctionDef


def function_around(tree: ast.AST | None, line: int, name: str = "") -> Function | None:
    """The innermost function around a line, or the innermost of a name; None if there is none."""
    around = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, Function) and name in ("", node.name)
        if node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max(around, key=lambda node: node.lineno, default=None)
