"""Cures of cuts, which keep a gradient away, and of graphs that should be cut."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradviz.cures.source_text import Edit, SourceText
from gradviz.cures.spot import Spot
from gradviz.query.functions_of_source import Function, called
from gradviz.query.source_trees import assigned_to

_CUTS = {"detach", "item", "numpy", "tolist"}
_OF_MATH = {  # functions of `math` that torch has by the same name
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "expm1", "log", "log1p", "log2",
    "log10", "sqrt", "erf",
}  # fmt: skip
_MAKERS = {"tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor"}


def without_cut(spot: Spot) -> list[Edit]:
    """`x` in place of `x.detach()`, `torch.sin(x)` of `math.sin(x)`, `q.rsample()` of `q.sample()`; or a statement
    moved out of `torch.no_grad()`."""
    source, statement = spot.source, spot.statement
    if statement is None or ("is not differentiable" in spot.finding.message and spot.calls_here(*_MAKERS)):
        return []  # without the copy the cut would still be there
    if spot.finding.fix.startswith("pass use_reentrant=False"):
        return [
            with_keyword(source, call, "use_reentrant=False") for call in spot.calls_here("checkpoint")[:1]
        ]
    if ".rsample()" in spot.finding.fix:
        return _redrawn(spot)
    if (typed := _typed(spot)) is not None:
        return [source.replaced(statement, typed)]
    if (stacked := re.match(r"torch\.stack\(\w+\)(?=  # and )", spot.finding.fix)) is not None:
        made = spot.calls_here(*_MAKERS)
        sources = list(_uncut_sources(source, statement))
        return [source.replaced(made[0], stacked[0]), *sources] if made and sources else []
    for area in (_with_twins(source, spot.area, statement), statement):
        edits = (list(_uncut(source, area)) or list(_of_torch(source, area))) if area is not None else []
        if edits:
            return [] if _leaves_torch(source, area) else [*edits, *_uncut_sources(source, statement)]
    return _with_grad_mode(source, statement)


def _typed(spot: Spot) -> str | None:
    """The cure of a finding, if it is a statement with the same target as the finding's line: `y[i] = x[i] ** 2`."""
    code = spot.finding.fix.partition("  #")[0]
    try:
        statements = ast.parse(code).body
    except SyntaxError:  # advice in words
        return None
    is_same = len(statements) == 1 and assigned_to(statements[0]) == assigned_to(spot.statement) != ""
    return code if is_same else None


def _redrawn(spot: Spot) -> list[Edit]:
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


def detached(spot: Spot) -> list[Edit]:
    """`detach()` for a tensor that should be a constant: where its name is used, or on the value of the line."""
    source, statement = spot.source, spot.statement
    cure = re.match(r"([\w.]+)(?: = [\w.]+)?\.detach\(\)", spot.finding.fix)
    if statement is None or cure is None:
        return _detached_expression(spot)
    name = cure[1]
    if "again in each iteration" in spot.finding.fix:
        return _detached_at_its_line(spot, statement, name)
    if "between two rounds" in spot.finding.fix:
        return _detached_in_each_round(spot, statement, name)
    is_assigned = isinstance(statement, ast.Assign) and source.code(statement.targets[0]) == name
    later = [
        node
        for node in ast.walk(source.function(statement))
        if isinstance(node, ast.Name | ast.Attribute)
        and source.code(node) == name
        and isinstance(node.ctx, ast.Load)
        and node.lineno > statement.lineno
    ]
    if is_assigned and len(later) > 1:  # one of the other uses may train it
        return [source.replaced(min(later, key=source.span), f"{name}.detach()")]
    if is_assigned and isinstance(statement, ast.Assign):
        return [source.replaced(statement.value, f"({source.code(statement.value)}).detach()")]
    return _detached_where_used(spot, statement, name)


