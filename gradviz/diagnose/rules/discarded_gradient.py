"""`discarded-gradient`: the gradients of a whole pass are cleared before any step has used them; or, in a loop over
tasks, those of one optimizer's parameters, while the others keep theirs. Or no step comes behind many passes in a row,
and their gradients are cleared.

Why it is bad: the pass takes time and changes nothing, and the step that follows has no gradients.

Example:

    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(3):
        loss = (w ** 2).sum()
        loss.backward()
        optimizer.zero_grad()  # <- discarded-gradient
        optimizer.step()

Cure: the order is `optimizer.zero_grad()`, `loss.backward()`, `optimizer.step()`.

Not reported: a pass that also computes the gradient of a leaf that nothing trains (an input, say) and that no pass
names as an input, as `autograd.grad` does, if another pass comes before the next step; a pass whose gradients are not
finite, which a gradient scaler skips; a pass that the step of an optimizer runs or clears itself; a pass from a line
that runs only where no steps are (before training, say); a pass whose gradients the program reads (norms, cosines,
weights of tasks, Fisher information), if the next step has gradients of another pass; optimizers that take turns.
"""

import ast
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.cuts import partial_cuts
from gradviz.diagnose.fix import moved_behind_backward
from gradviz.diagnose.loops import loops_around
from gradviz.diagnose.rule import ERROR, NOTE, WARNING, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.diagnose.without_gradient import lacking
from gradviz.query.ledger import Ledger
from gradviz.query.missing_gradients import Lack
from gradviz.query.pass_owners import PassOwners
from gradviz.query.source_trees import follow_each_other
from gradviz.query.training import ACCUMULATED, CLEARED, STEPPED
from gradviz.sets import contained, distinct, without
from gradviz.tracefile import PassInfo

_CUTS = (Lack.CUT, Lack.COPIED)
_LEAST = 2  # passes
_IN_A_ROW = 16  # passes without a step, between others with one
_SHARE = 0.4  # of the passes from one line; less is what remains at the end of an epoch


@Rule(
    "discarded-gradient",
    ERROR,
    "a pass whose gradients are all cleared before a step uses them",
    needs=(Need.TRAINING,),
    follows=("stale-optimizer",),
)
def discarded_gradient(case: Case) -> Iterator[Found]:
    lives = case.training.lives
    trained = contained(lives.leaves, sorted(case.training.trained))
    came = lives.whats == ACCUMULATED
    lost = came & trained & lives.ends_cleared & (lives.after(lives.whats == STEPPED) == 0)
    lost &= ~_are_followed_unseen(case)
    yield from _of_some(case, lost)
    passes = distinct(lives.numbers[came])
    kept = distinct(lives.numbers[came & trained & ~lost])
    table, states = case.trace.table(Kind.ACCUMULATED), case.trace.states
    bad = table["in_pass"][states.are_bad(states.rows_of(table["gradient"], table.events))]  # which a scaler skips
    discarded = without(passes, [*kept, *case.training.inside_steps, *bad])
    by_number = case.query.passes.by_number
    for site in dict.fromkeys(by_number[number].site for number in discarded.tolist()):
        numbers = [number for number in discarded.tolist() if by_number[number].site == site]
        all_of_site = [number for number in passes.tolist() if by_number[number].site == site]
        rows = np.flatnonzero(lost & (lives.numbers == numbers[0]))
        if len(numbers) < _SHARE * len(all_of_site) or not len(rows):
            yield from _in_a_row(case, numbers, lost)
            continue
        is_aside = len(numbers) == len(all_of_site)
        if is_aside and not _between_steps(case, numbers, lives.leaves[lost]):
            continue
        if _is_for_others(case, by_number[numbers[0]]):
            continue  # another fault: these passes are meant to train frozen leaves, or those of an idle optimizer
        if any(_are_used(case, number, lost) for number in numbers):
            continue
        # first of a leaf that never gets a gradient that is used
        never = rows[~contained(lives.leaves[rows], lives.leaves[came & ~lost])]
        row = int([*never, *rows][0])
        cleared = int(_clearings(case, np.array([row]))[0])
        if case.training.is_inside_step(case.site(cleared)):
            continue
        # what has read a gradient may have kept it
        is_read = case.query.of(Ledger).are_read(lives.leaves[rows], lives.events[rows], _clearings(case, rows))
        leaves = tuple(distinct(lives.leaves[rows if is_read.all() else rows[~is_read]]).tolist())
        backward_pass, told = (by_number[numbers[0]], f"the gradients of pass {numbers[0]} ({case.called(leaves)})")
        more = f"; so are those of {case.at_least(len(numbers) - 1)} other passes" if len(numbers) > 1 else ""
        step = _step_before(case, int(lives.leaves[row]), backward_pass, cleared)
        if step is not None:
            yield Found(
                f"{told} come after the step, and are cleared before the next one{more}",
                Fix("loss.backward()  # before optimizer.step()", moved_behind_backward),
                (step, backward_pass.first, cleared),
                number=backward_pass.number,
                tensors=(int(lives.leaves[row]),),
            )
        else:
            steps = case.training.stepped.events
            later = [loops_around(case, case.site(event)) for event in steps[steps > cleared][:1].tolist()]
            cure = "optimizer.zero_grad()  # before backward(), not between backward() and step()"
            if later and later[0] < loops_around(case, backward_pass.site):
                cure = "optimizer.step()  # in the same loop as backward(), behind it"
            yield Found(
                f"{told} are cleared before any step has used them{more}",
                Fix(cure, _cleared_elsewhere),
                (cleared, backward_pass.first),
                number=backward_pass.number,
                tensors=leaves,
            )


