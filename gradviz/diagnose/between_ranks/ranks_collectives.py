"""`ranks-collectives`: the n-th collective of a rank is not that of the other ranks: it is another collective, has
another shape, is missing, or belongs to another parameter.

Why it is bad: ranks wait for one another in a collective: the run hangs until its timeout, or combines tensors that do
not belong together.

Example:

    losses = torch.ones(2 + rank)
    dist.all_reduce(losses)  # <- ranks-collectives

Cure: call the same collectives, with the same shapes, in the same order on each rank.

Not reported: collectives of a group of some ranks, and collectives that PyTorch calls itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, each_rank
from gradviz.query.collective_calls import Collective, partings
from gradviz.query.replicas import Replicas


def _search(ranks: Replicas) -> Iterator[RankFound]:
    parting = partings(ranks.queries)
    if parting is None:
        yield from _mixed_up(ranks)
        return
    rank, call = next(
        (rank, call) for rank, call in zip(ranks.ranks, parting.calls, strict=True) if call is not None
    )
    yield RankFound(
        f"collective {parting.number} is not the same on all ranks: "
        f"{each_rank(ranks, [_called(call) for call in parting.calls])}",
        "call the same collectives, with the same shapes, on each rank",
        (rank,),
        (call.event,),
    )


def _mixed_up(ranks: Replicas) -> Iterator[RankFound]:
    """The finding for a collective that combines tensors of different parameters."""
    found = ranks.mixed_up
    if found is None:
        return
    yield RankFound(
        f"collective {found.number} puts together what belongs to different parameters: "
        f"{each_rank(ranks, list(found.names))}",
        "call the collectives for the parameters in the same order on each rank, as model.parameters() has them",
        tuple(ranks.ranks),
        (found.events[0],),
    )


def _called(call: Collective | None) -> str:
    if call is None:
        return "none any more"
    return f"{call.name} of shape {call.shape}" if call.has_tensor else call.name


RULE = RankRule(
    "ranks-collectives", WARNING, "ranks whose collectives are not the same, in the same order", _search
)
