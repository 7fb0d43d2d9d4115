"""Cures for an op at the edge of its domain, in the program's own expressions: `torch.log(p.clamp(min=1e-8))` in the
place of `torch.log(p)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from gradviz.diagnose.case import Case
from gradviz.diagnose.fix import Fix, typed_for
from gradviz.events.kinds import OpRan
from gradviz.events.values import Stat
from gradviz.query.functions_of_source import called
from gradviz.query.ops import DIVIDING, LOG_SHARES, SHARES
from gradviz.query.source_trees import expression_at
from gradviz.words.escape import clean

_SMALL, _SMALL_IN_HALF = "1e-12", "1e-4"  # float16 has no number between 0 and 6e-8
_BESIDE_ONE = {"float16": "1e-3", "bfloat16": "1e-2"}  # the distance to 1 that the dtype still has
_ARCS = ("acos", "asin", "arccos", "arcsin")
_ROOTS = ("sqrt", "rsqrt")
_LOGARITHMS = ("log", "log2", "log10")
_SPREADS = ("std", "var")
_OF_ONE = "of a single element the unbiased estimate is 0 / 0"
_OF_NO_ELEMENT = "in a row of -inf alone, softmax is 0 / 0"


def off_the_point(case: Case, op: OpRan) -> Fix | None:
    """The expression of an op with an input beside the point at which its derivative is not finite; None if it is not
    known how to write it."""
    node = expression_at(case.query, op.site)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base = f"({ast.unparse(node.left)} + {_small(case, op)})"
        return _in_place_of(f"{base} ** {_bracketed(node.right)}", node)
    if not isinstance(node, ast.Call):
        return None
    if called(node) in _ARCS:
        return _with_argument(node, lambda x: _inside_of_one(case, op, x))
    if called(node) in (*_ROOTS, "pow"):
        return _with_argument(node, lambda x: f"({ast.unparse(x)} + {_small(case, op)})")
    return None


def in_the_domain(case: Case, op: OpRan) -> Fix | None:
    """The expression of an op that made the first NaN or infinity, with an input for which it is finite; None if it is
    not known how to write it. A division outside of a graph may have wrong data: how to write it is not known."""
    if op.op in SHARES | LOG_SHARES:
        return _with_a_number_in_each_row(case, op)
    node = expression_at(case.query, op.site)
    small = "1e-4" if _dtype(case, op) == "float16" else "1e-8"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        if not any(case.query.tensors.requires_grad(tensor, op.index) for tensor in op.outputs):
            return None
        divisor = _divisor(case, op, node.right, small)
        return _in_place_of(f"{_bracketed(node.left)} / {divisor}", node) if divisor else None
    if not isinstance(node, ast.Call):
        return None
    if called(node) in _SPREADS:
        return _biased(node)
    if called(node) in _ARCS:
        return _with_argument(node, lambda x: _inside_of_one(case, op, x))
    if called(node) in _LOGARITHMS:
        return _with_argument(node, lambda x: f"{_bracketed(x)}.clamp(min={small})")
    if called(node) in _ROOTS:
        return _with_argument(node, lambda x: f"{_bracketed(x)}.clamp(min={_small(case, op)})")
    return None


def _divisor(case: Case, op: OpRan, node: ast.expr, small: str) -> str:
    """A divisor that is never 0: `max(n, 1)` for a number, as a count is; empty for a tensor with negative elements."""
    tensors = [tensor for tensor in op.inputs if tensor]
    if len(tensors) == 1 and op.op in DIVIDING:
        return f"max({ast.unparse(node)}, 1)"
    row = case.trace.states.valued(tensors[-1], op.index - 1)
    least = case.trace.states.stats[row, Stat.MIN] if row >= 0 else -1.0
    return f"{_bracketed(node)}.clamp(min={small})" if least >= 0 else ""


def _biased(call: ast.Call) -> Fix | None:
    """A spread that is divided by the number of elements; None if the call says by what to divide."""
    if any(keyword.arg in ("unbiased", "correction") for keyword in call.keywords):
        return None
    if any(isinstance(node, ast.Constant) and isinstance(node.value, bool) for node in call.args):
        return None
    keywords = [*call.keywords, ast.keyword("unbiased", ast.Constant(False))]
    return _in_place_of(ast.unparse(ast.Call(call.func, call.args, keywords)), call, f": {_OF_ONE}")


def _with_a_number_in_each_row(case: Case, op: OpRan) -> Fix | None:
    """The mask of a softmax with the least number of the dtype where it writes -inf; None if the op in front of the
    softmax is no such mask."""
    mask = case.query.tensors.made(op.inputs[0])
    if not isinstance(mask, OpRan):
        return None
    node = expression_at(case.query, mask.site)
    if not isinstance(node, ast.Call) or called(node) not in ("masked_fill", "masked_fill_") or not node.args:
        return None
    is_method = len(node.args) == 2 and isinstance(node.func, ast.Attribute)
    masked = node.func.value if is_method and isinstance(node.func, ast.Attribute) else node.args[0]
    least = ast.parse(f"torch.finfo({_bracketed(masked)}.dtype).min", mode="eval").body
    filled = ast.Call(node.func, [*node.args[:-1], least], node.keywords)
    line, where = case.query.places.line(mask.site)[1], case.words.at_line(mask.site)
    return _in_place_of(ast.unparse(filled), node, f"{where}: {_OF_NO_ELEMENT}", line)


def _inside_of_one(case: Case, op: OpRan, node: ast.expr) -> str:
    """An argument between -1 and 1, without these two, in the place of a clamp that lets them pass."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and called(node) in ("clamp", "clip")
    ):
        node = node.func.value if len(node.args) == 2 else node
    beside = _BESIDE_ONE.get(_dtype(case, op), "1e-6")
    return f"{_bracketed(node)}.clamp(-1 + {beside}, 1 - {beside})"


def _small(case: Case, op: OpRan) -> str:
    return _SMALL_IN_HALF if _dtype(case, op) == "float16" else _SMALL


def _dtype(case: Case, op: OpRan) -> str:
    form = (
        case.trace.states.form(case.trace.states.first(op.inputs[0])) if op.inputs and op.inputs[0] else None
    )
    return form.dtype if form is not None else ""


def _with_argument(call: ast.Call, changed: Callable[[ast.expr], str]) -> Fix | None:
    """A call with another argument: `x` in `torch.sqrt(x)` and in `x.sqrt()`; None if it has none."""
    others = 1 if called(call) == "pow" else 0
    if len(call.args) == others and isinstance(call.func, ast.Attribute):
        method = ast.Attribute(_parsed(changed(call.func.value)), call.func.attr, ast.Load())
        return _in_place_of(ast.unparse(ast.Call(method, call.args, call.keywords)), call)
    if len(call.args) != others + 1:
        return None
    arguments = [_parsed(changed(call.args[0])), *call.args[1:]]
    return _in_place_of(ast.unparse(ast.Call(call.func, arguments, call.keywords)), call)


def _parsed(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _bracketed(node: ast.expr) -> str:
    text = ast.unparse(node)
    return f"({text})" if isinstance(node, ast.BinOp | ast.UnaryOp | ast.IfExp) else text


def _in_place_of(text: str, node: ast.expr, reason: str = "", line: int = 0) -> Fix:
    """The cure that puts a text in the place of an expression, on the line of the finding or on another line."""
    new, old = re.sub(r"(?<=\de-)0(?=\d)", "", text), ast.unparse(node)  # 1e-6, not 1e-06
    return Fix(clean(f"{new}  # in place of {old}{reason}"), typed_for(old, new, line))