def _in_a_row(case: Case, numbers: list[int], lost: np.ndarray) -> Iterator[Found]:
    """The finding for passes in a row behind which no step comes, between others with one. Where some were left out,
    what is cleared behind a later one is gone of them all."""
    lives, steps = case.training.lives, case.training.stepped.events
    known = set(lives.numbers[lives.whats == ACCUMULATED].tolist())
    usual = np.diff(np.searchsorted(case.trace.pass_spans[0], steps))  # passes for each step
    least = max(_IN_A_ROW, 4 * np.median(usual)) if len(usual) else _IN_A_ROW
    gaps = np.searchsorted(steps, [case.query.passes.by_number[number].first for number in numbers])
    for gap in distinct(gaps[gaps > 0]).tolist():
        own = np.array(numbers)[gaps == gap].tolist()
        since = int(steps[gap - 1])
        between = [one for one in case.trace.passes if since < one.first and one.number <= own[-1]]
        if len(between) < least or len(own) < _LEAST or [n.number for n in between if n.number in known] != own:
            continue
        rows = np.flatnonzero(lost & contained(lives.numbers, own))
        leaves, ends = lives.leaves[rows], _clearings(case, rows)
        if case.query.of(Ledger).are_read(leaves, lives.events[rows], ends).any():
            continue
        yield Found(
            f"no step uses the gradients of passes {between[0].number:,} to {own[-1]:,} "
            f"({case.called(distinct(leaves).tolist())}), which are cleared: this line steps before them, and not then",
            "let this step run behind each backward(), or leave out the passes that it does not follow",
            (since, between[0].first, int(ends[0])),
            number=own[0],
            severity=WARNING,
        )
        return


def _of_some(case: Case, lost: np.ndarray) -> Iterator[Found]:
    """The clearings of one optimizer between passes for its step, where other leaves keep the gradients of the passes,
    and a pass like them is used for the step: in a loop over tasks or parts of a batch."""
    lives, by_number, owners = case.training.lives, case.query.passes.by_number, case.query.of(PassOwners).optimizers
    used = (lives.whats == ACCUMULATED) & (lives.after(lives.whats == STEPPED) > 0)
    for optimizer in distinct(case.training.stepped["optimizer"]).tolist():
        own = contained(lives.leaves, case.training.held_by(optimizer))
        kept, cleared = distinct(lives.numbers[own & used]), lives.numbers[own & lost]
        alike = {(by_number[number].site, by_number[number].digest) for number in kept.tolist()}
        passes = [by_number[n] for n in distinct(cleared[contained(cleared, lives.numbers[used & ~own])]).tolist()]
        passes = [one for one in passes if (one.site, one.digest) in alike and optimizer in owners(one.number)]
        if not passes or len(passes) < _SHARE * len(kept) or len(kept) < _LEAST:
            continue
        rows = np.flatnonzero(own & lost & (lives.numbers == passes[0].number))
        ends, leaves = _clearings(case, rows), tuple(distinct(lives.leaves[rows]).tolist())
        if not case.query.of(Ledger).are_read(lives.leaves[rows], lives.events[rows], ends).any():
            yield Found(
                f"the gradients of {case.called(leaves)} from {len(passes)} of {len(passes) + len(kept)} passes are "
                "cleared here before a step has used them; other leaves keep those of the same passes",
                "clear them once before these passes, with all the others",
                (int(ends[0]), passes[0].first),
                number=passes[0].number,
                tensors=leaves,
                severity=WARNING,
            )


def _are_followed_unseen(case: Case) -> np.ndarray:
    """For each row of the lives, whether it is a gradient of a leaf without an optimizer, from a pass behind which no
    pass is recorded in detail (`--passes`): then a step that the program computes itself is not recorded."""
    lives, passes = case.training.lives, case.trace.passes
    recorded = [one.number for one in passes if one.recorded]
    if len(recorded) == len(passes):
        return np.zeros(len(lives.leaves), bool)
    followed = contained(lives.numbers + 1, recorded)
    return (lives.whats == ACCUMULATED) & ~followed & ~contained(lives.leaves, sorted(case.training.owners))


