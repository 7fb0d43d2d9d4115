"""The reasons why no gradient passes an event, and the cures: edits that let a gradient through, without the call, the
block or the copy that cuts the graph, and changed statements of the program, if they can be typed."""

import ast
import copy
import re
from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.fix import Edit, Fix, SourceText, Spot, keyword_added, makes_edits, typed_as, typed_for
from gradviz.events.kinds import OpRan, TensorMade
from gradviz.query.copies import numbers_in, read_in_its_line, written_in_its_line
from gradviz.query.flow import Reason, place_of_cut, switched_off, why_no_node
from gradviz.query.functions_of_source import Function, called
from gradviz.query.ops import DISCRETE, DRAWN, function_name
from gradviz.query.source_trees import appended_before, assigned_to, in_place, method_calls, statement_at
from gradviz.words.absence import NO_NODE

_CUTS = {"detach", "detach_", "item", "numpy", "tolist"}
_OF_MATH = {  # functions of `math` that torch has by the same name
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "expm1", "log", "log1p", "log2",
    "log10", "sqrt", "erf",
}  # fmt: skip
_MAKERS = {"tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor"}


def without_cut(spot: Spot) -> list[Edit]:
    """`x` in place of `x.detach()`, `torch.sin(x)` of `math.sin(x)`; or a statement moved out of `torch.no_grad()`."""
    source, statement = spot.source, spot.statement
    cut = _with_twins(source, spot.area, statement)
    around = source.parent(cut)  # `float()`, which makes a number of it again
    for area in (around if isinstance(around, ast.expr) and _is_cut(around) else cut, statement):
        if edits := list(_uncut(source, area)) or list(_of_torch(source, area)):
            outer = source.parent(area)  # or the program goes on with an array of NumPy, or a number
            is_left = isinstance(outer, ast.Attribute) and outer.attr in ("numpy", "item", "tolist")
            return [] if is_left else [*edits, *_uncut_sources(source, statement)]
    return _with_grad_mode(source, statement)


@makes_edits
def typed_without_cut(spot: Spot, code: str) -> list[Edit]:
    """Puts a statement in the place of a statement with the same target: `y[i] = x[i] ** 2`."""
    is_same = assigned_to(ast.parse(code).body[0]) == assigned_to(spot.statement) != ""
    return typed_as(code)(spot) if is_same else without_cut(spot)


@makes_edits
def stacked(spot: Spot, code: str) -> list[Edit]:
    """Puts `torch.stack(losses)` in place of `torch.tensor(losses)`, and tensors in the list."""
    made, sources = spot.calls_here(*_MAKERS), list(_uncut_sources(spot.source, spot.statement))
    return [spot.source.replaced(made[0], code), *sources] if made and sources else []


def redrawn(spot: Spot) -> list[Edit]:
    """`q.rsample()` in place of the only `q.sample()` of a line."""
    calls = [call for call in spot.calls_here("sample") if isinstance(call.func, ast.Attribute)]
    if len(calls) != 1:
        return []
    return [spot.source.replaced(calls[0].func, f"{spot.receiver(calls[0])}.rsample")]


def _with_twins(source: SourceText, area: ast.AST, statement: ast.stmt) -> ast.AST:
    """The whole statement, if it cuts several calls of the same function, as `a, b = f(x).detach(), f(y).detach()`
    does; else the area as it is."""
    cuts = [node for node in ast.walk(statement) if isinstance(node, ast.expr) and _is_cut(node)]
    called_by = {node: _behind_cut(node) for node in cuts}
    functions = [source.code(inner.func) for inner in called_by.values() if isinstance(inner, ast.Call)]
    inner_call = called_by.get(area) if isinstance(area, ast.expr) else None
    return statement if isinstance(inner_call, ast.Call) and functions.count(source.code(inner_call.func)) > 1 else area


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
        if isinstance(outer, ast.With) and switches_grad_off(source, outer.items[0].context_expr):
            return source.without_header(outer) if len(outer.items) == 1 else []
        if isinstance(outer, Function):
            for decorator in outer.decorator_list:
                if switches_grad_off(source, decorator):
                    start, end = source.span(decorator)
                    return [Edit(source.text.rindex("@", 0, start), source.span(outer)[0], "")] if end else []
            return []
    return []


def switches_grad_off(source: SourceText, node: ast.expr) -> bool:
    """Whether an expression switches grad mode off, as `torch.no_grad()` does."""
    return bool(re.search(r"\b(no_grad|inference_mode)\b|set_grad_enabled\(False\)", source.code(node)))


