"""Edits that let a gradient through a cut: without the call, the block or the copy that cuts the graph."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradviz.diagnose.fix import Edit, Edits, SourceText, Spot
from gradviz.query.functions_of_source import Function, called
from gradviz.query.source_trees import assigned_to

_CUTS = {"detach", "item", "numpy", "tolist"}
_OF_MATH = {  # functions of `math` that torch has by the same name
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "expm1", "log", "log1p", "log2",
    "log10", "sqrt", "erf",
}  # fmt: skip
_MAKERS = {"tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor"}


def without_cut(spot: Spot) -> list[Edit]:
    """`x` in place of `x.detach()`, `torch.sin(x)` of `math.sin(x)`; or a statement moved out of `torch.no_grad()`."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    for area in (_with_conversion(source, _with_twins(source, spot.area, statement)), statement):
        edits = (list(_uncut(source, area)) or list(_of_torch(source, area))) if area is not None else []
        if edits:
            return [] if _leaves_torch(source, area) else [*edits, *_uncut_sources(source, statement)]
    return _with_grad_mode(source, statement)


def without_cut_of_discrete(spot: Spot) -> list[Edit]:
    """The same for the result of an op that is not differentiable; none for a copy, without which the cut would still
    be there."""
    return [] if spot.calls_here(*_MAKERS) else without_cut(spot)


def typed_without_cut(code: str) -> Edits:
    """Puts a statement in the place of a statement with the same target: `y[i] = x[i] ** 2`."""

    def edits(spot: Spot) -> list[Edit]:
        statement = spot.statement
        is_same = assigned_to(ast.parse(code).body[0]) == assigned_to(statement) != ""
        return [spot.source.replaced(statement, code)] if statement and is_same else without_cut(spot)

    return edits


def stacked(code: str) -> Edits:
    """Puts `torch.stack(losses)` in place of `torch.tensor(losses)`, and tensors in the list."""

    def edits(spot: Spot) -> list[Edit]:
        made, statement = spot.calls_here(*_MAKERS), spot.statement
        sources = list(_uncut_sources(spot.source, statement)) if statement is not None else []
        return [spot.source.replaced(made[0], code), *sources] if made and sources else []

    return edits


def redrawn(spot: Spot) -> list[Edit]:
    """`q.rsample()` in place of the only `q.sample()` of a line."""
    calls = [call for call in spot.calls_here("sample") if isinstance(call.func, ast.Attribute)]
    if len(calls) != 1:
        return []
    return [spot.source.replaced(calls[0].func, f"{spot.receiver(calls[0])}.rsample")]


def _with_twins(source: SourceText, area: ast.AST | None, statement: ast.stmt) -> ast.AST | None:
    """The whole statement, if it cuts several calls of the same function, as `a, b = f(x).detach(), f(y).detach()`
    does; else the area as it is."""
    cuts = [node for node in ast.walk(statement) if isinstance(node, ast.expr) and _is_cut(node)]
    called_by = {node: _behind_cut(node) for node in cuts}
    functions = [source.code(inner.func) for inner in called_by.values() if isinstance(inner, ast.Call)]
    inner_call = called_by.get(area) if isinstance(area, ast.expr) else None
    return (
        statement
        if isinstance(inner_call, ast.Call) and functions.count(source.code(inner_call.func)) > 1
        else area
    )


def _with_conversion(source: SourceText, area: ast.AST | None) -> ast.AST | None:
    """A cut with the `float()` around it, which makes a number of it again."""
    outer = source.parent(area) if area is not None else None
    return outer if isinstance(outer, ast.expr) and _is_cut(outer) and outer is not area else area


def _leaves_torch(source: SourceText, area: ast.AST | None) -> bool:
    """Whether the program goes on with the value as an array of NumPy or as a number."""
    outer = source.parent(area) if area is not None else None
    return isinstance(outer, ast.Attribute) and outer.attr in ("numpy", "item", "tolist")


