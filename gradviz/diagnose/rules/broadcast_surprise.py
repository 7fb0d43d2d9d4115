"""`broadcast-surprise`: a prediction of shape (N, 1) meets a target of shape (N,), or the other way round, and
broadcasting makes (N, N) of them on the way to a scalar root. For a function that compares each element of the
prediction with one element of the target, any two shapes are reported whose broadcast is larger than both.

Why it is bad: each prediction is compared with each target, so that the model learns to predict the mean of all
targets, and nothing raises.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, 1, requires_grad=True)
    x, y = torch.randn(8, 3), torch.randn(8)
    loss = ((x @ w - y) ** 2).mean()  # <- broadcast-surprise
    loss.backward()

Cure: give both the same shape: `prediction.squeeze(1)` or `target.unsqueeze(1)`.

Not reported: two sides that both require grad, or that both do not, unless what they make is compared with one value
for each row; a dimension of size 1 that an op has made on
purpose (`unsqueeze`, `keepdim=True`), as for a comparison of all pairs.
"""

import ast
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, bracketed
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.events.handles import Form
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.flow import op_behind, op_of, transposed_of
from gradviz.query.ops import COPYING, DIVIDING, MULTIPLYING, PRODUCTS, REDUCTIONS, REGRESSION_LOSSES, SELECTING, SUMS

