"""`gradient-leak`: a pass that was made for one optimizer leaves gradients in the parameters of another optimizer.
The pass of the other optimizer adds its own gradients, and the step uses the sum. Also reported: a pass for the
gradient of an input, as of an attack, that leaves gradients in trained parameters.

Why it is bad: the step follows the sum of two losses. The foreign loss may be the opposite of what these parameters
should learn.

Example:

    torch.manual_seed(0)
    G, D = torch.nn.Linear(2, 2), torch.nn.Linear(2, 1)
    g_optimizer = torch.optim.SGD(G.parameters(), lr=0.01)
    d_optimizer = torch.optim.SGD(D.parameters(), lr=0.01)
    for step in range(3):
        d_loss = D(G(torch.randn(4, 2)).detach()).mean() - D(torch.randn(4, 2)).mean()
        d_loss.backward()
        d_optimizer.step()
        d_optimizer.zero_grad()
        g_loss = -D(G(torch.randn(4, 2))).mean()
        g_loss.backward()  # <- gradient-leak
        g_optimizer.step()
        g_optimizer.zero_grad()

Cure: call `zero_grad()` of an optimizer just before the backward() of its own loss.

Not reported: gradients that are cleared before the other optimizer steps, and two optimizers that share a
loss.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.rule import NOTE, WARNING, Case, Edit, Fix, Found, Kind, Need, Rule, Spot
from gradviz.query.ledger import Ledger
from gradviz.query.training import ACCUMULATED, BY_HAND, STEPPED
from gradviz.sets import contained, distinct

_MOST = 1000  # gradients of inputs that are looked at


@Rule(
    "gradient-leak",
    WARNING,
    "gradients of one optimizer's pass in the step of another",
    needs=(Need.STEPS, Need.PASSES),
    at_once=True,
)
def gradient_leak(case: Case) -> Iterator[Found]:
    lives, stepped = case.training.lives, case.training.stepped
    came, used = lives.whats == ACCUMULATED, lives.whats == STEPPED
    leaking = came & (lives.before(used) == 0) & (lives.after(used) > 0) & (lives.after(came) > 0)
    leaks: dict[int, list[int]] = {}
    for row in np.flatnonzero(leaking).tolist():
        following = row + 1  # the next row of this leaf
        if not came[following] or lives.numbers[following] == lives.numbers[row]:
            continue
        between = slice(*np.searchsorted(stepped.events, [lives.events[row], lives.events[following]]))
        owners = case.training.owners.get(int(lives.leaves[row]), set()) | {BY_HAND}
        if set(stepped["optimizer"][between].tolist()) - owners:
            leaks.setdefault(int(lives.numbers[row]), []).append(int(lives.leaves[row]))
    for number, leaves in list(leaks.items())[:1]:
        backward_pass = case.query.passes.by_number[number]
        yield Found(
            f"pass {number} leaves gradients in {case.called(leaves)}, which belong to another optimizer; it adds them "
            "to those of its own pass",
            Fix(
                "optimizer.zero_grad()  # of each optimizer, right before the backward() of its own loss",
                _cleared_for_each,
            ),
            (backward_pass.first,),
            site=backward_pass.site,
            number=number,
            tensors=tuple(leaves),
        )

    yield from _of_attacks(case, np.flatnonzero(leaking))


def _of_attacks(case: Case, rows: np.ndarray) -> Iterator[Found]:
    """The first pass that is for the gradient of an input, which an op reads, and that leaves gradients in leaves
    of an optimizer, to which a pass from another line adds. If both are in one function, both may be meant."""
    lives, by_number = case.training.lives, case.query.passes.by_number
    inputs = _inputs(case) if len(rows) else {}
    leaking: dict[int, list[int]] = {}
    for row in rows[contained(rows + 1, np.flatnonzero(lives.whats == ACCUMULATED))].tolist():
        one, other = lives.numbers[row : row + 2].tolist()
        is_meant = by_number[one].site == by_number[other].site or one not in inputs or other in inputs
        if not is_meant and lives.leaves[row] in case.training.holders:
            leaking.setdefault(one, []).append(int(lives.leaves[row]))
    for number, leaves in list(leaking.items())[:1]:
        site, name = case.query.places.site(by_number[number].site), case.words.called(inputs[number])
        steps = (case.query.places.site(one) for one in distinct(case.training.stepped.sites).tolist())
        functions = {one.place.function for one in steps if one is not None}
        yield Found(
            f"pass {number}, which is for the gradient of {name}, leaves gradients in {case.called(leaves)}, too: the "
            "next pass adds its own to them, and the step uses the sum",
            f"torch.autograd.grad(loss, {name})  # in place of backward() and .grad; or clear the others behind it",
            (by_number[number].first,),
            site=site,
            number=number,
            tensors=tuple(leaves),
            severity=NOTE if site is not None and site.place.function in functions else WARNING,
        )


def _inputs(case: Case) -> dict[int, int]:
    """The leaves of no optimizer whose gradient an op reads, by the last pass before that gave them one."""
    came, found = case.trace.table(Kind.ACCUMULATED), dict[int, int]()
    leaves, events = case.query.of(Ledger).reads
    known = contained(leaves, [*case.training.holders])
    for leaf, event in zip(leaves[~known][:_MOST].tolist(), events[~known][:_MOST].tolist(), strict=True):
        numbers = came["in_pass"][(came["tensor"] == leaf) & (came.events < event)]
        found |= {int(number): leaf for number in numbers[-1:]}
    return found


def _cleared_for_each(spot: Spot) -> list[Edit]:
    """`zero_grad()` of the optimizer that steps next, before each backward() that has none before it."""
    source = spot.source
    edits = []
    for call in source.calls("backward"):
        area = source.function(call)
        after = [step for step in source.calls("step", within=area) if source.span(step) > source.span(call)]
        statement = source.statement(call)
        block = source.siblings(statement)
        before = block[: block.index(statement)][-1:]
        if after:
            clearing = f"{spot.receiver(after[0])}.zero_grad()"
            if not any(source.code(other) == clearing for other in before):
                edits.append(source.before(statement, clearing))
    return edits
