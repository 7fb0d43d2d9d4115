"""`masked-nan`: a gradient of 0 meets an infinite local derivative, and 0 × inf is NaN. This happens behind a mask
(where, masked_fill, a product with 0) if the value that the mask hides was computed at a singular point. If a mask
hides a NaN in forward, the finding names the op that computed the NaN.

Why it is bad: the mask hides the value in forward, but not in backward: the gradient of each leaf behind it is NaN.

Example:

    x = torch.tensor([0.0, 1.0, 4.0], requires_grad=True)
    y = torch.where(x > 0, torch.sqrt(x), 0.0)  # <- masked-nan
    y.sum().backward()

Cure: give the op a harmless input where its result is hidden: `safe = torch.where(x > 0, x, 1.0)` before the
op.

Not reported: a mask over values that were finite and had finite derivatives.
"""

import ast
from collections.abc import Iterator
from typing import TypeGuard

from gradviz.diagnose.domain_cures import off_the_point, without_infinity
from gradviz.diagnose.fix import Edit, Fix, Spot, argument_of
from gradviz.diagnose.nonfinite import Source, first_bad, hidden, is_of_user
from gradviz.diagnose.rule import ERROR, Case, Found, Need, Rule
from gradviz.events.kinds import NodeMade
from gradviz.query.functions_of_source import called
from gradviz.query.source_trees import statement_at

_SINGULAR = ("sqrt", "log", "pow", "reciprocal", "rsqrt")


@Rule(
    "masked-nan",
    ERROR,
    "0 × inf in backward, behind a mask",
    needs=(Need.VALUES, Need.DETAILS),
    follows=("huge-start", "lr-too-large"),
    at_once=True,
)
def masked_nan(case: Case) -> Iterator[Found]:
    origin = case.of(first_bad)
    if origin is None or origin.source is not Source.NODE or not (origin.zeros and origin.is_nan):
        return
    if is_of_user(case, origin.node):
        return
    made = case.query.nodes.event(origin.node)
    what = case.words.expression_of(made, 40)
    forward = hidden(case, origin)
    if forward is not None:
        born = case.words.called(forward.tensor)
        op = case.query.tensors.op(forward.event) if case.query.tensors.is_op(forward.event) else None
        without = without_infinity(case, op) if op is not None else None
        yield Found(
            f"{born} has a NaN: what hides it from the result (where, nan_to_num) does not hide it from the gradient, "
            f"and 0 × NaN is NaN in the gradient of {what}",
            without
            or Fix(
                f"do not compute the NaN: change the input of {born} where it is hidden (no row of only -inf)",
                _masked_inside,
            ),
            (forward.event, origin.event, origin.harm),
            number=origin.number,
        )
        return
    yield Found(
        f"the gradient of {what} is 0 × inf = NaN: a mask sends 0 back to where the derivative is infinite",
        _masked(case, made, what),
        (origin.event, origin.harm, *((made.index,) if made is not None else ())),
        node=origin.node,
        number=origin.number,
    )


def _masked(case: Case, made: NodeMade | None, what: str) -> Fix:
    """The line that masks the input of an op with the mask of its result, if the statement has exactly one mask; else
    the op beside its singular point, or general advice."""
    op = case.query.nodes.op(made.node) if made is not None else None
    read = case.query.names.of(case.query.tensors.op(op).inputs[0]) if op is not None else None
    statement = statement_at(case.query, case.query.places.site(made.site) if made is not None else None)
    masks = [node.args[0] for node in ast.walk(statement) if _is_where(node)] if statement else []
    if read is None or len(masks) != 1:
        beside = off_the_point(case, case.query.tensors.op(op)) if op is not None else None
        return beside or Fix(
            f"give {what} a harmless input where its result is masked: torch.where around the input, too",
            _masked_inside,
        )
    mask = ast.unparse(masks[0])
    return Fix(f"{read} = torch.where({mask}, {read}, 1.0)  # before this line", _masked_inside)


def _masked_inside(spot: Spot) -> list[Edit]:
    """The mask around the argument, too: `torch.where(m, f(torch.where(m, x, 1.0)), 0)`."""
    source = spot.source
    for where in ast.walk(spot.statement):
        if not isinstance(where, ast.Call) or called(where) != "where" or len(where.args) != 3:
            continue
        for inner in ast.walk(where.args[1]):
            if isinstance(inner, ast.Call) and called(inner) in _SINGULAR:
                value = argument_of(inner)
                if value is not None:
                    mask = source.code(where.args[0])
                    return [source.replaced(value, f"torch.where({mask}, {source.code(value)}, 1.0)")]
    return []


def _is_where(node: ast.AST) -> TypeGuard[ast.Call]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    return node.func.attr == "where" and len(node.args) == 3
