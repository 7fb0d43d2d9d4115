"""`ascent`: an update by hand adds the gradient of a loss where it should subtract it, and the loss rises.

Why it is bad: the gradient points to where the loss grows fastest. A step along it makes the loss larger.

Example:

    w = torch.tensor(3.0, requires_grad=True)
    for step in range(5):
        loss = (w - 1.0) ** 2
        loss.backward()
        with torch.no_grad():
            w += 0.1 * w.grad  # <- ascent
        w.grad = None

Cure: subtract: `w -= 0.1 * w.grad`.

Not reported: an optimizer with `maximize=True`; a step by the sign of the gradient, as in an attack; a root that is
not named loss, cost or error, or is named the negative of a loss; an input or a multiplier that moves uphill while
other parameters behind the same loss do not: attacks, dreams, and the player of a game who maximises.
"""

import ast
import re
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Fix, typed_as
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.ops import COPYING, LOSSES
from gradviz.query.source_trees import statement_at
from gradviz.query.training import BY_HAND, STEPPED
from gradviz.sets import distinct
from gradviz.words.numbers import number

_LEAST = 3  # updates
_NAMED_SO = re.compile(r"(^|_)(loss(es)?|cost|err(or)?|mse)(_|$)", re.IGNORECASE)
_NEGATIVE = re.compile(r"(^|_)(neg|negative|minus)(_|$)", re.IGNORECASE)
_PERTURBED = re.compile(
    r"(^|_)(adv\w*|attack\w*|delta|perturb\w*|pert|dream\w*|image|img|lam|lambda|lambd|multiplier\w*|dual)(_|$)",
    re.IGNORECASE,
)
_NEAR = 1e-3  # of the change: it is computed in float32


@Rule(
    "ascent",
    WARNING,
    "an update by hand that adds the gradient of a loss, which rises",
    needs=(Need.VALUES, Need.TRAINING, Need.PASSES),
)
def ascent(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    by_hand = (lives.whats == STEPPED) & (lives.numbers == BY_HAND)
    found: dict[int, dict[int, int]] = {}
    for leaf in distinct(lives.leaves[by_hand]).tolist():
        events = lives.events[by_hand & (lives.leaves == leaf)].tolist()
        if len(events) >= _LEAST and all(_climbs(case, leaf, event) for event in events):
            found.setdefault(case.site(events[0]), {})[leaf] = events[0]
    climbing = {leaf for updates in found.values() for leaf in updates}
    for site, updates in found.items():
        leaves = list(updates)
        if any(_is_meant(case, leaf, climbing) for leaf in leaves):
            continue
        roots = _losses(case, leaves[0])
        if len(roots) < _LEAST or not np.all(np.diff(roots) > 0):
            continue
        place = case.query.places.site(site)
        downhill = _downhill(statement_at(case.query, place))
        yield Found(
            f"{case.called(leaves)} move{'s' * (len(leaves) == 1)} along the gradient and not against it: the loss "
            f"rises from {number(roots[0], 3)} to {number(roots[-1], 3)} in {case.passes_called(len(roots))}",
            Fix(downhill, typed_as(downhill)) if downhill else "subtract the gradient in the update",
            (updates[leaves[0]],),
            site=place,
            tensors=tuple(leaves),
        )


def _climbs(case: Case, leaf: int, event: int) -> bool:
    """Whether a write changes a leaf by a positive multiple of its gradient."""
    memory, grad = case.query.memory, case.query.tensors.grad(leaf, event - 1)
    before, after, came = (
        memory.value(leaf, event - 1),
        memory.value(leaf, event),
        memory.value(grad, event - 1),
    )
    if before is None or after is None or came is None:
        return False
    if before.array is None or after.array is None or came.array is None:
        return False
    change = np.asarray(after.array, np.float64) - np.asarray(before.array, np.float64)
    gradient = np.asarray(came.array, np.float64)
    square = float((gradient * gradient).sum())
    if change.shape != gradient.shape or not np.isfinite(square) or square == 0:
        return False
    rate = float((change * gradient).sum()) / square
    return rate > 0 and np.allclose(change, rate * gradient, rtol=0, atol=_NEAR * float(np.abs(change).max()))


def _is_meant(case: Case, leaf: int, climbing: set[int]) -> bool:
    """Whether a leaf moves uphill on purpose: it is named so, or the root of its first pass was also computed from
    parameters that do not climb, frozen or trained."""
    if _PERTURBED.search(case.query.names.of(leaf) or ""):
        return True
    came = case.trace.table(Kind.ACCUMULATED)
    first = int(came["in_pass"][came["tensor"] == leaf][0])
    behind = set(came["tensor"][came["in_pass"] == first].tolist())
    return bool(behind - climbing) or _reads_a_frozen_parameter(case, first, climbing)


def _reads_a_frozen_parameter(case: Case, pass_number: int, climbing: set[int]) -> bool:
    """Whether an op behind the root of a pass reads a parameter of a module, and the parameter does not climb."""
    received = case.trace.table(Kind.RECEIVED)
    for node in distinct(received["node"][received["in_pass"] == pass_number]).tolist():
        event = case.query.nodes.op(node)
        for tensor in case.query.tensors.op(event).inputs if event is not None else ():
            made = case.query.tensors.made(tensor)
            is_view = isinstance(made, OpRan) and made.op in COPYING and bool(made.inputs)
            leaf = made.inputs[0] if is_view and isinstance(made, OpRan) else tensor
            if leaf in case.trace.parameters and leaf not in climbing:
                return True
    return False


def _losses(case: Case, leaf: int) -> list[float]:
    """The values of the roots of the recorded passes that gave a leaf a gradient, in order. Empty if a root is no loss,
    or if its value is not known."""
    came = case.trace.table(Kind.ACCUMULATED)
    values: list[float] = []
    for pass_number in distinct(came["in_pass"][came["tensor"] == leaf]).tolist():
        if not case.query.passes.by_number[pass_number].is_in_detail:
            continue
        began = case.query.passes.began(pass_number)
        if len(began.roots) != 1 or not _is_loss(case, began.roots[0].tensor):
            return []
        root = case.query.memory.value(began.roots[0].tensor, began.index)
        if root is None or root.array is None or root.array.size != 1:
            return []
        values.append(float(root.array.reshape(())))
    return values


def _is_loss(case: Case, root: int) -> bool:
    made = case.query.tensors.maker(root)
    is_loss = made is not None and case.query.tensors.is_op(made) and case.query.tensors.op(made).op in LOSSES
    name = case.query.names.of(root) or ""
    return _NEGATIVE.search(name) is None and (is_loss or _NAMED_SO.search(name) is not None)


def _downhill(statement: ast.stmt | None) -> str:
    """The update with a minus in place of its plus; empty for a statement of another form."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return ast.unparse(ast.AugAssign(statement.target, ast.Sub(), statement.value))
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        value = statement.value
        is_update = ast.unparse(value.left) == ast.unparse(statement.targets[0])
        if isinstance(value.op, ast.Add) and is_update:
            new = ast.BinOp(value.left, ast.Sub(), value.right)
            return f"{ast.unparse(statement.targets[0])} = {ast.unparse(new)}"
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_":
        function = ast.Attribute(call.func.value, "sub_", ast.Load())
        return ast.unparse(ast.Call(function, call.args, call.keywords))
    return ""
