"""`exploding-gradient`: in half of the passes or more the norm of the gradients is above 10,000, or the gradients
overflow, and a line whose nodes ran several times made them at least 1000 times larger.

Why it is bad: one step moves the weights far away, and the loss jumps or becomes NaN.

Example:

    torch.manual_seed(0)
    w = (3.0 * torch.eye(4)).requires_grad_()
    h = torch.ones(1, 4)
    for t in range(12):
        h = h @ w  # <- exploding-gradient
    loss = h.mean()
    loss.backward()

Cure: clip the gradients (`clip_grad_norm_`), begin with smaller weights, or use gated cells.

Not reported: one large gradient in an otherwise quiet run.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from gradviz.diagnose.nonfinite import Source, first_bad
from gradviz.diagnose.norms import gains, norms_of_passes
from gradviz.diagnose.rule import ERROR, WARNING, Case, Found, Kind, Need, Rule, Threshold
from gradviz.sets import distinct
from gradviz.words.numbers import number

_SHARE = 0.5
_LARGEST = 300  # powers of ten: a float holds no larger number
_ROUNDS, _GAIN = 3, 3.0  # a line is blamed from so many rounds and so many powers of ten


@Rule(
    "exploding-gradient",
    WARNING,
    "gradients that get larger from layer to layer",
    needs=(Need.VALUES, Need.PASS, Need.DETAILS),
    follows=("huge-start",),
    threshold=Threshold(1e4, 0, math.inf, "the norm of all gradients of a pass"),
)
def exploding_gradient(case: Case) -> Iterator[Found]:
    for passes, norms in norms_of_passes(case):
        large = ~(norms <= exploding_gradient.threshold_in(case))
        if large.mean() < _SHARE or not large[0]:
            continue
        backward_pass = passes[0]
        lines = [gain for gain in gains(case, backward_pass.number) if gain.rounds >= _ROUNDS and gain.total >= _GAIN]
        if not lines:
            continue
        line = max(lines, key=lambda gain: gain.total + gain.own)
        norm = f"{number(float(norms[0]), 3)}" if np.isfinite(norms[0]) else "not finite"
        times = number(10.0**line.total, 2) if line.total < _LARGEST else f"1e{line.total:.0f}"
        yield Found(
            f"from the first to the last of {line.count} nodes of this line, the gradient gets "
            f"{times} times "
            f"larger: the norm of the gradients of pass {backward_pass.number} is {norm}",
            "use a smaller initialisation, normalisation, or clip_grad_norm_ before the step",
            (line.event, backward_pass.first),
            site=line.site,
            number=backward_pass.number,
            **_of_overflow(case),
        )
        return


def _of_overflow(case: Case) -> dict[str, Any]:
    """The tensors and the severity of the finding. If a forward value overflows too, the finding is an error and names
    that tensor: the explosion caused the infinity. Otherwise it names the leaves that got gradients."""
    origin = case.of(first_bad)
    if origin is None or origin.is_nan or origin.source is not Source.OP:
        return {"tensors": tuple(distinct(case.trace.table(Kind.ACCUMULATED)["tensor"]).tolist())}
    return {"tensors": (origin.tensor,), "severity": ERROR}
