"""`lost-update`: steps with a learning rate and a gradient above 0 leave a parameter exactly as it was: the change is
smaller than the spacing of its dtype, and is rounded away. In a wider dtype (float32) the rule reports only if this
happens to half of the parameters. Or the program copies older values over the parameters again and again, after the
steps of one optimizer, or averages them with a copy the wrong way round: it puts back all that these steps have
changed, or most of it after each step. Or it copies new values over them after each step, before any op reads what the
step has changed. Or it writes to a copy of a parameter, of a gradient or of a result, which nothing reads:
`w.grad[rows].mul_(0.1)` with a list, a tensor or a mask as the index.

Why it is bad: the optimizer steps, the loss does not change, and nothing raises.

Example:

    w = torch.tensor([10000.0, 20000.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1e-4)
    for step in range(4):
        optimizer.zero_grad()
        loss = (w * torch.tensor([0.1, 0.2])).sum()
        loss.backward()
        optimizer.step()  # <- lost-update

Cure: keep the weights in float32 (autocast, or a copy of the weights in float32), scale the problem, or raise
the rate.

Not reported: a rate of 0 of any group, a gradient of 0, and float32 parameters if less than half of them stay
unchanged, or if an optimizer that the program defines holds them. Values that are put back before each training, as
for the folds of a cross-validation, or once at its end; weights that look ahead; averages that are swapped in for an
evaluation.
"""

import ast
import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from gradviz.diagnose.fix import Fix, typed_as
from gradviz.diagnose.lost_change import own_step
from gradviz.diagnose.norms import has_gradient
from gradviz.diagnose.rule import WARNING, Case, Found, Kind, Need, Rule
from gradviz.events.kinds import OpRan
from gradviz.query.curves import pass_summaries
from gradviz.query.dropped_results import are_read
from gradviz.query.flow import NEAR, reach, sources
from gradviz.query.ledger import Ledger
from gradviz.query.optimizer_steps import rates_of_groups
from gradviz.query.source_trees import statement_at
from gradviz.query.training import BY_HAND
from gradviz.query.writes import Author, Writes
from gradviz.sets import contained, distinct, grouped
from gradviz.tracefile import Snapshot

_NOISE = 1e-5  # gradients below this share of the largest norm of a pass are no sign
_SHARE, _LEAST = 0.5, 2  # of the steps of a parameter
_ROUNDS, _KEPT, _EXACT = 3, 0.5, 1e-6  # loads after steps; the shares of a change that remain
_OTHER_MEMORY = ("data", "set_")  # `w.data = other`
_FEW = 16  # the most writes of a line that are looked at
_NARROW = ("float16", "bfloat16")
_CONVERGING = ("LBFGS",)  # optimizers that leave the parameters as they are once they have converged


@Rule(
    "lost-update",
    WARNING,
    "updates that are rounded away",
    needs=(Need.VALUES, Need.STEPS),
    follows=("update-ratio", "vanished-lr", "vanishing-gradient", "exploding-gradient"),
)
def lost_update(case: Case) -> Iterator[Found]:
    yield from _put_back(case)
    yield from _rounded_away(case)
    yield from _written_to_a_copy(case)


def _put_back(case: Case) -> Iterator[Found]:
    """The lines that copy older values over parameters after the steps of an optimizer, before its next step."""
    writes, rows, writer = case.query.of(Writes), case.query.of(Ledger).rows, case.query.tensors.writer
    late = contained(writes.leaves, rows.leaves[rows.norms > 0]) & ~contained(writes.events, rows.steps)
    late[late] = [
        (author := writes.author(event, leaf)) is Author.LOAD
        or (author is Author.PROGRAM and (writer(event) in _OTHER_MEMORY or writes.follows_another(leaf)))
        for event, leaf in zip(writes.events[late].tolist(), writes.leaves[late].tolist(), strict=True)
    ]
    for events in case.by_site(distinct(writes.events[late])).values():
        here = contained(writes.events, events)
        loads, of = writes.events[here], writes.leaves[here]
        known = ((leaf, _share_kept(case, leaf, loads[of == leaf])) for leaf in distinct(of).tolist())
        shares = {leaf: share for leaf, share in known if share is not None}
        if (most := max(shares.values(), default=1.0)) >= _KEPT:
            continue
        much = "all" if most < _EXACT else f"{1 - most:.0%}"
        yield Found(
            f"this line writes other values over {case.called(shares)} after the steps, again and again: it takes back "
            f"{much} of what they have changed",
            "load a copy once, after the training; or copy the model's values into it, and not back",
            (int(events[0]),),
            tensors=tuple(shares),
        )