def _detached_expression(spot: Spot) -> list[Edit]:
    """`(reward - value).detach()` for the expression of a cure, if the statement has it."""
    cure = re.match(r"\((.+)\)\.detach\(\)", spot.finding.fix)
    if spot.statement is None or cure is None:
        return []
    found = [
        node
        for node in ast.walk(spot.statement)
        if isinstance(node, ast.expr) and spot.source.code(node) == cure[1]
    ]
    return [spot.source.replaced(node, f"({cure[1]}).detach()") for node in found[:1]]


def _detached_where_used(spot: Spot, statement: ast.stmt, name: str) -> list[Edit]:
    source = spot.source
    used = [
        node
        for node in ast.walk(statement)
        if isinstance(node, ast.Name | ast.Attribute)
        and source.code(node) == name
        and isinstance(node.ctx, ast.Load)
    ]
    return [source.replaced(node, f"{name}.detach()") for node in used[:1]]


def _detached_in_each_round(spot: Spot, statement: ast.stmt, name: str) -> list[Edit]:
    loops = [
        node for node in (statement, *spot.source.around(statement)) if isinstance(node, ast.For | ast.While)
    ]
    passes = [loop for loop in loops if spot.source.calls("backward", within=loop)]
    if not passes:  # a function that is called for each round
        return _detached_where_used(spot, statement, name)
    return [spot.source.before(passes[0].body[0], f"{name} = {name}.detach()")]


def _detached_at_its_line(spot: Spot, statement: ast.stmt, name: str) -> list[Edit]:
    """`hidden = hidden.detach()` before or after the line that the cure names."""
    place = re.search(r"# (before|after) line (\d+)", spot.finding.fix)
    if place is None:  # a function that is called for each round
        return _detached_where_used(spot, statement, name)
    at = spot.source.statement_at(int(place[2]))
    put = spot.source.before if place[1] == "before" else spot.source.after
    return [put(at, f"{name} = {name}.detach()")] if at is not None else []


def kept_graph(spot: Spot) -> list[Edit]:
    """`retain_graph=True` at the first of two calls of backward(); or a state that is detached between two rounds."""
    if "retain_graph=True" not in spot.finding.fix:
        return detached(spot)
    source = spot.source
    here = spot.calls_here("backward")
    if not here:
        return []
    same = [call for call in source.calls("backward") if spot.receiver(call) == spot.receiver(here[0])]
    earlier = [call for call in same if source.span(call) < source.span(here[0])]
    if not earlier:
        earlier = [call for call in source.calls("backward") if source.span(call) < source.span(here[0])][-1:]
    return [with_keyword(source, call, "retain_graph=True") for call in (earlier or here)[:1]]


def with_keyword(source: SourceText, call: ast.Call, keyword: str) -> Edit:
    """A call with one more keyword argument, or with a new value of this argument."""
    name = keyword.partition("=")[0]
    for known in call.keywords:
        if known.arg == name:
            return source.replaced(known, keyword)
    end = source.span(call)[1] - 1
    return Edit(end, end, f", {keyword}" if call.args or call.keywords else keyword)


def with_create_graph(spot: Spot) -> list[Edit]:
    """`torch.autograd.grad(..., create_graph=True)`."""
    return [
        with_keyword(spot.source, call, "create_graph=True")
        for call in spot.calls_here("grad", "backward")[:1]
    ]


def unrestricted(spot: Spot) -> list[Edit]:
    """`loss.backward()` without `inputs=`."""
    for call in spot.calls_here("backward"):
        if [keyword.arg for keyword in call.keywords] == ["inputs"] and not call.args:
            return [spot.source.replaced(call, f"{spot.source.code(call.func)}()")]
    return []


