"""Cures for an op at the edge of its domain, in the program's own expressions: `torch.log(p.clamp(min=1e-8))` in the
place of `torch.log(p)`; the remedy that the op itself has (`zero_infinity=True`), if it has one."""

import ast
import re
from collections.abc import Callable

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.fix import Fix, code_of, typed_for
from gradviz.events.kinds import OpRan
from gradviz.events.values import Stat
from gradviz.query.flow import reach
from gradviz.query.functions_of_source import called
from gradviz.query.ops import DIVIDING, LOG_SHARES, SHARES, function_name

_SMALL, _SMALL_IN_HALF = "1e-12", "1e-4"  # float16 has no number between 0 and 6e-8
_BESIDE_ONE = {"float16": "1e-3", "bfloat16": "1e-2"}  # the distance to 1 that the dtype still has
_ARCS = ("acos", "asin", "arccos", "arcsin")
_ROOTS = ("sqrt", "rsqrt")
_LOGARITHMS = ("log", "log2", "log10")
_SPREADS = ("std", "var")
_OF_ONE = "of a single element the unbiased estimate is 0 / 0"
_OF_LONG_TARGET = "a target that is longer than its input has an infinite loss, and no gradient then"
_MASKING = ("attention", "multi_head")  # parts of names of ops
_SPECTRAL = ("eigh", "eig", "svd")
_OF_NO_ELEMENT = "in a row of -inf alone, softmax is 0 / 0"
_MASKED = ("masked_fill", "masked_fill_", "where")
_MOST = 1000  # the most tensors among which a mask is looked for


def off_the_point(case: Case, op: OpRan) -> Fix | None:
    """The expression of an op with an input beside the point at which its derivative is not finite; None if it is not
    known how to write it."""
    node = case.query.places.tree(op.site)
    if op.op.removeprefix("linalg_") in _SPECTRAL:
        apart = "use the values alone (torch.linalg.eigvalsh, svdvals), or add different small numbers to the diagonal"
        return Fix(f"the vectors of equal eigenvalues or singular values have no derivative: {apart}")
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
    node = case.query.places.tree(op.site)
    if own := _own_remedy(case, op, node) or without_infinity(case, op):
        return own
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


def _own_remedy(case: Case, op: OpRan, node: ast.expr | None) -> Fix | None:
    """The remedy that a loss or an attention has for its own singular point; None for another op or reason."""
    if op.op == "ctc_loss" and isinstance(node, ast.Call):
        others = [keyword for keyword in node.keywords if keyword.arg != "zero_infinity"]
        keywords = [*others, ast.keyword("zero_infinity", ast.Constant(True))]
        return _in_place_of(ast.unparse(ast.Call(node.func, node.args, keywords)), node, f": {_OF_LONG_TARGET}")
    if op.op in ("cross_entropy", "nll_loss") and (target := _ignored_target(case, op)):
        return Fix(f"skip this batch: all of {target} is ignored, and the mean of no loss is 0 / 0")
    if any(part in op.op for part in _MASKING) and (row := _masked_row(case, op)) is not None:
        return Fix(f"row {row} of the mask leaves no key to attend to: leave this row out, or let it have a key")
    return None


def _ignored_target(case: Case, op: OpRan) -> str:
    """The name of a target of a loss of which every element is the ignored index; empty if there is none."""
    ignored = re.search(r"ignore_index=(-?\d+)", op.args)
    index = int(ignored[1]) if ignored else -100
    for tensor in op.inputs[1:]:
        value = case.query.memory.value(tensor, op.index - 1) if tensor else None
        stats = value.stats if value is not None and "int" in value.dtype else None
        if stats is not None and stats.min == stats.max == index:
            return case.words.called(tensor)
    return ""


def _masked_row(case: Case, op: OpRan) -> int | None:
    """The first row of a mask among the inputs of an op that is -inf, or False, throughout; None if there is none."""
    for tensor in op.inputs:
        value = case.query.memory.value(tensor, op.index - 1) if tensor else None
        array = value.array if value is not None else None
        if array is None or array.ndim < 2:
            continue
        masked = ~array if array.dtype == bool else np.isneginf(array) if array.dtype.kind == "f" else None
        if masked is not None and (is_whole := masked.all(axis=-1)).any():
            return int(np.flatnonzero(is_whole)[0])
    return None


