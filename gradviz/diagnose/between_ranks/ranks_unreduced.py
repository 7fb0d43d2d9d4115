"""`ranks-unreduced`: no gradient is averaged over the ranks, of a model that begins with the same parameters on all.

Why it is bad: each rank trains a model of its own with a part of the data, and all but one of them are thrown away.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()  # <- ranks-unreduced

Cure: wrap the model in DistributedDataParallel, and call the wrapped model; `no_sync()` belongs around all passes
before a step but the last. Or average by hand, before the step.

Not reported: ranks with parts of one model (a pipeline, shards), and ranks that begin with parameters of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import AVERAGE, RankFound, RankRule, site_of_step, values_of_each
from gradviz.query.replicas import Replicas
from gradviz.words.escape import clean

_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if any(map(len, ranks.reduced)) or not ranks.are_replicas or not ranks.gradients_apart:
        return
    first = ranks.gradients_apart[0]
    yield RankFound(
        "no gradient is averaged over the ranks, though they begin with the same parameters: at step "
        f"{first.step} the gradient of {clean(first.name)} is {values_of_each(ranks, first.gradients)}",
        _cure(first.name),
        site_of_step(ranks.queries[0]),
        tuple(ranks.ranks),
    )


def _cure(name: str) -> str:
    """What makes the ranks average their gradients. The name of a parameter says whether its model is wrapped."""
    wrapped = clean(name.partition(".module.")[0])
    if wrapped == clean(name):
        return f"{_WRAP}; or, before the step: {AVERAGE}"
    return (
        f"call {wrapped} and not {wrapped}.module, and the pass before a step outside of {wrapped}.no_sync()"
    )


RULE = RankRule("ranks-unreduced", WARNING, "gradients that no rank averages", _search)
