"""Cures of numbers: domains, singular points, shapes, losses, activations without a gradient."""

from __future__ import annotations

import ast
import re

from gradviz.cures.graph_cures import with_keyword
from gradviz.cures.source_text import Edit, SourceText
from gradviz.cures.spot import Spot
from gradviz.query.functions_of_source import called


def off_the_edge(spot: Spot) -> list[Edit]:
    """The expression of the finding's cure in place of the one that it names: `torch.sqrt(x + 1e-12)`."""
    named = re.match(r"(.+?)  # in place of (.+?)(?:, line (\d+))?(?:: .*)?$", spot.finding.fix)
    if named is None:
        return _without_the_maximum(spot)
    new, old, line = named.groups()
    for node in spot.source.nodes(int(line or spot.finding.line)):
        if isinstance(node, ast.expr) and ast.unparse(node) == old:
            return [spot.source.replaced(node, new)]
    return []


def _without_the_maximum(spot: Spot) -> list[Edit]:
    """The maximum subtracted before exp."""
    for call in spot.calls_here("exp") if spot.finding.rule == "nonfinite-forward" else ():
        value = _argument(call)
        if value is not None:
            code = _bracketed(spot.source, value)
            return [spot.source.replaced(value, f"{spot.source.code(value)} - {code}.amax(-1, keepdim=True)")]
    return []


def _argument(call: ast.Call) -> ast.expr | None:
    """The expression that an op is applied to: `x` in `x.sqrt()` and in `torch.sqrt(x)`."""
    if call.args:
        return call.args[0]
    return call.func.value if isinstance(call.func, ast.Attribute) else None


def _bracketed(source: SourceText, value: ast.expr) -> str:
    code = source.code(value)
    return f"({code})" if isinstance(value, ast.BinOp | ast.UnaryOp | ast.IfExp) else code


def masked_inside(spot: Spot) -> list[Edit]:
    """The mask around the argument, too: `torch.where(m, f(torch.where(m, x, 1.0)), 0)`."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    for where in (n for n in ast.walk(statement) if isinstance(n, ast.Call) and called(n) == "where"):
        if len(where.args) != 3:
            continue
        for inner in ast.walk(where.args[1]):
            if isinstance(inner, ast.Call) and called(inner) in ("sqrt", "log", "pow", "reciprocal", "rsqrt"):
                value = _argument(inner)
                if value is not None:
                    mask = source.code(where.args[0])
                    return [source.replaced(value, f"torch.where({mask}, {source.code(value)}, 1.0)")]
    return off_the_edge(spot)


def same_shape(spot: Spot) -> list[Edit]:
    """`.squeeze(-1)` on the operand that has the shape of a column."""
    source = spot.source
    for pair in _pairs(spot):
        shapes = _shapes(spot)
        for value, shape in zip(pair, shapes, strict=False):
            if shape and shape[-1] == 1 and len(shape) > 1:
                return [source.replaced(value, f"{_bracketed(source, value)}.squeeze(-1)")]
    return []


def _pairs(spot: Spot) -> list[tuple[ast.expr, ast.expr]]:
    """The two operands of the finding's expression."""
    for area in (spot.expression, spot.statement):
        if area is None:
            continue
        for node in ast.walk(area):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Add | ast.Mult | ast.Div):
                return [(node.left, node.right)]
            if isinstance(node, ast.Call) and len(node.args) == 2:
                return [(node.args[0], node.args[1])]
    return []


def _shapes(spot: Spot) -> list[tuple[int, ...] | None]:
    """The shapes of the two tensors that the finding is about, in the order of the operands."""
    return [spot.query.tensors.shape(tensor) for tensor in spot.finding.tensors[:2]]


def one_output(spot: Spot) -> list[Edit]:
    """`torch.sigmoid` in place of a softmax over one entry."""
    source = spot.source
    for call in spot.calls_here("softmax"):
        value = _argument(call)
        if value is not None:
            return [source.replaced(call, f"torch.sigmoid({source.code(value)})")]
    return []


def leaky(spot: Spot) -> list[Edit]:
    """A leaky rectifier in place of a rectifier, at its call or at the line that makes its module."""
    source = spot.source
    for call in spot.calls_here("relu"):
        value = _argument(call)
        if value is not None:
            return [source.replaced(call, f"torch.nn.functional.leaky_relu({source.code(value)})")]
    made = [n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) == "ReLU"]
    return (
        [source.replaced(made[0].func, source.code(made[0].func)[: -len("ReLU")] + "LeakyReLU")]
        if made
        else []
    )


