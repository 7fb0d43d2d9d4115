"""`lost-update`: steps with a learning rate and a gradient above 0 leave a parameter exactly as it was: the
change is smaller than the spacing of its dtype, and is rounded away. In a wider dtype (float32) the rule reports only
if this happens to half of the parameters.

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
unchanged, or if an optimizer that the program defines holds them.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from gradviz.diagnose.lost_change import own_step
from gradviz.diagnose.norms import has_gradient
from gradviz.diagnose.rule import WARNING, Case, Found, Kind, Need, Rule
from gradviz.query.curves import pass_summaries
from gradviz.query.ledger import Ledger
from gradviz.query.optimizer_steps import rates_of_groups
from gradviz.query.training import BY_HAND
from gradviz.sets import contained, distinct

_NOISE = 1e-5  # gradients below this share of the largest norm of a pass are no sign
_SHARE, _LEAST = 0.5, 2  # of the steps of a parameter
_CONVERGING = ("LBFGS",)  # optimizers that leave the parameters as they are once they have converged


@Rule(
    "lost-update",
    WARNING,
    "updates that are rounded away",
    needs=(Need.VALUES, Need.STEPS),
    follows=("update-ratio", "vanished-lr", "vanishing-gradient", "exploding-gradient"),
)
def lost_update(case: Case) -> Iterator[Found]:
    rows, stepped = case.query.of(Ledger).rows, case.training.stepped
    at = np.searchsorted(stepped.events, rows.steps)
    at[rows.optimizers == BY_HAND] = len(stepped)
    is_moving = ~case.trace.named(stepped["type"], _CONVERGING)
    np.logical_and.at(is_moving, stepped.lists("groups").owners, case.query.of(rates_of_groups) > 0)
    known = np.append(is_moving, False)[at] & (rows.changes >= 0)
    known &= has_gradient(case, rows.leaves, rows.steps)
    same, tensors = known & (rows.changes == 0), rows.leaves
    lost = [t for t in distinct(tensors[same]).tolist() if _is_lost(same, known & (tensors == t))]
    if not lost:
        yield from _lost_in_sums(case, is_moving)
        return
    row = int(np.flatnonzero(same & contained(tensors, lost))[0])
    first = int(rows.steps[same & contained(tensors, lost)].min())
    of_it = rows.optimizers == rows.optimizers[row]
    lost = [leaf for leaf in lost if leaf in tensors[of_it]]
    # in a wide dtype a single large parameter may stand still for a good reason
    is_narrow = _dtype(case, lost[0], first) in ("float16", "bfloat16")
    if is_narrow or len(lost) >= _SHARE * len(distinct(tensors[known & of_it])):
        if own_step(case, int(rows.optimizers[row])) is not None and not is_narrow:
            return  # what such a step computes is not known
        yield _found(case, lost, first)


def _lost_in_sums(case: Case, is_moving: np.ndarray) -> Iterator[Found]:
    """The optimizers of which half of the steps or more change no parameter, as far as it is known of some steps of
    passes that were left out how much each changed them together."""
    summed, stepped = case.trace.table(Kind.STEP_SUMMED), case.training.stepped
    norms = case.query.of(pass_summaries)
    strong = norms.passes[norms.norms > _NOISE * np.nanmax(norms.norms, initial=0.0)]
    at = np.searchsorted(stepped.events, summed.events) - 1
    known = (at >= 0) & contained(summed["in_pass"], strong) & is_moving[at]
    lost = known & (summed["change"] == 0)
    for optimizer in distinct(summed["optimizer"][lost]).tolist():
        of_it = summed["optimizer"] == optimizer
        is_later = stepped.events[stepped["optimizer"] == optimizer] > summed.events[of_it][0]
        share = is_later.mean() * lost[of_it].sum() / known[of_it].sum()
        if lost[of_it].sum() >= _LEAST and share >= _SHARE and own_step(case, optimizer) is None:
            yield _found(case, case.training.held_by(optimizer), int(stepped.events[at[lost & of_it][0]]))


def _found(case: Case, lost: Sequence[int], step: int) -> Found:
    return Found(
        f"steps leave {case.called(lost)} exactly as before, though there are gradients: "
        f"the change is smaller than the spacing of {_dtype(case, lost[0], step)}",
        "keep the parameters in float32 (torch.autocast for the rest), or use a larger learning rate",
        (step,),
        tensors=tuple(lost),
    )


def _dtype(case: Case, tensor: int, event: int) -> str:
    row = case.trace.states.valued(tensor, event)
    form = case.trace.states.form(row) if row >= 0 else None
    return form.dtype if form is not None else "the dtype"


def _is_lost(same: np.ndarray, of_parameter: np.ndarray) -> bool:
    count = int((same & of_parameter).sum())
    return count >= _LEAST and count >= _SHARE * int(of_parameter.sum())
