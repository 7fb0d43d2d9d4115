"""Which call left grad mode off. A trace says of each op whether grad mode was on, the source who turned it off."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.loops import trees
from gradviz.tracefile import Site

_MODES = {"no_grad", "inference_mode", "set_grad_enabled"}
_SWITCH = "set_grad_enabled"


def switched_off(case: Case, event: int) -> Site | None:
    """The only call of `set_grad_enabled(False)` in the program that stands alone, as no context manager: it lasts
    until another call. None if there is none, or if a `with` or a decorator around the event explains the mode."""
    places = case.query.places
    callers = places.callers(case.site(event))
    if any(
        _is_under_a_mode(tree, c.place.line) for c in callers if (tree := case.of(trees).get(c.place.file))
    ):
        return None
    calls = [(file, line) for file, tree in case.of(trees).items() for line in _lasting_calls(tree)]
    return places.of_line(*calls[0]) if len(calls) == 1 else None


def _is_under_a_mode(tree: ast.Module, line: int) -> bool:
    """Whether a line is in a `with`, or in a decorated function, that sets grad mode."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With | ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or 0):
            block = [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
            around = block or getattr(node, "decorator_list", [])
            if any(map(_sets_mode, around)):
                return True
    return False


def _sets_mode(expression: ast.expr) -> bool:
    return _name(expression.func if isinstance(expression, ast.Call) else expression) in _MODES


def _lasting_calls(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
            continue
        call = node.value
        if _name(call.func) == _SWITCH and len(call.args) == 1:
            off = call.args[0]
            if isinstance(off, ast.Constant) and off.value is False:
                yield node.lineno


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