_CHECKPOINT = "CheckpointFunction"
_NOT_REENTRANT = Fix(
    "pass use_reentrant=False to checkpoint(), or give it an input that requires grad",
    keyword_added("checkpoint", "use_reentrant=False"),
)
_DETACH, _SAMPLE, _NO_GRAD = ".detach()", ".sample(", "no_grad"
_COPYING = ("tensor", "as_tensor")  # makers that take the numbers of a tensor
_COPY = Fix("keep the tensor itself, or torch.stack() of several: not .item(), .numpy() or torch.tensor()", without_cut)
_CURES = {
    Reason.NOTHING_REQUIRES_GRAD: Fix("make the leaf with requires_grad=True", without_cut),
    Reason.GRAD_MODE_OFF: Fix("compute it outside of torch.no_grad()", without_cut, _NO_GRAD),
    Reason.NOT_DIFFERENTIABLE: Fix(
        "use a differentiable op here (softmax in place of argmax, no comparison, no integers)",
        lambda spot: [] if spot.calls_here(*_MAKERS) else without_cut(spot),
    ),
}


def how_cut(case: Case, event: int) -> tuple[str, Fix]:
    """(reason, cure): why no gradient passes an event, and how to let it pass."""
    maker = case.trace.event(event)
    if isinstance(maker, OpRan):
        if not maker.grad_enabled and switched_off(case.query, event) is not None:
            return (
                "grad mode is off from here on",
                Fix(
                    "switch grad mode off by a block with torch.no_grad(), which ends with its block",
                    without_cut,
                    _NO_GRAD,
                ),
            )
        if maker.op == "data":
            return ".data is outside of the graph", Fix("use the tensor itself, without .data", without_cut, ".data")
        if case.query.nodes.of_op(event) and event in case.downstream.flat:
            flat = Fix("use an op here whose derivative is not 0 everywhere, or a straight-through estimator")
            return f"the derivative of {function_name(maker.op)} is 0", _noise_beside(case, event) or flat
        reason = why_no_node(case.query, maker)
        if reason is Reason.NOTHING_REQUIRES_GRAD and written_in_its_line(case.query, event):
            statement = statement_at(case.query, case.place(event))
            code = of_tensors(statement) if statement is not None else ""
            return "what is written here are plain numbers", Fix(code, typed_without_cut(code)) if code else _COPY
        if reason is Reason.GRAD_MODE_OFF and maker.op not in DISCRETE and _is_sample(case, event):
            return _with_a_graph(case, event)
        if reason is Reason.NOTHING_REQUIRES_GRAD and maker.op == _CHECKPOINT:
            return f"{NO_NODE[reason]}, and a reentrant checkpoint sees no other tensors", _NOT_REENTRANT
        if reason is Reason.GRAD_MODE_OFF and (update := _update_in_place(case, maker)):
            return NO_NODE[reason], update
        if reason is Reason.DETACHED:
            return NO_NODE[reason], _without_detach(case, event)
        if reason is Reason.NOT_DIFFERENTIABLE:
            return f"the result of {function_name(maker.op)} is not differentiable", _CURES[reason]
        return NO_NODE[reason], _CURES[reason]
    assert isinstance(maker, TensorMade)
    if maker.how in DRAWN and _is_sample(case, event):
        return _with_a_graph(case, event)
    if maker.how.startswith("detach"):
        return NO_NODE[Reason.DETACHED], _without_detach(case, event)
    if case.query.trace.states.base(maker.tensor):
        return (
            f".{maker.how} is outside of the graph",
            Fix(f"use the tensor itself, without .{maker.how}", without_cut, f".{maker.how}"),
        )
    return f"{maker.how} makes a new leaf of the plain numbers", _without_copy(case, maker) or _COPY


def _noise_beside(case: Case, event: int) -> Fix | None:
    """`mean + std * torch.randn_like(std)` for `torch.normal(mean, std)`; None for any other call."""
    for call, _ in method_calls(statement_at(case.query, case.place(event)), "normal"):
        if len(call.args) == 2 and not call.keywords:
            mean, std = map(ast.unparse, call.args)
            return Fix(
                f"{mean} + {std} * torch.randn_like({std})",
                typed_for(ast.unparse(call), f"({mean} + ({std}) * torch.randn_like({std}))"),
            )
    return None


def _update_in_place(case: Case, op: OpRan) -> Fix | None:
    """`x -= 0.1 * x.grad` for `x = x - 0.1 * x.grad`, which makes a new tensor from a leaf; else None."""
    leaf = op.inputs[0] if op.inputs else 0
    if not leaf or not case.query.tensors.is_leaf_that_requires_grad(leaf, op.index):
        return None
    statement = statement_at(case.query, case.query.places.site(op.site))
    update = in_place(statement, assigned_to(statement))
    if not update:
        return None
    return Fix(f"{update}  # in place: it stays the leaf", typed_without_cut(update))