def _share_kept(case: Case, leaf: int, loads: np.ndarray) -> float | None:
    """The largest share of the change of a leaf by the steps between two loads that remains after a load. None if it is
    not known, if the loads come before the steps, or several steps are not taken back as a whole."""
    rows = case.query.of(Ledger).rows
    own = (rows.leaves == leaf) & (rows.changes != 0)
    steps, memory = rows.steps[own], case.query.memory
    if rows.steps[rows.leaves == leaf].min() < loads[0]:
        loads = loads[loads > steps.min(initial=case.trace.count)]  # a warm-up begins with rates of 0
    if _are_overwritten(case, leaf, steps, loads):
        return 0.0
    bounds = [int(steps.min(initial=0)) - 1, *loads.tolist()]
    counts = [int(((steps > start) & (steps < end)).sum()) for start, end in pairwise(bounds)]
    is_one = len(distinct(rows.optimizers[own])) == 1
    if len(loads) < _ROUNDS or not is_one or not all(counts) or steps[-1] > loads[-1]:
        return None
    ends = [*(steps[np.searchsorted(steps, loads[:-1])] - 1).tolist(), case.trace.count - 1]
    shares = [
        _share(*(memory.value(leaf, event) for event in (start, load - 1, end)))
        for (start, load), end in zip(pairwise(bounds), ends, strict=True)
    ]
    most = max(shares[len(shares) > _ROUNDS :])  # the first load may be of what has just been kept
    return most if not math.isnan(sum(shares)) and (max(counts) == 1 or most < _EXACT) else None


def _are_overwritten(case: Case, leaf: int, steps: np.ndarray, loads: np.ndarray) -> bool:
    """Whether a load that was not computed from a leaf follows each of its steps but the last, before any op reads what
    the step has changed."""
    tensors = case.query.tensors
    given = {one for event in loads.tolist() if tensors.is_op(event) for one in tensors.op(event).outputs}
    reading = [tensors.op(event) for event in case.downstream.readers(leaf)]
    reads = [op.index for op in reading if given.isdisjoint(op.outputs)]  # `w.data`, to be written to, is no read
    loads_before, reads_before = np.searchsorted(loads, steps), np.searchsorted(reads, steps)
    written, read = [*loads.tolist(), case.trace.count], [*reads, case.trace.count]
    is_lost = [written[one] < read[other] for one, other in zip(loads_before, reads_before, strict=True)]
    is_load = tensors.is_op(int(loads[0])) and case.query.of(Writes).author(int(loads[0]), leaf) is Author.LOAD
    if sum(is_lost) < _ROUNDS or not all(is_lost[:-1]) or not is_load:
        return False
    sources_of = tensors.op(int(loads[0])).inputs[1:]
    return leaf not in reach(sources_of, lambda one: sources(case.query, one, through_memory=True), NEAR)


def _share(before: Snapshot | None, changed: Snapshot | None, after: Snapshot | None) -> float:
    """The share of a change that remains; 0 if a large tensor has its statistics again, else NaN: it is not known."""
    if before is None or changed is None or after is None:
        return math.nan
    if before.array is None or changed.array is None or after.array is None:
        return 0.0 if before.stats == after.stats != changed.stats and before.stats is not None else math.nan
    change = np.linalg.norm(np.subtract(changed.array, before.array, dtype=np.float64))
    return float(np.linalg.norm(np.subtract(after.array, before.array, dtype=np.float64)) / (change or 1))


def _rounded_away(case: Case) -> Iterator[Found]:
    rows, stepped = case.query.of(Ledger).rows, case.training.stepped
    at = np.searchsorted(stepped.events, rows.steps)
    at[rows.optimizers == BY_HAND] = len(stepped)
    is_moving = ~case.trace.named(stepped["type"], _CONVERGING)
    np.logical_and.at(is_moving, stepped.lists("groups").owners, case.query.of(rates_of_groups) > 0)
    known = np.append(is_moving, False)[at] & (rows.changes >= 0)
    known &= has_gradient(case, rows.leaves, rows.steps)
    same, tensors = known & (rows.changes == 0), rows.leaves
    left_out, lost = _left_out(case, is_moving), []
    for leaf in distinct(tensors[same]).tolist():
        own = known & (tensors == leaf)
        others, same_there = left_out.get(int(rows.optimizers[own][0]), (0, 0.0))
        count = int((same & own).sum())
        if count >= _LEAST and count + same_there >= _SHARE * (int(own.sum()) + others):
            lost.append(leaf)
    if not lost:
        return
    row = int(np.flatnonzero(same & contained(tensors, lost))[0])
    first = int(rows.steps[same & contained(tensors, lost)].min())
    of_it = rows.optimizers == rows.optimizers[row]
    lost = [leaf for leaf in lost if leaf in tensors[of_it]]
    # in a wide dtype a single large parameter may stand still for a good reason
    is_narrow = _dtype(case, lost[0], first) in _NARROW
    if is_narrow or len(lost) >= _SHARE * len(distinct(tensors[known & of_it])):
        if own_step(case, int(rows.optimizers[row])) is not None and not is_narrow:
            return  # what such a step computes is not known
        yield Found(
            f"steps leave {case.called(lost)} exactly as before, though there are gradients: "
            f"the change is smaller than the spacing of {_dtype(case, lost[0], first)}",
            "keep the parameters in float32 (torch.autocast for the rest), or use a larger learning rate",
            (first,),
            tensors=tuple(lost),
        )


