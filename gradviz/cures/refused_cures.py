"""Cures of lines that ended a program: they use a value that is None, has no graph or cannot require grad."""

from __future__ import annotations

import ast
import re

from gradviz.cures.graph_cures import with_keyword
from gradviz.cures.model_cures import as_leaf
from gradviz.cures.source_text import Edit, SourceText
from gradviz.cures.spot import Spot
from gradviz.query.functions_of_source import called


def with_a_gradient_to_read(spot: Spot) -> list[Edit]:
    """The call of backward() moved before the line that reads `.grad`; a leaf that requires grad; or a guard."""
    source, statement, cure = spot.source, spot.statement, spot.finding.fix
    if statement is None:
        return []
    if cure.startswith("if "):
        return [source.replaced(statement, cure)]
    if not re.search(r"\.backward\(.*# before line", cure):
        return as_leaf(spot)
    reader = statement
    while True:
        block = source.siblings(reader)
        for later in block[block.index(reader) + 1 :]:
            if isinstance(later, ast.Expr) and source.calls("backward", within=later):
                return [source.before(reader, source.code(later)), source.removed(later)]
        outer = source.parent(reader)
        if not isinstance(outer, ast.With):
            return []
        reader = outer


def on_the_tensor(spot: Spot) -> list[Edit]:
    """`loss.backward()` in place of `loss.item().backward()`; or a leaf that requires grad, if the root has none."""
    of_math = re.fullmatch(r"(torch\..+)  # not (math\..+)", spot.finding.fix)
    if of_math is not None:
        calls = [node for node in ast.walk(spot.source.tree) if isinstance(node, ast.Call)]
        same = [node for node in calls if ast.unparse(node) == of_math[2]]
        return [spot.source.replaced(same[0], of_math[1])] if len(same) == 1 else []
    cure = re.fullmatch(r"(.+)\.backward\(\)", spot.finding.fix)
    calls = spot.calls_here("backward")
    if cure is None or len(calls) != 1:
        return as_leaf(spot)
    assert isinstance(calls[0].func, ast.Attribute)
    return [spot.source.replaced(calls[0].func.value, cure[1])]


def read_from_the_leaf(spot: Spot) -> list[Edit]:
    """`y.backward(); g = x.grad` in place of `g = y.backward()`."""
    statement = spot.statement
    apart = re.match(r"\(\w+,\) = ", spot.finding.fix)
    if apart is not None and isinstance(statement, ast.Assign):
        return [spot.source.replaced(statement.targets[0], apart[0].removesuffix(" = "))]
    if statement is None or not re.search(r"\.backward\(.*\); \w+ = ", spot.finding.fix):
        return []
    first, _, second = spot.finding.fix.rpartition("; ")
    source = spot.source
    return [source.replaced(statement, first), source.after(statement, second)]


def with_unused(spot: Spot) -> list[Edit]:
    """`torch.autograd.grad(y, [x, w], allow_unused=True)`; or a leaf that requires grad."""
    if "requires_grad_()" in spot.finding.fix:
        return as_leaf(spot)
    return [with_keyword(spot.source, call, "allow_unused=True") for call in spot.calls_here("grad")[:1]]


def detached_for_numpy(spot: Spot) -> list[Edit]:
    """`y.detach().numpy()` in place of `y.numpy()`."""
    calls = spot.calls_here("numpy")
    return [_detached(spot.source, calls[0])] if len(calls) == 1 else []


def _detached(source: SourceText, call: ast.Call) -> Edit:
    assert isinstance(call.func, ast.Attribute)
    end = source.span(call.func.value)[1]
    return Edit(end, end, ".detach()")


def of_floating_point(spot: Spot) -> list[Edit]:
    """`torch.tensor([1.0, 2.0])` in place of `torch.tensor([1, 2])`."""
    calls = spot.calls_here("tensor")
    if len(calls) != 1 or called(calls[0]) not in spot.finding.fix.partition("(")[0]:
        return []
    return [
        spot.source.replaced(node, str(float(node.value)))
        for node in ast.walk(calls[0].args[0])
        if isinstance(node, ast.Constant) and type(node.value) is int
    ]


def called_backward(spot: Spot) -> list[Edit]:
    """`loss.backward()` in place of `loss.backward`."""
    for node in ast.walk(spot.source.tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Attribute)
            and node.value.attr == "backward"
        ):
            return [spot.source.replaced(node, f"{spot.source.code(node.value)}()")]
    return []
