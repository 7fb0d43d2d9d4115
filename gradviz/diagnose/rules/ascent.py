"""`ascent`: an update by hand, or the step of an optimizer that the program defines, adds the gradient of a loss where
it should subtract it, and the loss rises. The change between two passes and the gradient point the same way each time.
Also reported: such a move of parameters, never taken back, from where the step of an optimizer goes on.

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
other parameters behind the same loss do not: attacks, dreams, a player who maximises; a subtracted loss looks so, too.
The sign of a term, as of an entropy, a penalty or an energy: a bonus and an adversary have the other one on purpose.
"""

import ast
import re
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Fix, typed_as
from gradviz.diagnose.lost_change import begins_with, own_step, stepped_names
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.query.missing_gradients import Lacks
from gradviz.query.ops import LOSSES
from gradviz.query.source_trees import assigned_to, statement_at
from gradviz.query.training import BY_HAND, STEPPED
from gradviz.query.writes import writes_by_any_name
from gradviz.sets import distinct
from gradviz.tracefile import Site
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
    found: dict[int, dict[int, int]] = {}
    climbing, found_at = set[int](), dict[int, list[int]]()
    for leaf, steps in _own_steps(case).items():
        moves = [_along(case, leaf, *step) for step in steps]
        climbs = [step[0] for step, move in zip(steps, moves, strict=True) if move is not None and move > 0]
        if all(move is None for move in moves) or sum(filter(None, moves)) > 0:
            climbing.add(leaf)  # or perhaps: the trace has no elements of a large one
        if len(climbs) >= _LEAST and all(move is None or move >= 0 for move in moves):
            found.setdefault(case.site(climbs[0]), {})[leaf] = climbs[0]
            found_at[leaf] = climbs
    for site, updates in found.items():
        leaves = list(updates)
        if any(_is_meant(case, leaf, climbing) for leaf in leaves):
            continue
        from_there = [_step_from(case, leaf, found_at[leaf]) for leaf in leaves]
        if min(from_there) > 0:
            yield Found(
                f"{case.called(leaves)} {'is' if len(leaves) == 1 else 'are'} moved along the gradient here, and the "
                f"step at {case.at(from_there[0])} goes on from there: nothing takes the move back",
                "keep what is added here, and subtract it behind the next backward(), before the step",
                (updates[leaves[0]],),
                site=site,
                tensors=tuple(leaves),
            )
            continue
        roots = _losses(case, leaves[0])
        third = len(roots) // 3
        if len(roots) < _LEAST or roots[-1] <= roots[0] or np.mean(roots[-third:]) <= np.mean(roots[:third]):
            continue
        place, first = _adding(case, leaves[0]), _passes_of(case, leaves[0])[0]
        place, first = (place, first) if place is not None else (case.query.places.site(site), 0)
        begun = case.query.passes.by_number[first].first if first else -1
        downhill = _downhill(statement_at(case.query, place))
        yield Found(
            f"{case.called(leaves)} move{'s' * (len(leaves) == 1)} along the gradient and not against it: the loss "
            f"rises from {number(roots[0], 3)} to {number(roots[-1], 3)} in {case.passes_called(len(roots))}",
            Fix(downhill, typed_as(downhill)) if downhill else "subtract the gradient in the update",
            (begun, updates[leaves[0]]) if first else (updates[leaves[0]],),
            site=place,
            number=first,
            tensors=tuple(leaves),
        )


def _step_from(case: Case, leaf: int, moves: list[int]) -> int:
    """The first step on a leaf of an optimizer that the program does not define, if one follows each of these moves and
    nothing writes to the leaf in between; else 0."""
    others = [one for one in case.training.owners.get(leaf, ()) if one != BY_HAND and own_step(case, one) is None]
    steps = case.training.steps_of(others)
    writes = np.array([*writes_by_any_name(case.query, leaf), case.trace.count])
    ends = np.append(steps, case.trace.count)[np.searchsorted(steps, moves)]
    is_back = writes[np.searchsorted(writes, np.array(moves) + 1)] < ends
    return int(ends[0]) if len(steps) and ends[-1] < case.trace.count and not is_back.any() else 0