def with_a_gradient(spot: Spot) -> list[Edit]:
    """A straight-through estimator for rounding, tanh for sign, a leaky rectifier for relu."""
    source = spot.source
    if "leaky_relu" in spot.finding.fix:
        return leaky(spot)
    for call in spot.calls_here("round", "floor", "ceil"):
        value = _argument(call)
        if value is not None:
            x = _bracketed(source, value)
            return [source.replaced(call, f"({x} + ({source.code(call)} - {x}).detach())")]
    for call in spot.calls_here("sign"):
        value = _argument(call)
        if value is not None:
            return [source.replaced(call, f"torch.tanh({source.code(value)})")]
    return []


def logits(spot: Spot) -> list[Edit]:
    """A loss with the input that it expects: without the softmax or sigmoid before it, or with log_softmax."""
    source, statement = spot.source, spot.statement
    if statement is None:
        return []
    for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
        if spot.finding.fix.startswith(f"{source.code(call.func)}(") and ")(" in spot.finding.fix:
            return [source.replaced(call, spot.finding.fix)]  # makes the module of a loss, then calls it
        if spot.finding.fix.startswith("log_target=") and called(call) == "kl_div":
            return [with_keyword(source, call, spot.finding.fix.partition("  #")[0])]
        if called(call) and _is_call_of(spot.finding.fix, source.code(call.func)):
            return [source.replaced(call, spot.finding.fix)]
    if "log_softmax" in spot.finding.fix:
        return _log_probabilities(spot)
    names = ("softmax", "sigmoid", "log_softmax")
    areas = [statement, source.function(statement), source.tree]
    for area in areas:
        for call in (n for n in ast.walk(area) if isinstance(n, ast.Call) and called(n) in names):
            value = _argument(call)
            if value is not None:
                return [source.replaced(call, source.code(value))]
    made = [
        n for n in ast.walk(source.tree) if isinstance(n, ast.Call) and called(n) in ("Softmax", "Sigmoid")
    ]
    return [source.replaced(made[0], "torch.nn.Identity()")] if len(made) == 1 else []


def _is_call_of(text: str, function: str) -> bool:
    """Whether a text is one call of a function."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return False
    return isinstance(tree, ast.Call) and "#" not in text and text.startswith(f"{function}(")


def _log_probabilities(spot: Spot) -> list[Edit]:
    statement = spot.statement
    elsewhere = re.match(r"(.+?)  # in place of (.+), line (\d+)", spot.finding.fix)
    for node in spot.source.nodes(int(elsewhere[3])) if elsewhere is not None else ():
        if elsewhere is not None and isinstance(node, ast.Call) and ast.unparse(node) == elsewhere[2]:
            return [spot.source.replaced(node, elsewhere[1])]
    calls = (
        [n for n in ast.walk(statement) if isinstance(n, ast.Call) and len(n.args) == 2] if statement else []
    )
    for call in calls:
        argument = call.args[0]
        if isinstance(argument, ast.Call) and called(argument) == "softmax":
            return [spot.source.replaced(argument.func, _log_of(spot, argument))]
        code = spot.source.code(argument)
        return [spot.source.replaced(call.args[0], f"torch.nn.functional.log_softmax({code}, dim=1)")]
    return []


def _log_of(spot: Spot, softmax: ast.Call) -> str:
    """The function for the logarithms of a call of softmax."""
    receiver = spot.receiver(softmax)
    return f"{receiver}.log_softmax" if receiver else "torch.nn.functional.log_softmax"


def right_axis(spot: Spot) -> list[Edit]:
    """The axis of the finding's cure in place of the axis of a softmax."""
    wanted = re.match(r"dim=(-?\d+)", spot.finding.fix)
    if wanted is None:
        return []
    for call in spot.calls_here("softmax", "log_softmax", "Softmax", "LogSoftmax"):
        named = [keyword.value for keyword in call.keywords if keyword.arg == "dim"]
        numbers = [node for node in call.args if isinstance(node, ast.Constant | ast.UnaryOp)]
        if named or numbers:
            return [spot.source.replaced((named or numbers)[0], wanted[1])]
    return []
