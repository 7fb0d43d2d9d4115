"""`exploding-gradient`: the norm of the gradients of a pass is above 10,000 in half of the passes or more, or the
gradients overflow, and a line whose nodes ran several times made them at least 1000 times larger."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.gains import gains_by_site
from gradviz.diagnose.norms import norms_of_passes
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.words.numbers import number

_LARGE, _SHARE = 1e4, 0.5
_NODES, _GAIN = 3, 3.0  # a line is blamed if that many of its nodes gain three powers of ten together


def _search(case: Case) -> Iterator[Found]:
    for runs, norms in norms_of_passes(case):
        large = ~(norms <= _LARGE)
        if large.mean() < _SHARE or not large[0]:
            continue
        run = runs[0]
        lines = {s: g for s, g in gains_by_site(case, run.number).items() if s and g[1] >= _NODES and g[0] >= _GAIN}
        if not lines:
            continue
        site, (total, count, event) = max(lines.items(), key=lambda line: line[1][0])
        norm = f"{number(float(norms[0]), 3)}" if np.isfinite(norms[0]) else "not finite"
        yield Found(
            f"{count} nodes of this line make the gradient {number(10.0**total, 2)} times larger: the norm of the "
            f"gradients of pass {run.number} is {norm}",
            "use a smaller initialisation, normalisation, or clip_grad_norm_ before the step",
            (event, run.first),
            site=site,
            number=run.number,
        )
        return


RULE = Rule(
    "exploding-gradient",
    WARNING,
    "gradients that get larger from layer to layer",
    _search,
    needs=(Need.VALUES, Need.PASS, Need.DETAILS),
)
