"""Why no gradient passes an event, and the cure: a changed statement of the program, if it can be typed."""

from __future__ import annotations

import ast
import copy

from gradviz.diagnose.case import Case
from gradviz.diagnose.cut_edits import (
    redrawn,
    stacked,
    typed_without_cut,
    without_cut,
    without_cut_of_discrete,
)
from gradviz.diagnose.fix import Fix, with_keyword
from gradviz.events.kinds import OpRan, TensorMade
from gradviz.query.copies import numbers_in, read_in_its_line, written_in_its_line
from gradviz.query.flow import Reason, place_of_cut, switched_off, why_no_node
from gradviz.query.ops import DISCRETE, DRAWN, function_name
from gradviz.query.source_trees import appended_before, assigned_to, in_place, method_calls, statement_at
from gradviz.words.absence import NO_NODE

_CHECKPOINT = "CheckpointFunction"
_NOT_REENTRANT = Fix(
    "pass use_reentrant=False to checkpoint(), or give it an input that requires grad",
    lambda spot: [
        with_keyword(spot.source, call, "use_reentrant=False") for call in spot.calls_here("checkpoint")[:1]
    ],
)
_DETACH, _SAMPLE, _NO_GRAD = ".detach()", ".sample(", "no_grad"
_COPYING = ("tensor", "as_tensor")  # makers that take the numbers of a tensor
_COPY = Fix(
    "keep the tensor itself, or torch.stack() of several: not .item(), .numpy() or torch.tensor()",
    without_cut,
)
_CURES = {
    Reason.NOTHING_REQUIRES_GRAD: Fix("make the leaf with requires_grad=True", without_cut),
    Reason.GRAD_MODE_OFF: Fix("compute it outside of torch.no_grad()", without_cut, _NO_GRAD),
    Reason.NOT_DIFFERENTIABLE: Fix(
        "use a differentiable op here (softmax in place of argmax, no comparison, no integers)",
        without_cut_of_discrete,
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
            return ".data is outside of the graph", Fix(
                "use the tensor itself, without .data", without_cut, ".data"
            )
        reason = why_no_node(case.query, maker)
        if reason is Reason.NOTHING_REQUIRES_GRAD and written_in_its_line(case.query, event):
            return "what is written here are plain numbers", _of_tensors(case, event)
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
    if case.query.trace.states.base(maker.tensor):
        return (
            f".{maker.how} is outside of the graph",
            Fix(f"use the tensor itself, without .{maker.how}", without_cut, f".{maker.how}"),
        )
    return f"{maker.how} makes a new leaf of the plain numbers", _without_copy(case, maker) or _COPY


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


def _of_tensors(case: Case, event: int) -> Fix:
    """The statement of an event with tensors in place of their numbers; general advice if this changes nothing."""
    statement = statement_at(case.query, case.place(event))
    code = of_tensors(statement) if statement is not None else ""
    return Fix(code, typed_without_cut(code)) if code else _COPY


def of_tensors(statement: ast.stmt) -> str:
    """A statement without `.item()` and `float()`; empty if it has none."""
    after = _with_tensors(statement)
    return "" if after == ast.unparse(statement) else after


def _are_tensors(case: Case, parts: list[ast.expr], at: int) -> bool:
    """Whether all elements of a list are computed from tensors that the program names."""
    called = case.query.names.tensor_called
    return bool(parts) and all(any(called(name, at) for name in numbers_in(part)) for part in parts)


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
    if isinstance(own, ast.List) and _are_tensors(case, own.elts, made.index):
        new = f"{ast.unparse(call.func.value)}.stack([{', '.join(map(_with_tensors, own.elts))}])"
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
    if text.endswith(_DETACH):
        return Fix(f"{text.removesuffix(_DETACH)}  # without {_DETACH}", without_cut, _DETACH)
    line = case.query.places.line_text(place.number) if place is not None else ""
    if "detach" in line:
        return Fix(f"leave out {_DETACH} here", without_cut, _DETACH)
    return Fix("use the tensor itself here, not a copy of its values", without_cut)
