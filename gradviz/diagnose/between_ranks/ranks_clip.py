"""`ranks-clip`: a gradient that lies on the ranks in parts (`fully_shard`, `DTensor`) is scaled by another factor on
each rank: each part is clipped by its own norm, and not by the norm of the whole gradient.

Why it is bad: the step does not follow the gradient, and its size grows with the number of ranks.

Example:

    from torch.distributed.fsdp import fully_shard
    torch.manual_seed(0)
    model = nn.Linear(6, 4)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 6)).pow(2).mean().backward()
        parts = [p.grad.to_local() for p in model.parameters()]
        norm = torch.stack([part.norm() for part in parts]).norm()
        for part in parts:
            part.mul_(0.01 / norm)  # <- ranks-clip
        optimizer.step()

Cure: `torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)` knows the norm of the whole. By hand: sum the squares
of the norms over the ranks before the root.

Not reported: parts that all ranks scale by one factor, and clipping of each element.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from math import sqrt

from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rank_rule import RankFound, RankRule, each_rank, named
from gradviz.query.ranks import are_close
from gradviz.query.reduced_gradients import ScaledPart, scaled_parts
from gradviz.query.replicas import Replicas
from gradviz.words.numbers import number

_Scaled = dict[int, dict[str, ScaledPart]]  # by rank and parameter


def _search(ranks: Replicas) -> Iterator[RankFound]:
    scaled = {
        rank: {query.names.of(part.parameter) or "": part for part in query.of(scaled_parts)}
        for rank, query in ranks.ranks.items()
    }
    names = [name for name in ranks.common if sum(name in parts for parts in scaled.values()) > 1]
    by_name = {name: [own[name].factor for own in scaled.values() if name in own] for name in names}
    apart = [name for name in names if not are_close(by_name[name])]
    if not apart:
        return
    name = apart[0]
    norms = {rank: sqrt(sum(part.norm**2 for part in parts.values())) for rank, parts in scaled.items()}
    rank = next(rank for rank, parts in scaled.items() if name in parts)
    event = scaled[rank][name].event
    lie = "lie" if len(apart) > 1 else "lies"
    factors = each_rank(
        ranks,
        [number(parts[name].factor, 4) if name in parts else "nothing" for parts in scaled.values()],
    )
    yield RankFound(
        f"the gradient{'s' * (len(apart) > 1)} of {named(apart)} {lie} on the ranks in parts, which the ranks scale by "
        f"different factors: that of {named([name])} by {factors}. {_norms_told(ranks, scaled, norms)}",
        _cure(names, _bound(scaled, norms, name)),
        tuple(rank for rank, parts in scaled.items() if name in parts),
        (event,),
    )


def _norms_told(ranks: Replicas, scaled: _Scaled, norms: dict[int, float]) -> str:
    """The norms of the parts that the ranks scale, and of the whole if each element lies on exactly one rank."""
    text = (
        f"The norm of what a rank scales is {each_rank(ranks, [number(norm, 4) for norm in norms.values()])}"
    )
    here: Counter[str] = Counter()
    whole: dict[str, int] = {}
    for parts in scaled.values():
        for name, part in parts.items():
            here[name] += part.elements[0]
            whole[name] = part.elements[1]
    if dict(here) != whole:
        return text
    return f"{text}, that of the whole {number(sqrt(sum(norm**2 for norm in norms.values())), 4)}"


def _parameters(names: Sequence[str]) -> str:
    """The expression for parameters with these names: `model.parameters()`, or `[w]` for a parameter of no model."""
    models = dict.fromkeys(f"{name.partition('.')[0]}.parameters()" for name in names if "." in name)
    alone = [name for name in names if "." not in name]
    if len(models) == 1 and not alone:
        return next(iter(models))
    return f"[{', '.join([*(f'*{model}' for model in models), *alone])}]"


def _cure(names: Sequence[str], bound: str) -> str:
    if not bound:
        return "scale the parts by the same number on all ranks"
    return f"torch.nn.utils.clip_grad_norm_({_parameters(names)}, {bound})  # in the place of what scales the parts"


def _bound(scaled: _Scaled, norms: dict[int, float], name: str) -> str:
    """The norm to which each rank scales its parts; empty if the norms differ between the ranks."""
    bounds = [scaled[rank][name].factor * norm for rank, norm in norms.items() if name in scaled[rank]]
    return number(bounds[0], 3) if are_close(bounds) else ""


RULE = RankRule("ranks-clip", WARNING, "parts of a gradient that each rank scales by another factor", _search)