def _uncut(source: SourceText, area: ast.AST) -> Iterator[Edit]:
    """Edits that remove the cuts in an expression, nested cuts included."""
    cut = isinstance(area, ast.expr) and _behind_cut(area)
    if cut:
        assert isinstance(area, ast.expr)
        inner = area
        while (further := _behind_cut(inner)) is not None:
            inner = further
        whole = source.span(area)
        kept = source.span(inner)
        yield Edit(whole[0], kept[0], "(" if _needs_brackets(inner) else "")
        yield from _uncut(source, inner)
        yield Edit(kept[1], whole[1], ")" if _needs_brackets(inner) else "")
        return
    for child in ast.iter_child_nodes(area):
        if not isinstance(child, ast.stmt) or not isinstance(area, ast.stmt):
            yield from _uncut(source, child)


def _behind_cut(node: ast.expr) -> ast.expr | None:
    """The expression that a cut is applied to; None if a node is no cut."""
    if isinstance(node, ast.Attribute) and node.attr == "data":
        return node.value
    if not isinstance(node, ast.Call):
        return None
    name = called(node)
    if isinstance(node.func, ast.Attribute) and name in _CUTS:
        return node.func.value
    if isinstance(node.func, ast.Attribute) and name in ("requires_grad_", "cpu", "float"):
        return node.func.value if _behind_cut(node.func.value) is not None else None
    is_made = name in _MAKERS and len(node.args) == 1 and not isinstance(node.args[0], ast.List | ast.Tuple)
    if name == "float" and len(node.args) == 1:
        return node.args[0] if _behind_cut(node.args[0]) is not None else None
    return node.args[0] if is_made else None


def _is_cut(node: ast.AST) -> bool:
    return isinstance(node, ast.expr) and _behind_cut(node) is not None


def _needs_brackets(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp | ast.UnaryOp | ast.IfExp)


def _uncut_sources(source: SourceText, statement: ast.stmt) -> Iterator[Edit]:
    """Edits of the statements that collect numbers for a root: `total += loss.item()`."""
    made = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and called(n) in _MAKERS and n.args]
    bare = [call.args[0] for call in made if not any(_is_cut(n) for n in ast.walk(call.args[0]))]
    names = {n.id for value in bare for n in ast.walk(value) if isinstance(n, ast.Name)}
    for node in ast.walk(source.function(statement)):
        if node is statement or not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr):
            continue
        if isinstance(node, ast.Assign):
            targets: list[ast.expr] = node.targets
        elif isinstance(node, ast.AugAssign):
            targets = [node.target]
        else:
            call = node.value
            is_added = isinstance(call, ast.Call) and called(call) == "append"
            targets = [call.func.value] if is_added else []  # type: ignore[attr-defined]
        if any(isinstance(target, ast.Name) and target.id in names for target in targets):
            yield from list(_uncut(source, node)) or _of_torch(source, node)


def _of_torch(source: SourceText, area: ast.AST) -> Iterator[Edit]:
    """Edits that call `torch.sin` in place of `math.sin`."""
    for node in ast.walk(area):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _OF_MATH:
            module = node.func.value
            if isinstance(module, ast.Name) and module.id == "math":
                yield Edit(*source.span(module), "torch")


def _with_grad_mode(source: SourceText, statement: ast.stmt) -> list[Edit]:
    """A statement without the `no_grad` around it: the block, or the decorator of its function."""
    for outer in (statement, *source.around(statement)):
        if isinstance(outer, ast.With) and _is_no_grad(source, outer.items[0].context_expr):
            return source.without_header(outer) if len(outer.items) == 1 else []
        if isinstance(outer, Function):
            for decorator in outer.decorator_list:
                if _is_no_grad(source, decorator):
                    start, end = source.span(decorator)
                    return [Edit(source.text.rindex("@", 0, start), source.span(outer)[0], "")] if end else []
            return []
    return []


def _is_no_grad(source: SourceText, node: ast.expr) -> bool:
    return bool(re.search(r"\b(no_grad|inference_mode)\b|set_grad_enabled\(False\)", source.code(node)))
