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

Not reported: a rate or a gradient of 0, and float32 parameters if less than half of them stay unchanged, or if
an optimizer that the program defines holds them.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.lost_change import own_step
from gradviz.diagnose.norms import has_gradient
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.query.ledger import Ledger
from gradviz.query.training import BY_HAND
from gradviz.sets import contained, distinct

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
    is_moving = (case.training.rates > 0) & ~case.trace.named(stepped["type"], _CONVERGING)
    known = np.append(is_moving, False)[at] & (rows.changes >= 0)
    known &= has_gradient(case, rows.leaves, rows.steps)
    same, tensors = known & (rows.changes == 0), rows.leaves
    lost = [t for t in distinct(tensors[same]).tolist() if _is_lost(same, known & (tensors == t))]
    if not lost:
        return
    row = int(np.flatnonzero(same & contained(tensors, lost))[0])
    of_it = rows.optimizers == rows.optimizers[row]
    lost = [leaf for leaf in lost if leaf in tensors[of_it]]
    if _is_narrow(case, lost[0]) or len(lost) >= _SHARE * len(distinct(tensors[known & of_it])):
        if own_step(case, int(rows.optimizers[row])) is not None and not _is_narrow(case, lost[0]):
            return  # what such a step computes is not known
        first = int(rows.steps[same & contained(tensors, lost)].min())
        form = case.trace.states.form(case.trace.states.first(lost[0]))
        yield Found(
            f"steps leave {case.called(lost)} exactly as before, though there are gradients: "
            f"the change is smaller than the spacing of {form.dtype if form is not None else 'the dtype'}",
            "keep the parameters in float32 (torch.autocast for the rest), or use a larger learning rate",
            (first,),
            tensors=tuple(lost),
        )


def _is_narrow(case: Case, tensor: int) -> bool:
    """Whether the dtype of a tensor has few digits. In a wide dtype a single large parameter may stand still for a
    good reason."""
    form = case.trace.states.form(case.trace.states.first(tensor))
    return form is not None and form.dtype in ("float16", "bfloat16")


def _is_lost(same: np.ndarray, of_parameter: np.ndarray) -> bool:
    count = int((same & of_parameter).sum())
    return count >= _LEAST and count >= _SHARE * int(of_parameter.sum())