def _divisor(case: Case, op: OpRan, node: ast.expr, small: str) -> str:
    """A divisor that is never 0: `max(n, 1)` for a number, as a count is; empty for a tensor with negative elements."""
    tensors = [tensor for tensor in op.inputs if tensor]
    if len(tensors) == 1 and op.op in DIVIDING:
        return f"max({ast.unparse(node)}, 1)"
    least = case.trace.states.statistic(Stat.MIN, tensors[-1], op.index - 1)
    return f"{_bracketed(node)}.clamp(min={small})" if least >= 0 else ""


def _biased(call: ast.Call) -> Fix | None:
    """A spread that is divided by the number of elements; None if the call says by what to divide."""
    if any(keyword.arg in ("unbiased", "correction") for keyword in call.keywords):
        return None
    if any(isinstance(node, ast.Constant) and isinstance(node.value, bool) for node in call.args):
        return None
    keywords = [*call.keywords, ast.keyword("unbiased", ast.Constant(False))]
    return _in_place_of(ast.unparse(ast.Call(call.func, call.args, keywords)), call, f": {_OF_ONE}")


def without_infinity(case: Case, op: OpRan) -> Fix | None:
    """The masks from which an op that makes a NaN has its infinities, with the least number of the dtype where they
    write -inf; None if no input is infinite, or if it is not known how to write them."""
    tensors, statistic = case.query.tensors, case.trace.states.statistic

    def behind(maker: int) -> list[int]:
        """The ops that made the infinite inputs of an op."""
        infinite = [t for t in tensors.op(maker).inputs if t and statistic(Stat.INF, t, maker - 1) > 0]
        return [made for t in infinite if (made := tensors.maker(t)) and tensors.is_op(made)]

    makers = map(tensors.op, reach(behind(op.index), behind, _MOST))
    masks = {maker.site: maker for maker in makers if "-inf" in maker.args}
    calls = [_with_least_number(case, mask) for mask in masks.values()]
    known = [call for call in calls if call is not None]
    if not known or len(known) < len(calls):
        return None
    edits = [typed_for(old, new, line) for new, old, line, _ in known]
    (new, old, _, where), *others = known
    text = f"{new}  # in place of {old}{where}"
    text += "".join(f", and {new} in place of {old}{where}" for new, old, _, where in others)
    is_share = op.op in SHARES | LOG_SHARES
    reason = _OF_NO_ELEMENT if is_share else f"with -inf there, {function_name(op.op)} gives NaN"
    return Fix(f"{text}: {reason}", lambda spot: [edit for one in edits for edit in one(spot)])


def _with_least_number(case: Case, mask: OpRan) -> tuple[str, str, int, str] | None:
    """The call of a mask as it ought to be and as it is, its line, and this line in words; None for another call."""
    node = case.query.places.tree(mask.site)
    if not isinstance(node, ast.Call) or called(node) not in _MASKED:
        return None
    least = _parsed(f"torch.finfo(torch.{case.trace.states.dtype_of(mask.outputs[0])}).min")
    arguments = [least if "inf" in ast.unparse(argument) else argument for argument in node.args]
    new, old = code_of(ast.Call(node.func, arguments, node.keywords)), ast.unparse(node)
    return (new, old, case.query.places.line(mask.site)[1], case.words.at_line(mask.site)) if new != old else None


def _inside_of_one(case: Case, op: OpRan, node: ast.expr) -> str:
    """An argument between -1 and 1, without these two, in the place of a clamp that lets them pass."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and called(node) in ("clamp", "clip"):
        node = node.func.value if len(node.args) == 2 else node
    beside = _BESIDE_ONE.get(_dtype(case, op), "1e-6")
    return f"{_bracketed(node)}.clamp(-1 + {beside}, 1 - {beside})"


def _small(case: Case, op: OpRan) -> str:
    return _SMALL_IN_HALF if _dtype(case, op) == "float16" else _SMALL


def _dtype(case: Case, op: OpRan) -> str:
    return case.trace.states.dtype_of(op.inputs[0] if op.inputs else 0)


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


def _in_place_of(text: str, node: ast.expr, reason: str = "") -> Fix:
    """The cure that puts a text in the place of an expression on the line of the finding."""
    new, old = code_of(_parsed(text)), ast.unparse(node)
    return Fix(f"{new}  # in place of {old}{reason}", typed_for(old, new))