def kept_without_graph(spot: Spot) -> list[Edit]:
    """`total += loss.detach()` in place of `total += loss`; the same for a value that is appended."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Expr):
        added = [call for call in spot.calls_here("append") if call.args]
        return [source.replaced(call.args[0], _detach(source, call.args[0])) for call in added[:1]]
    if isinstance(statement, ast.AugAssign | ast.Assign):
        return [source.replaced(statement.value, _detach(source, statement.value))]
    return []


def _detach(source: SourceText, value: ast.expr) -> str:
    code = source.code(value)
    return (
        f"({code}).detach()" if isinstance(value, ast.BinOp | ast.UnaryOp | ast.IfExp) else f"{code}.detach()"
    )


def in_each_round(spot: Spot) -> list[Edit]:
    """A statement before a loop moved into the loop."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return []
    block = source.siblings(statement)
    later = block[block.index(statement) + 1 :]
    name = statement.targets[0].id
    for loop in later:
        if isinstance(loop, ast.For | ast.While) and _reads(loop, name):
            return [source.removed(statement), source.before(loop.body[0], source.code(statement))]
    return []


def _reads(node: ast.AST, name: str) -> bool:
    return any(isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(node))


def retained(spot: Spot) -> list[Edit]:
    """`y.retain_grad()` before the pass if `y.grad` is read; or an update in place if it makes a new tensor."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    if "in place" in spot.finding.fix:
        return updated_in_place(spot)
    cure = re.match(r"([\w.]+)\.retain_grad\(\)", spot.finding.fix)
    call = spot.backward_before(statement)
    if cure is None or call is None:
        return []
    return [source.before(source.statement(call), f"{cure[1]}.retain_grad()")]


def updated_in_place(spot: Spot) -> list[Edit]:
    """An update in place under no_grad in place of `p = p - rate * p.grad` or of `p.sub(...)`."""
    source, statement = spot.source, spot.statement
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        value = statement.value
        if isinstance(value.op, ast.Sub | ast.Add):
            sign = "-" if isinstance(value.op, ast.Sub) else "+"
            left, right = source.code(value.left), source.code(value.right)
            clears = re.search(r"zero_grad|\.grad = None|\.grad\.zero_", source.text)
            more = "" if clears else f"; {left}.grad = None"
            return [source.replaced(statement, f"with torch.no_grad(): {left} {sign}= {right}{more}")]
    if isinstance(statement, ast.AugAssign):
        return [source.replaced(statement, f"with torch.no_grad(): {source.code(statement)}")]
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and not call.func.attr.endswith("_"):
            arguments = source.text[source.span(call.func)[1] : source.span(call)[1]]
            new = f"with torch.no_grad(): {source.code(call.func)}_{arguments}"
            return [source.replaced(statement, new)]
    return []


def out_of_place(spot: Spot) -> list[Edit]:
    """`y = y + 1` in place of `y += 1`, `y = y.add(1)` of `y.add_(1)`; for a leaf, the statement under no_grad."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    if "torch.no_grad()" in spot.finding.fix:
        return [source.replaced(statement, f"with torch.no_grad(): {source.code(statement)}")]
    if "between two rounds" in spot.finding.fix:
        return detached(spot)
    written = (
        statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    )
    if isinstance(written, ast.Subscript) and isinstance(written.value, ast.Name):
        name = written.value.id
        return [source.before(statement, f"{name} = {name}.clone()")]
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        target = statement.target.id
        sign = _SIGNS.get(type(statement.op))
        if sign is None:
            return []
        return [source.replaced(statement, f"{target} = {target} {sign} ({source.code(statement.value)})")]
    for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
        name = called(call)
        if isinstance(call.func, ast.Attribute) and name.endswith("_") and not name.startswith("_"):
            if not isinstance(call.func.value, ast.Name):
                return []
            arguments = source.text[source.span(call.func)[1] : source.span(call)[1]]
            new = f"{source.code(call.func)[:-1]}{arguments}"
            alone = isinstance(statement, ast.Expr) and statement.value is call
            return [source.replaced(call, f"{call.func.value.id} = {new}" if alone else new)]
    return []


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}


def behind_backward(spot: Spot) -> list[Edit]:
    """A write moved behind the call of backward()."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    block = source.siblings(statement)
    for later in block[block.index(statement) + 1 :]:
        if source.calls("backward", within=later):
            return [source.removed(statement), source.after(later, source.code(statement))]
    return []