def _written_to_a_copy(case: Case) -> Iterator[Found]:
    """The statements whose whole effect is a write to a tensor that they make, and that nothing else reads."""
    ops, (events, written) = case.trace.table(Kind.OP), case.query.tensors.all_writes
    is_own = contained(events, ops.events[~(ops["in_pass"] > 0)])
    views = grouped((base, one) for one, base in case.query.of(Writes).bases.items())
    told = set[ast.stmt]()
    for own in case.by_site(distinct(events[is_own])).values():
        statement = statement_at(case.query, case.place(int(own[0])))
        targets = _targets(statement) if statement not in told else []
        pairs = [(event, int(written[events == event][0])) for event in own[: _FEW * bool(targets)].tolist()]
        copies = [one for pair in pairs if (one := _copied(case, *pair, views)) is not None]
        if statement is None or not copies or len(copies) < len(pairs):
            continue
        made, source = copies[0]
        name, copy = case.words.called(source), ast.unparse(case.query.places.tree(made.site) or ast.Constant(0))
        texts = [ast.unparse(target) for target in targets]
        if not any(copy in text for text in texts):
            continue
        told.add(statement)
        is_direct = source in map(case.query.of(Writes).leaf_of, made.inputs) or source in made.inputs
        reaches = copy in texts and (is_direct or "parametrizations" in name)
        code = _with_effect(statement, copy) if reaches else ""
        yield Found(
            f"{copy} is a new tensor, which nothing reads after this write: "
            f"{'the ' * name.startswith('gradient of')}{name} does not change by it",
            Fix(code, typed_as(code)) if code else f"write to {name} itself",
            (int(own[0]),),
            tensors=(source,),
        )


def _copied(case: Case, event: int, written: int, views: dict[int, list[int]]) -> tuple[OpRan, int] | None:
    """The op that made the memory that an op wrote to, and what it was made from: a leaf, a gradient or a result with a
    graph. None if the memory is older than the line, or if anything reads it."""
    query, site = case.query, case.place(event)
    *_, copy = query.of(Writes).on_memory(written)
    names = [*reach([copy], lambda one: views.get(one, ()))]

    def behind(tensor: int) -> tuple[int, ...]:
        """The inputs of the op that made a tensor in this line."""
        made = query.tensors.made(tensor)
        place = case.place(made.index) if isinstance(made, OpRan) else None
        is_here = site is not None and place is not None and place.place.line == site.place.line
        return made.inputs if is_here and isinstance(made, OpRan) else ()

    readers = {op for name in names for op in case.downstream.readers(name)}
    results = {one for op in readers for one in query.tensors.op(op).outputs}
    made = query.tensors.made(copy)
    if not isinstance(made, OpRan) or not results <= {*names} or are_read(query, names):
        return None
    for one in reach(behind(copy), behind, _FEW):
        leaf = query.of(Writes).leaf_of(one)
        if leaf or query.tensors.requires_grad(one, event) or case.training.stems_from_gradient(one, event):
            return made, leaf or one
    return None


def _targets(statement: ast.stmt | None) -> list[ast.expr]:
    """What a statement may write to: `x[rows]` of `x[rows].mul_(2)`, of `normal_(x[rows])` and of `x[rows][0] = 1`."""
    if isinstance(statement, ast.Assign | ast.AugAssign):
        left = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        return [left.value] if isinstance(left, ast.Subscript) else []
    value, found = statement.value if isinstance(statement, ast.Expr) else None, []
    while isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.endswith("_"):
        found += [value.func.value, *value.args[:1]]
        value = value.func.value
    return found


def _with_effect(statement: ast.stmt, copy: str) -> str:
    """A statement whose write reaches what the copy was made from; empty if it is not known how to write it."""
    code = ast.unparse(statement)
    if not code.startswith(copy) or copy.endswith(")"):
        return ""
    whole = f"{copy} = {code}"
    return whole if isinstance(statement, ast.Expr) else f"part = {copy}; part{code.removeprefix(copy)}; {copy} = part"


def _left_out(case: Case, is_moving: np.ndarray) -> dict[int, tuple[int, float]]:
    """By optimizer, its steps behind passes that were left out, and how many of them changed no parameter, from the
    share of those steps of which it is known how much they changed all together."""
    summed, stepped = case.trace.table(Kind.STEP_SUMMED), case.training.stepped
    norms = case.query.of(pass_summaries)
    strong = norms.passes[norms.norms > _NOISE * np.nanmax(norms.norms, initial=0.0)]
    at = np.searchsorted(stepped.events, summed.events) - 1
    known = (at >= 0) & contained(summed["in_pass"], strong) & is_moving[at]
    unwatched = stepped["optimizer"][stepped.lists("parameters").counts == 0]
    found = {}
    for optimizer in distinct(summed["optimizer"][known]).tolist():
        share = (summed["change"] == 0)[known & (summed["optimizer"] == optimizer)].mean()
        count = int((unwatched == optimizer).sum())
        found[optimizer] = count, share * count
    return found


def _dtype(case: Case, tensor: int, event: int) -> str:
    row = case.trace.states.valued(tensor, event)
    form = case.trace.states.form(row) if row >= 0 else None
    return form.dtype if form is not None else "the dtype"
