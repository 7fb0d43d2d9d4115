"""The source of a program as a syntax tree: the functions that it defines, and the functions that it calls."""

from __future__ import annotations

import ast

from gradviz.tracefile import Trace

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


def parsed(trace: Trace, file: str) -> ast.Module | None:
    """The syntax tree of a file of a traced program; None if its source is no Python that can be read here."""
    try:
        return ast.parse("\n".join(trace.source(file)))
    except (SyntaxError, ValueError):
        return None


def called(call: ast.Call) -> str:
    """The last name of the called function: `sqrt` for `torch.sqrt(x)` and for `x.sqrt()`; empty if it has none."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