def _own_steps(case: Case) -> dict[int, list[tuple[int, int]]]:
    """The leaves that the program steps on itself, by hand or by an optimizer that it defines; of each step the event
    and the event by which the leaf has changed, the last before the next step of such an optimizer."""
    lives, found = case.training.lives, dict[int, list[tuple[int, int]]]()
    is_own = {one: own_step(case, one) is not None for one in distinct(lives.numbers).tolist() if one}
    stepped = lives.whats == STEPPED
    ends = np.append(lives.events[1:], 0) - 1
    rows = zip(*(one[stepped].tolist() for one in (lives.leaves, lives.numbers, lives.events, ends)), strict=True)
    for leaf, optimizer, event, end in rows:
        if optimizer == BY_HAND or is_own[optimizer]:
            until = event if optimizer == BY_HAND else end if end > event else case.trace.count - 1
            found.setdefault(leaf, []).append((event, until))
    return found


def _along(case: Case, leaf: int, event: int, until: int) -> float | None:
    """The product of the gradient of a leaf and its change in a step, above 0 if it goes uphill; 0 for a step by the
    sign of the gradient, −1 where something is not finite. None if the trace has not all elements."""
    memory, grad = case.query.memory, case.query.tensors.grad(leaf, event - 1)
    before, after = memory.value(leaf, event - 1), memory.value(leaf, until)
    came = memory.value(grad, event - 1)
    if before is None or after is None or came is None:
        return None
    if before.array is None or after.array is None or came.array is None:
        return None
    change = np.asarray(after.array, np.float64) - np.asarray(before.array, np.float64)
    gradient = np.asarray(came.array, np.float64)
    if change.shape != gradient.shape or not np.isfinite([change, gradient]).all():
        return -1.0
    sizes, slopes = (np.abs(one[change != 0]) for one in (change, gradient))
    alike = [len(one) > 0 and np.ptp(one) <= _NEAR * one.max() for one in (sizes, slopes)]
    return 0.0 if alike == [True, False] else float((change * gradient).sum())


def _adding(case: Case, leaf: int) -> Site | None:
    """The last line in the step of an optimizer of the program that adds to a parameter; None if there is none."""
    step = next((own for one in case.training.owners.get(leaf, ()) if (own := own_step(case, one))), None)
    names, nodes = (stepped_names(step[1]), ast.walk(step[1])) if step is not None else (set(), iter(()))
    added = (node for node in nodes if isinstance(node, ast.stmt) and _downhill(node))
    values = ((node, getattr(node, "value", None)) for node in added)
    updated = ((node, begins_with(value) if isinstance(value, ast.expr) else "") for node, value in values)
    lines = [node.lineno for node, tensor in updated if (assigned_to(node) or tensor) in names]
    return case.query.places.of_line(step[0], max(lines)) if step is not None and lines else None


def _is_meant(case: Case, leaf: int, climbing: set[int]) -> bool:
    """Whether a leaf moves uphill on purpose: it is named so, or the root of its first pass was also computed from
    parameters that do not climb, trained or, in another model, frozen."""
    if _PERTURBED.search(case.query.names.of(leaf) or ""):
        return True
    first = _passes_of(case, leaf)[0]
    came, began = case.trace.table(Kind.ACCUMULATED), case.query.passes.began(first)
    behind = set(came["tensor"][came["in_pass"] == first].tolist())
    for root in began.roots:
        frozen = {*case.query.of(Lacks).ways(root.tensor, began.index).leaves} & case.trace.parameters.keys()
        behind |= {one for one in frozen if case.model_of(one) != case.model_of(leaf)}
    return bool(behind - climbing)


def _passes_of(case: Case, leaf: int) -> list[int]:
    """The passes that gave a leaf a gradient, in order."""
    came = case.trace.table(Kind.ACCUMULATED)
    return distinct(came["in_pass"][came["tensor"] == leaf]).tolist()


def _losses(case: Case, leaf: int) -> list[float]:
    """The values of the roots of the recorded passes that gave a leaf a gradient, in order. Empty if a root is no loss,
    or if its value is not known."""
    values: list[float] = []
    for pass_number in _passes_of(case, leaf):
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
