"""`ranks-loss`: the loss is multiplied by a number that is not the same on all ranks, though the ranks average their
gradients.

Why it is bad: the samples of one rank count more than those of the others, and the size of the step changes. The mean
of the gradients belongs to no loss in the program.

Example:

    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss = loss * (1 + rank)  # <- ranks-loss
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()

Cure: multiply by the same number on all ranks, or leave the factor out.

Not reported: weights that add up to 1 over the ranks or are 1 on average, as weights by the sizes of batches are;
numbers that differ from pass to pass; losses that are computed from other shapes on each rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import ARE_AVERAGED, RankFound, RankRule, each_rank, odd_among
from gradviz.query.loss_factors import ScaledLoss, scaled_losses
from gradviz.query.ranks import are_close
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import number, plural

_LEAST = 2  # passes: in a single pass the number may depend on its data


def _search(ranks: Replicas) -> Iterator[RankFound]:
    losses = _of_one_loss(ranks)
    if len(losses) < _LEAST or not _make_as_many_passes(ranks):
        return
    factors = [loss.factor for loss in losses[0]]
    if are_close(factors) or _are_weights(factors):
        return
    odd = odd_among(ranks, [number(factor, 6) for factor in factors])
    rank = _rank_with_a_number(ranks, losses[0], odd)
    event = _event_apart(losses[0], [*ranks.ranks].index(rank))
    yield RankFound(
        f"the loss is multiplied by another number on each rank, in each of the first "
        f"{plural(len(losses), 'pass', 'passes')}, and the gradients are averaged: "
        f"by {each_rank(ranks, [number(factor, 4) for factor in factors])}",
        "multiply the loss by the same number on all ranks, or by none",
        (rank, *(other for other in odd if other != rank)),
        (event,),
    )


def _make_as_many_passes(ranks: Replicas) -> bool:
    """Whether all ranks make equally many passes before the first step. If not, each may divide its loss by them."""
    counts = (
        {
            sum(one.first < step.index for one in query.trace.passes)
            for query, step in zip(ranks.queries, ranks.steps[0], strict=True)
        }
        if ranks.steps
        else set()
    )
    return len(counts) == 1


def _of_one_loss(ranks: Replicas) -> list[tuple[ScaledLoss, ...]]:
    """The losses of the first passes on all ranks, as long as all ranks compute the same loss from the same shapes, and
    each multiplies it by the same number as in the first pass."""
    together = zip(*(query.of(scaled_losses) for query in ranks.queries), strict=False)
    known = [
        tuple(loss for loss in losses if loss is not None)
        for losses in takewhile(lambda losses: None not in losses, together)
    ]
    first = known[0] if known else ()
    return [
        *takewhile(
            lambda losses: (
                len({(loss.op, loss.shapes) for loss in losses}) == 1
                and all(are_close([own.factor, loss.factor]) for own, loss in zip(first, losses, strict=True))
            ),
            known,
        )
    ]


def _rank_with_a_number(ranks: Replicas, losses: Sequence[ScaledLoss], odd: Sequence[int]) -> int:
    """The first odd rank that multiplies its loss; if none does, the first rank that multiplies its loss."""
    multiplying = [rank for rank, loss in zip(ranks.ranks, losses, strict=True) if loss.numbers]
    return next((rank for rank in odd if rank in multiplying), multiplying[0])


def _event_apart(losses: Sequence[ScaledLoss], place: int) -> int:
    """The first op of a rank, counted from the loss, whose number another rank does not have in the same place."""
    numbers = losses[place].numbers[::-1]
    for at, (event, factor) in enumerate(numbers):
        others = [loss.numbers[::-1][at : at + 1] for loss in losses]
        if any(not other or not are_close([factor, other[0][1]]) for other in others):
            return event
    return numbers[-1][0]


def _are_weights(factors: Sequence[float]) -> bool:
    """Whether numbers are weights of the ranks: they are above 0 and add up to 1, or are 1 on average."""
    total = sum(factors)
    return min(factors) > 0 and (are_close([total, 1.0]) or are_close([total / len(factors), 1.0]))


RULE = RankRule(
    "ranks-loss", WARNING, "losses that ranks multiply by different numbers", _search, needs=(ARE_AVERAGED,)
)
