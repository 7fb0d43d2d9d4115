"""`stale-gradient`: a step uses a gradient that an earlier step has used already: it was not cleared between the two
steps, and a later pass added to it. Also reported: gradients that the program reads after each of several passes
without clearing them between, as the norms of several losses.

Why it is bad: backward() adds to `.grad`. Without clearing, each step follows the sum of all gradients since the first
pass.

Example:

    w = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.01)
    for step in range(4):
        loss = (w ** 2).sum()
        loss.backward()  # <- stale-gradient
        optimizer.step()

Cure: call `optimizer.zero_grad()` before each backward(), or `p.grad = None` after each step by hand.

Not reported: accumulation on purpose: several passes, then one step, then `zero_grad()`.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.rule import ERROR, WARNING, Case, Edit, Edits, Fix, Found, Kind, Need, Rule, Spot
from gradviz.query.ledger import Ledger
from gradviz.query.pass_owners import optimizer_name, seen_at
from gradviz.query.training import ACCUMULATED, BY_HAND, STEPPED, UNKNOWN
from gradviz.sets import distinct


@Rule(
    "stale-gradient",
    ERROR,
    "gradients that are not cleared after a step, so that the next pass adds to them",
    needs=(Need.PASSES, Need.TRAINING),
    follows=("not-updated",),
    at_once=True,
)
def stale_gradient(case: Case) -> Iterator[Found]:
    yield from _read_sums(case)
    lives = case.training.lives
    came, used = lives.whats == ACCUMULATED, lives.whats == STEPPED
    # what is there at the end of a rest came from passes that were left out
    used &= lives.before(came | (lives.whats == UNKNOWN)) > 0
    added = came & (lives.before(used) > 0) & (lives.after(used) > 0)
    if not added.any():
        return
    leaves = distinct(lives.leaves[added])
    first = int(np.flatnonzero(added)[np.argmin(lives.events[added])])
    number = int(lives.numbers[first])
    backward_pass = case.query.passes.by_number[number]
    window = lives.windows == lives.windows[first]
    step = int(lives.events[window & used][0])
    stepped = int(lives.numbers[window & used][0])
    name = seen_at(case.query, backward_pass.site, optimizer_name(case.query, {stepped}))
    is_only = len(set(case.trace.table(Kind.HOLDS)["optimizer"].tolist())) == 1
    holder = "" if stepped == BY_HAND else name or "optimizer" * is_only
    cure = f"{holder}.zero_grad()" if holder else _clearing(case, leaves.tolist(), backward_pass.site)
    edits: Edits = lambda spot: [spot.source.before(spot.statement, cure)]
    yield Found(
        f"pass {number} adds to gradients that a step has already used ({case.called(leaves.tolist())}): "
        f"they are not cleared after {case.at(step)}",
        Fix(f"{cure}  # before backward()", _cleared if holder else edits),
        (backward_pass.first, step, int(lives.events[first])),
        site=backward_pass.site,
        number=number,
        tensors=tuple(leaves.tolist()),
    )


def _read_sums(case: Case) -> Iterator[Found]:
    """Gradients that the program reads after each of several passes, that no step uses, and that are not cleared
    between these passes: it reads sums."""
    lives, ledger = case.training.lives, case.query.of(Ledger)
    came = lives.whats == ACCUMULATED
    is_aside = (lives.before(lives.whats == STEPPED) + lives.after(lives.whats == STEPPED) == 0) & lives.ends_cleared
    pairs = np.flatnonzero(came[1:] & came[:-1] & (lives.windows[1:] == lives.windows[:-1]) & is_aside[1:])
    pairs = pairs[lives.numbers[pairs] != lives.numbers[pairs + 1]]
    if not len(pairs):
        return
    ends = np.append(lives.events[1:], case.trace.count)  # the event behind each row: it clears or adds
    leaves = lives.leaves[pairs]
    read = ledger.are_read(leaves, lives.events[pairs], ends[pairs])
    read &= ledger.are_read(leaves, lives.events[pairs + 1], ends[pairs + 1])
    if not read.any():
        return
    row = int(pairs[read][np.argmin(lives.events[pairs[read]])])
    one, other = lives.numbers[row : row + 2].tolist()
    backward_pass = case.query.passes.by_number[other]
    of_pass = distinct(leaves[read & (lives.numbers[pairs + 1] == other)]).tolist()
    yield Found(
        f"pass {other} adds to the gradients of pass {one} ({case.called(of_pass)}), which are read after each of both "
        "and used by no step: what is read after the second is a sum",
        "clear the gradients before this backward(): model.zero_grad(); or use torch.autograd.grad()",
        (backward_pass.first,),
        site=backward_pass.site,
        number=other,
        tensors=tuple(of_pass),
        severity=WARNING,
    )


def _cleared(spot: Spot) -> list[Edit]:
    """`zero_grad()` of an optimizer that steps in this function, or of the only one, before backward()."""
    source, statement = spot.source, spot.statement
    held = {name for _, _, name in spot.optimizers()}
    steps = [spot.receiver(call) for call in source.calls("step", within=source.function(statement))]
    stepping = [name for name in steps if name in held or "opt" in name.lower()]
    clearing = stepping or (list(held) if len(held) == 1 else [])
    return [source.before(statement, f"{clearing[0]}.zero_grad()")] if clearing else []


def _clearing(case: Case, leaves: list[int], site: int) -> str:
    """The statement that clears the gradients of leaves: of their module, else of each leaf with a plain name, or of
    the first leaf."""
    whole = [path for path, own in case.query.modules.whole(leaves) if len(own) > 1]
    if module := seen_at(case.query, site, whole[0] if len(whole) == 1 else ""):
        return f"{module}.zero_grad()"
    names = [case.words.called(leaf) for leaf in leaves]
    plain = [name for name in names if name.isidentifier()] or names[:1]
    return " = ".join(f"{name}.grad" for name in dict.fromkeys(plain)) + " = None"