class _OfTensors(ast.NodeTransformer):
    """Takes `.item()` and `float()` out of an expression."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "item" and not node.args:
            return self.generic_visit(node.func.value)
        if isinstance(node.func, ast.Name) and node.func.id == "float" and len(node.args) == 1:
            return self.generic_visit(node.args[0])
        return self.generic_visit(node)


def of_tensors(statement: ast.stmt) -> str:
    """A statement without `.item()` and `float()`; empty if it has none."""
    after = _with_tensors(statement)
    return "" if after == ast.unparse(statement) else after


def _without_copy(case: Case, made: TensorMade) -> Fix | None:
    """`y = x ** 2` for `y = torch.tensor(x ** 2)`, if the statement has this form; else None."""
    statement = statement_at(case.query, case.query.places.site(made.site))
    if of_list := _of_list(case, made, statement):
        return of_list
    call = statement.value if isinstance(statement, ast.Assign) else None
    if made.how not in _COPYING or not isinstance(call, ast.Call) or not call.args:
        return None
    if not isinstance(call.func, ast.Attribute) or call.func.attr != made.how:
        return None
    target, own = assigned_to(statement), call.args[0]
    is_tensor, parts = case.query.names.tensor_called, own.elts if isinstance(own, ast.List) else []
    named = [any(is_tensor(name, made.index) for name in numbers_in(part)) for part in parts]
    are_tensors = bool(parts) and all(named)
    if are_tensors or (isinstance(own, ast.ListComp) and _with_tensors(own) != ast.unparse(own)):
        new = f"{ast.unparse(call.func.value)}.stack({_with_tensors(own)})"
        return Fix(f"{target} = {new}  # the tensors themselves", typed_without_cut(f"{target} = {new}"))
    if isinstance(own, ast.BinOp | ast.Call) and read_in_its_line(case.query, made):
        new = _with_tensors(own)
        return Fix(f"{target} = {new}  # the tensor itself", typed_without_cut(f"{target} = {new}"))
    return None


def _of_list(case: Case, made: TensorMade, statement: ast.stmt | None) -> Fix | None:
    """`torch.stack(losses)` for `torch.tensor(losses)` of a list that was filled with `losses.append(loss.item())`, and
    the line that fills it with tensors; None for any other statement."""
    for call, module in method_calls(statement, made.how):
        filled = call.args[0] if len(call.args) == 1 and isinstance(call.args[0], ast.Name) else None
        site = case.query.places.site(made.site)
        appended = appended_before(case.query, site, filled.id) if filled is not None else None
        if filled is None or appended is None or of_tensors(ast.Expr(appended)) == "":
            continue
        new = f"{ast.unparse(module)}.stack({filled.id})"
        text = f"{new}  # and {_with_tensors(appended)} at line {appended.lineno}, without the numbers"
        return Fix(text, stacked(new))
    return None


def _with_tensors(node: ast.AST) -> str:
    """The text of a statement or an expression without `.item()` and `float()`."""
    return ast.unparse(_OfTensors().visit(copy.deepcopy(node)))


def _is_sample(case: Case, event: int) -> bool:
    """Whether a cut is the `sample()` of a distribution."""
    return _SAMPLE in _text_of_cut(case, event)


def _with_a_graph(case: Case, event: int) -> tuple[str, Fix]:
    """(reason, cure) for the `sample()` of a distribution."""
    drawn = _text_of_cut(case, event).replace(_SAMPLE, ".rsample(")
    return "sample() draws without a graph", Fix(f"{drawn}  # which keeps the graph", redrawn)


def _text_of_cut(case: Case, event: int) -> str:
    """The expression at the place of a cut."""
    place = place_of_cut(case.query, event)
    return case.query.places.expression(place.number) if place is not None else ""


def _without_detach(case: Case, event: int) -> Fix:
    """The expression at a cut without its `detach()`; general advice if the expression does not end with it."""
    place = place_of_cut(case.query, event)
    text = _text_of_cut(case, event)
    if ends := re.search(r"\.detach_?\(\)$", text):
        return Fix(f"{text[: ends.start()]}  # without {ends[0]}", without_cut, ends[0])
    line = case.query.places.line_text(place.number) if place is not None else ""
    if "detach" in line:
        return Fix(f"leave out {_DETACH} here", without_cut, _DETACH)
    return Fix("use the tensor itself here, not a copy of its values", without_cut)