_ON_PURPOSE = SELECTING | {"unsqueeze", "unsqueeze_", "expand_dims"}
_ONE_BY_ONE = REGRESSION_LOSSES | {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
_OPS = 64  # the most ops of one line that are looked at
_EXPANDING = "expand"
_KEEPING, _ENDING = SUMS | MULTIPLYING | COPYING | {_EXPANDING}, REDUCTIONS | _ONE_BY_ONE


@Rule(
    "broadcast-surprise",
    WARNING,
    "(N, 1) against (N,) on the way to a loss",
    needs=(Need.DETAILS, Need.PASS),
    at_once=True,
)
def broadcast_surprise(case: Case) -> Iterator[Found]:
    ops = case.trace.table(Kind.OP)
    inputs, outputs = ops.lists("inputs"), ops.lists("outputs")
    two = np.flatnonzero((inputs.counts >= 2) & (outputs.counts == 1) & (ops["in_pass"] == 0))
    seen: set[int] = set()
    square = two[_is_square(case, ops.events[two], outputs.firsts[two])]
    own = case.by_site(ops.events[square]).values()
    found: dict[object, list[tuple[OpRan, list[int]]]] = {}  # by the weights behind the side with more axes
    for event in sorted(event for events in own for event in events[:_OPS].tolist()):
        op = ops.object(event)
        if op.site in seen:
            continue
        sides = [_unexpanded(case, tensor, op.site) for tensor in op.inputs[:2]]
        if _surprises(case, op, sides):
            seen.add(op.site)
            column = max(sides, key=lambda tensor: len(case.shape(tensor)))
            made = op_behind(case.query, column, COPYING | MULTIPLYING | SELECTING)
            sources = [transposed_of(case.query, one) for one in made.inputs if one] if made is not None else []
            found.setdefault(frozenset(sources) & case.training.trained or op.site, []).append((op, sides))
    for alike in found.values():  # first one of the training
        op, sides = min(alike, key=lambda one: not case.query.nodes.of_op(one[0].index))
        a, b = (f"{case.words.called(tensor)} {tuple(case.shape(tensor))}" for tensor in sides)
        yield Found(
            f"{a} and {b} are broadcast against each other: every prediction is compared with every target",
            _cure(case, op, sides),
            (op.index, *(other.index for other, _ in alike if other is not op)),
            tensors=tuple(sides),
        )


def _cure(case: Case, op: OpRan, sides: list[int]) -> Fix | str:
    """The operand with fewer dimensions, as the line has it, with `.unsqueeze(-1)`. General advice if the line does not
    show the operands."""
    operands = _operands(case.query.places.tree(op.site))
    dims = [len(case.shape(tensor)) for tensor in sides]
    are_learnt = all(case.query.tensors.requires_grad(one, op.index) for one in sides) and op.op in SUMS
    if len(operands) != 2 or dims[0] == dims[1] or are_learnt:
        return "give both the same shape: prediction.squeeze(-1), or target.unsqueeze(-1)"
    place = dims.index(min(dims))
    flat = operands[place]
    text = ast.unparse(flat)
    plain = isinstance(flat, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return Fix(
        f"{text if plain else f'({text})'}.unsqueeze(-1)  # in place of {text}", lambda spot: _unsqueezed(spot, place)
    )


def _operands(expression: ast.expr | None) -> list[ast.expr]:
    """The two sides of an operator, or the first two arguments of a call."""
    if isinstance(expression, ast.BinOp):
        return [expression.left, expression.right]
    return expression.args[:2] if isinstance(expression, ast.Call) else []


def _unsqueezed(spot: Spot, place: int) -> list[Edit]:
    operands = _operands(spot.expression)
    if len(operands) != 2:
        return []
    flat = operands[place]
    return [spot.source.replaced(flat, f"{bracketed(spot.source, flat)}.unsqueeze(-1)")]


def _is_square(case: Case, events: np.ndarray, results: np.ndarray) -> np.ndarray:
    """For each op, whether its result is a matrix of N rows and N columns, N > 1, or a scalar (a loss)."""
    rows = case.trace.states.rows_of(results, events)

    def is_square(form: Form) -> bool:
        return form.shape == () or (len(form.shape) >= 2 and form.shape[-2] == form.shape[-1] > 1)

    return case.trace.states.of_forms(rows, is_square) > 0


def _unexpanded(case: Case, tensor: int, site: int) -> int:
    """The tensor that a tensor was expanded from at the same site, as a loss function expands its inputs; else the
    tensor itself."""
    made = op_of(case.query, tensor) if tensor else None
    return made.inputs[0] if made is not None and made.op == _EXPANDING and made.site == site else tensor


def _surprises(case: Case, op: OpRan, sides: list[int]) -> bool:
    if all(sides) and op.op in _ONE_BY_ONE:
        return _grows([case.shape(tensor) for tensor in sides])
    # a layer has a weight or a bias of any shape
    if not all(sides) or not (op.rule.elementwise or op.op in SUMS | MULTIPLYING):
        return False
    flat, column = sorted(sides, key=lambda tensor: len(case.shape(tensor)))
    shape, rows = case.shape(flat), case.shape(flat)[-1:]
    if rows < (2,) or case.shape(column) != (*shape, 1):
        return False
    if any("int" in case.trace.states.dtype_of(tensor) for tensor in sides):
        return False  # integers number classes, and are no targets of a regression
    wanting = [case.query.tensors.requires_grad(tensor, op.index) for tensor in (flat, column)]
    if op.op in MULTIPLYING and any(wanting):
        # the sum of all products of two vectors is the product of their sums, which no program means
        return _is_only_summed(case, op.outputs[0])
    made = op_of(case.query, column)
    if made is not None and made.op in _ON_PURPOSE:
        return False
    behind = (op_behind(case.query, tensor, COPYING | MULTIPLYING) for tensor in (flat, column))
    by_layers = [op is not None and op.op in PRODUCTS for op in behind]  # without a graph
    is_of_layers = wanting[0] != wanting[1] or (not any(wanting) and by_layers == [False, True])
    return is_of_layers or _meets_single_values(case, op.outputs[0], rows[0])


def _is_only_summed(case: Case, tensor: int, most: int = 8) -> bool:
    """Whether all that becomes of a tensor, perhaps with terms added and times a number, is its sum: a scalar."""
    readers = [case.query.tensors.op(event) for event in case.downstream.readers(tensor)]
    for op in readers:
        is_end = op.op in REDUCTIONS and case.shape(op.outputs[0]) == ()
        others = (one for one in op.inputs if one != tensor and op.op not in SUMS)
        is_kept = op.op in SUMS | MULTIPLYING | DIVIDING and not any(map(case.shape, others))
        if not is_end and not (is_kept and most and _is_only_summed(case, op.outputs[0], most - 1)):
            return False
    return bool(readers)


def _meets_single_values(case: Case, square: int, rows: int) -> bool:
    """Whether a square of N rows ends as a scalar, and meets on the way, element by element, N values that were not
    computed from it: no program compares all pairs with one value for each row."""
    results, waiting, is_met = case.downstream.results(square, _OPS), [square], False
    while waiting:
        tensor = waiting.pop()
        for op in map(case.query.tensors.op, case.downstream.readers(tensor)):
            shape = case.shape(op.outputs[0]) if op.outputs else ()
            is_one_by_one = op.rule.elementwise or op.op in _KEEPING | (_ENDING if shape == () else set())
            if op.in_pass or not is_one_by_one or shape not in ((), (rows, rows)) or len(results) == _OPS:
                return False
            others = (_unexpanded(case, one, op.site) for one in op.inputs if one not in results)
            is_met |= any(case.shape(one) in ((rows,), (rows, 1)) for one in others)
            waiting += [one for one in op.outputs if shape]
    return is_met


def _grows(shapes: list[tuple[int, ...]]) -> bool:
    """Whether the broadcast of two shapes has more elements than each of them."""
    try:
        together = np.broadcast_shapes(*shapes)
    except ValueError:
        return False
    return all(np.prod(together) > np.prod(shape) for shape in shapes)
