"""`vanishing-gradient`: in the first pass and in half of all passes or more, the gradient of some weights has a root
mean square below 1e-7, while the gradient of other weights in the same pass is at least 10,000 times as large. The
gradient gets smaller at a line whose nodes ran several times.

Why it is bad: the first layers learn ten thousand times more slowly than the last layers, that is, not at all.

Example:

    torch.manual_seed(0)
    layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(20)])
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    for step in range(2):
        h = torch.randn(6, 4)
        for layer in layers:
            h = torch.sigmoid(layer(h))  # <- vanishing-gradient
        loss = h.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: give the gradient a shorter path (residual connections), use activations that do not shrink it, normalisation, or
a better initialisation.

Not reported: gradients that are equally small for all weights, as at the end of training.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.branches import on_short_branch
from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.gains import gains
from gradviz.diagnose.norms import leaf_norms
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.query.flow import sources
from gradviz.sets import common, contained, ranked, without
from gradviz.words.numbers import number

_RATIO, _SHARE = 1e4, 0.5
_BESIDE = 1e3  # a leaf whose gradient is so many times larger than that of a leaf beside it learns
_ROUNDS, _LOSS = 3, -2.0  # a line is blamed from so many rounds and from a loss of two powers of ten


def _search(case: Case) -> Iterator[Found]:
    leaves, passes, rms, _ = leaf_norms(case)
    numbers, at = ranked(passes)
    largest = np.zeros(len(numbers))
    known = np.isfinite(rms)
    np.maximum.at(largest, at[known], rms[known])
    tiny = (
        known
        & (rms > 0)
        & (rms < case.settings.threshold("vanishing-gradient"))
        & (largest[at] >= _RATIO * rms)
    )
    if not tiny.any():
        return
    tensors, places = ranked(leaves)
    counts, of_all = (np.bincount(places[some], minlength=len(tensors)) for some in (tiny, known))
    small = tensors[(counts > 0) & (counts >= _SHARE * of_all)]
    small = common(small, leaves[tiny & (passes == passes.min())])
    at_first = known & (passes == passes.min())
    small = _not_cancelled(
        case, small, dict(zip(leaves[at_first].tolist(), rms[at_first].tolist(), strict=True))
    )
    first = int(passes[tiny & contained(leaves, small)].min(initial=numbers[-1] + 1))
    small = without(small, sorted(on_short_branch(case, set(small.tolist()), first)))
    if not len(small):
        return
    lines = [gain for gain in gains(case, first) if gain.rounds >= _ROUNDS and gain.total <= _LOSS]
    if not lines:
        return
    line = min(lines, key=lambda gain: gain.total + gain.own)
    worst = float(rms[tiny & (passes == first) & contained(leaves, small)].min())
    yield Found(
        f"from the first to the last of {line.count} nodes of this line, the gradient gets "
        f"{number(10.0**-line.total, 2)} times smaller: that of {case.called(small.tolist())} "
        f"has rms {number(worst, 2)}",
        "use ReLU or GELU, residual connections, normalisation, or gates (LSTM, GRU)",
        (line.event, case.query.passes.by_number[first].first),
        site=line.site,
        number=first,
        tensors=tuple(small.tolist()),
    )


def _not_cancelled(case: Case, small: np.ndarray, norms: dict[int, float]) -> np.ndarray:
    """The leaves that no op reads together with a leaf whose gradient is sound, by the norms of one pass. A bias before
    a normalisation gets nothing but rounding errors, while the weight beside it learns."""
    below = case.downstream
    return np.array(
        [
            leaf
            for leaf in small.tolist()
            if not any(
                norms.get(other, 0.0) >= _BESIDE * norms[leaf]
                for event in below.readers(leaf)[:1]
                for read in case.query.tensors.op(event).inputs
                for other in (read, *sources(case.query, read, through_memory=True))
            )
        ],
        np.int64,
    )


RULE = Rule(
    "vanishing-gradient",
    WARNING,
    "gradients that get smaller from layer to layer until nothing is left",
    _search,
    needs=(Need.VALUES, Need.PASS, Need.DETAILS),
    follows=(
        "huge-start",
        "constant-start",
        "dead-relu",
    ),
)