def _is_for_others(case: Case, backward_pass: PassInfo) -> bool:
    """Whether a pass gives gradients to leaves of an optimizer that never steps, or was meant for leaves that it cannot
    reach: nothing that its optimizers hold requires grad, or leaves of theirs never get a gradient, or the path to some
    of them is cut."""
    came, stepped = case.trace.table(Kind.ACCUMULATED), case.training.stepped["optimizer"].tolist()
    got = set(came["tensor"][came["in_pass"] == backward_pass.number].tolist())
    if any(case.training.holders[leaf].isdisjoint(stepped) for leaf in got & case.training.holders.keys()):
        return True
    owners = case.query.of(PassOwners).optimizers(backward_pass.number)
    held = {leaf for leaf, holders in case.training.holders.items() if holders & owners}
    is_apart = got.isdisjoint(held)
    wanting = {lack.leaf for lack in case.of(lacking) if is_apart or (lack.lack in _CUTS and lack.severity != NOTE)}
    is_frozen = not any(case.query.tensors.requires_grad(leaf, backward_pass.first) for leaf in held)
    is_cut = any(one.optimizer in owners for one in case.of(partial_cuts) if one.optimizer)
    return bool(held) and (is_frozen or is_cut or not wanting.isdisjoint(held))


def _step_before(case: Case, leaf: int, backward_pass: PassInfo, cleared: int) -> int | None:
    """The step of a leaf's optimizer that came just before a pass, if the source has the calls in the order zero_grad,
    step, backward or step, backward, zero_grad; else None."""
    steps = case.training.steps_of(case.training.holders.get(leaf, ()))
    earlier = steps[steps < backward_pass.first]
    if not len(earlier):
        return None
    step = int(earlier[-1])
    clearing, *calls = (
        case.query.places.site(number) for number in (case.site(cleared), case.site(step), backward_pass.site)
    )
    ends = clearing.place if clearing is not None else None
    lines = [(site.place.file, site.place.line) for site in calls if site is not None]
    is_last = ends is not None and all(file == ends.file and line < ends.line for file, line in lines)
    return step if follow_each_other(case.query, calls if is_last else [clearing, *calls]) else None


def _between_steps(case: Case, numbers: list[int], leaves: np.ndarray) -> bool:
    """Whether a step for these leaves, with or without gradients, comes after the first of these passes and before the
    first pass that follows the last of them. If not, the passes do not train: the program looks at their gradients."""
    begun, training = case.trace.table(Kind.PASS_BEGAN), case.training
    holders = {optimizer for leaf in leaves.tolist() for optimizer in training.holders.get(leaf, ())}
    by_optimizers = training.steps_of(holders)
    by_hand, changed = training.by_hand
    steps = np.concatenate([by_optimizers, by_hand[contained(changed, leaves)]])
    first, last = (int(begun.events[begun["number"] == number][0]) for number in (numbers[0], numbers[-1]))
    following = begun.events[begun.events > last]
    end = int(following[0]) if len(following) else case.trace.count
    return bool(((steps > first) & (steps < end)).any())


def _are_used(case: Case, number: int, lost: np.ndarray) -> bool:
    """Whether ops read gradients of a pass, of any leaf, before they were cleared, and the next step of each trained
    leaf has a gradient of another pass: what has read a gradient has used it."""
    lives, ledger = case.training.lives, case.query.of(Ledger)
    rows = np.flatnonzero(lost & (lives.numbers == number))
    if not ledger.are_used_next(lives.leaves[rows], _clearings(case, rows)).all():
        return False
    of_pass = (lives.whats == ACCUMULATED) & (lives.numbers == number)
    ends = np.append(lives.events[1:], 0)[of_pass]  # the event behind each row, if it is of the same leaf
    ends = np.where(ends > lives.events[of_pass], ends, case.trace.count)
    return bool(ledger.are_read(lives.leaves[of_pass], lives.events[of_pass], ends).any())


def _clearings(case: Case, rows: np.ndarray) -> np.ndarray:
    """The events that clear the gradients of these rows of the lives."""
    cleared = np.flatnonzero(case.training.lives.whats == CLEARED)
    return np.asarray(case.training.lives.events[cleared[np.searchsorted(cleared, rows)]])


def _cleared_elsewhere(spot: Spot) -> list[Edit]:
    """A call of zero_grad() moved from between backward() and step() to before backward()."""
    source, statement = spot.source, spot.statement
    clearings = spot.calls_here("zero_grad", "zero_")
    if not clearings or not isinstance(statement, ast.Expr):
        return []
    clearing = source.statement(clearings[0])
    block = source.siblings(clearing)
    earlier = block[: block.index(clearing)]
    passes = [other for other in earlier if source.calls("backward", within=other)]
    if not passes:
        return _cleared_behind_the_step(spot, clearing)
    return [source.removed(clearing), source.before(passes[-1], source.code(clearing))]


def _cleared_behind_the_step(spot: Spot, clearing: ast.stmt) -> list[Edit]:
    """A clearing in each round, moved behind a step that is made in some rounds only."""
    source, loop = spot.source, spot.source.loop(clearing)
    steps = source.calls("step", within=loop) if loop is not None else []
    rare = [step for step in steps if isinstance(source.parent(source.statement(step)), ast.If)]
    if not rare:
        return []
    return [source.removed(clearing), source.after(source.statement(rare[0]), source.code(clearing))]
