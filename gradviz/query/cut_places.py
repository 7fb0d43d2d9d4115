"""The place of a cut in the source: the line at which its cure would be typed. A trace has for each op whether grad
mode was on; the source has the expression that turned it off."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from gradviz.query.query import Query
from gradviz.query.source_trees import trees
from gradviz.tracefile import Site

_MODES = {"no_grad", "inference_mode", "set_grad_enabled"}
_SWITCH = "set_grad_enabled"


class GradMode(NamedTuple):
    """An expression that sets grad mode, as `torch.no_grad()`, with its file and line."""

    file: str
    line: int
    expression: str


def grad_mode_at(query: Query, number: int) -> GradMode | None:
    """The `with` or the decorator that sets grad mode around a site or one of its callers, the innermost first. None if
    there is none."""
    call_and_mode = _mode_at(query, number)
    if call_and_mode is None:
        return None
    caller, mode = call_and_mode
    setting = mode
    if isinstance(mode, ast.With):
        setting = next(item.context_expr for item in mode.items if _sets_mode(item.context_expr))
    return GradMode(caller.place.file, mode.lineno, ast.unparse(setting))


def place_of_cut(query: Query, event: int) -> Site | None:
    """The line of a cut. For an op without grad mode it is the call in the `with` block that turned grad mode off, the
    decorator, or the call that turned it off for good; else it is the line of the event."""
    number = int(query.places.of_events[event])
    if query.tensors.is_op(event) and not query.tensors.op(event).grad_enabled:
        setting = _under_a_mode(query, number) or switched_off(query, event)
        if setting is not None:
            return setting
    return query.places.site(number)


def switched_off(query: Query, event: int) -> Site | None:
    """The only call of `set_grad_enabled(False)` in the program that is a statement of its own: it lasts until another
    call. None if there is none or several, or if a `with` or a decorator around the event explains the mode."""
    if _under_a_mode(query, int(query.places.of_events[event])) is not None:
        return None
    calls = [(file, line) for file, tree in query.of(trees).items() for line in _lasting_calls(tree)]
    return query.places.of_line(*calls[0]) if len(calls) == 1 else None


def _under_a_mode(query: Query, number: int) -> Site | None:
    """The innermost call, among a site and its callers, inside a `with` that sets grad mode; the decorator, if a
    decorated function sets it. None if there is none."""
    call_and_mode = _mode_at(query, number)
    if call_and_mode is None:
        return None
    caller, mode = call_and_mode
    return caller if isinstance(mode, ast.With) else query.places.of_line(caller.place.file, mode.lineno)


def _mode_at(query: Query, number: int) -> tuple[Site, ast.With | ast.expr] | None:
    """The innermost call, among a site and its callers, inside a `with` or a decorated function that sets grad mode;
    and that `with` or decorator."""
    for caller in query.places.callers(number):
        tree = query.of(trees).get(caller.place.file)
        mode = _mode_around(tree, caller.place.line) if tree is not None else None
        if mode is not None:
            return caller, mode
    return None


def _mode_around(tree: ast.Module, line: int) -> ast.With | ast.expr | None:
    """The innermost `with`, or decorator of a function, around a line that sets grad mode."""
    innermost: ast.With | ast.expr | None = None
    for node in ast.walk(tree):  # outer ones first
        if not isinstance(node, ast.With | ast.FunctionDef) or not node.lineno <= line <= (
            node.end_lineno or 0
        ):
            continue
        if isinstance(node, ast.With):
            innermost = node if any(_sets_mode(item.context_expr) for item in node.items) else innermost
        else:
            innermost = next(filter(_sets_mode, node.decorator_list), innermost)
    return innermost


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
