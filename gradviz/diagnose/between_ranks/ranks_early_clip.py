"""`ranks-early-clip`: gradients are clipped on each rank before the ranks average them: each rank scales its gradients
by another factor.

Why it is bad: the limit applies to the gradients of one rank, and not to their mean, which has a smaller norm. A rank
with large gradients counts less in the mean, and the step changes with the number of ranks.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)  # <- ranks-early-clip
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: clip between the average and the step.

Not reported: gradients that all ranks scale by the same factor, as when no norm is above the limit; gradients that a
rank weights by the size of its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, each_rank, named, site_of_event
from gradviz.query.early_scalings import Scaling, early_scalings
from gradviz.query.query import Query
from gradviz.query.rank_values import are_close
from gradviz.query.replicas import Replicas
from gradviz.words.escape import clean
from gradviz.words.numbers import number

_LONGEST = 80  # characters of an expression
_Scaled = dict[int, Scaling | None]  # by rank


def _search(ranks: Replicas) -> Iterator[RankFound]:
    if not all(map(len, ranks.reduced)):
        return
    every = {rank: query.of(early_scalings) for rank, query in ranks.ranks.items()}
    for step in sorted({scaling.step for scalings in every.values() for scaling in scalings}):
        by_rank = {
            rank: [scaling for scaling in scalings if scaling.step == step]
            for rank, scalings in every.items()
        }
        scaled = _by_function(by_rank) or _by_hand(by_rank)
        if scaled is not None:
            yield _found(ranks, scaled)
            return


def _by_function(by_rank: dict[int, list[Scaling]]) -> _Scaled | None:
    """The first call on each rank of a function that clips, if its factor is not the same on all ranks; else None."""
    scaled = {
        rank: next((scaling for scaling in scalings if scaling.is_clip), None)
        for rank, scalings in by_rank.items()
    }
    factors = [1.0 if scaling is None else scaling.factor for scaling in scaled.values()]
    return None if are_close(factors) else scaled


def _by_hand(by_rank: dict[int, list[Scaling]]) -> _Scaled | None:
    """The first line that gives the gradients of all ranks the same norm, by different factors; None if none does."""
    for together in zip(*by_rank.values(), strict=False):
        norms = [scaling.factor * scaling.norm for scaling in together]
        if not are_close([scaling.factor for scaling in together]) and are_close(norms) and min(norms):
            return dict(zip(by_rank, together, strict=True))
    return None


def _found(ranks: Replicas, scaled: _Scaled) -> RankFound:
    changed = {
        rank: scaling for rank, scaling in scaled.items() if scaling is not None and scaling.factor != 1
    }
    rank, first = next(iter(changed.items()))
    query = ranks.ranks[rank]
    names = [query.names.of(parameter) or "a parameter" for parameter in first.parameters]
    clips = _expression(query, first.event)
    many = len(names) > 1
    return RankFound(
        f"the gradient{'s' * many} of {named(names)} {'are' if many else 'is'} clipped before the ranks average "
        f"{'them' if many else 'it'}: each rank scales its own, "
        f"{each_rank(ranks, [_factor(scaling) for scaling in scaled.values()])}, and {_then(query, first)} follows",
        f"{clips}  # between the average and the step",
        site_of_event(query, first.event),
        tuple(changed),
        (first.event, first.reduced),
    )


def _factor(scaling: Scaling | None) -> str:
    """The words for the scaling of a rank's gradients: `by 0.5`, `not at all`, `element by element`."""
    if scaling is None or scaling.factor == 1:
        return "not at all"
    return f"by {number(scaling.factor, 4)}" if isfinite(scaling.factor) else "element by element"


def _expression(query: Query, event: int) -> str:
    """The call that clips, to be typed."""
    site = site_of_event(query, event)
    text = clean(query.places.expression(site.number)) if site is not None else ""
    return text if 0 < len(text) <= _LONGEST else "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def _then(query: Query, scaling: Scaling) -> str:
    site = site_of_event(query, scaling.reduced)
    return "the all_reduce" if site is None else f"the all_reduce at line {site.place.line}"


RULE = RankRule(
    "ranks-early-clip", WARNING, "gradients that are clipped before the ranks average them", _search
)
