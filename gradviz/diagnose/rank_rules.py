"""Rules of ranks: what is wrong between the processes of one run, though each may be right by itself.

They compare ranks that train one model: parameters of the same names. A rule says nothing where ranks have parts of
their own to compute, as in a pipeline or with sharded parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradviz.diagnose.finding import WARNING, Finding
from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.ranks import (
    Collective,
    Difference,
    all_reduced,
    differences,
    partings,
    starts_apart,
    unreduced,
)
from gradviz.tracefile import Site
from gradviz.words.escape import clean
from gradviz.words.numbers import brief, listed, plural

_SHOWN = 3  # parameters
_WRAP = "model = torch.nn.parallel.DistributedDataParallel(model)"
_AVERAGE = "dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)"


@dataclass(frozen=True, slots=True)
class RankRule:
    """A rule: its stable id, what it looks for in one sentence, and the search over the ranks."""

    id: str
    looks_for: str
    search: Callable[[Mapping[int, Query]], Iterator[Finding]]


def _unreduced(ranks: Mapping[int, Query]) -> Iterator[Finding]:
    """Gradients that no rank averages, of a model that begins the same on all."""
    queries = [*ranks.values()]
    found = unreduced(queries)
    if not found or starts_apart(queries):  # each has a part of its own, or a model of its own
        return
    first = found[0]
    yield Finding(
        "ranks-unreduced",
        WARNING,
        f"no gradient is averaged over the ranks, though they begin with the same parameters: at step {first.step} the "
        f"gradient of {clean(first.name)} is {_each(ranks, first)}",
        _cure_of_unreduced(first.name),
        _site_of_step(queries[0]),
        ranks=tuple(ranks),
    )


def _cure_of_unreduced(name: str) -> str:
    """What makes the ranks average their gradients. The name of a parameter says whether its model is wrapped."""
    wrapped = clean(name.partition(".module.")[0])
    if wrapped == clean(name):
        return f"{_WRAP}; or, before the step: {_AVERAGE}"
    return (
        f"call {wrapped} and not {wrapped}.module, and the pass before a step outside of {wrapped}.no_sync()"
    )


def _partly(ranks: Mapping[int, Query]) -> Iterator[Finding]:
    """Gradients that differ at a step, though others are averaged."""
    found = differences([*ranks.values()])
    if not found:
        return
    first = found[0]
    lacking = [rank for rank, was in zip(ranks, first.averaged, strict=True) if not was]
    names = _named([one.name for one in found])
    on = f"not all-reduced on {_ranks(lacking)}" if lacking else "all-reduced before it was complete"
    yield Finding(
        "ranks-apart",
        WARNING,
        f"the gradient{'s' * (len(found) > 1)} of {names} differ{'s' * (len(found) == 1)} between the ranks at step "
        f"{first.step}, {on}: {clean(first.name)} has {_each(ranks, first)}",
        f"{_AVERAGE}  # for each parameter, on each rank",
        _site_of_step(ranks[lacking[0]] if lacking else next(iter(ranks.values()))),
        ranks=tuple(lacking or ranks),
    )


def _starts(ranks: Mapping[int, Query]) -> Iterator[Finding]:
    """Replicas that differ before the first step, of a model whose gradients are averaged."""
    queries = [*ranks.values()]
    found = starts_apart(queries)
    if not found or not _are_averaged(queries):
        return
    first = found[0]
    values = _listed(ranks, [brief(value) for value in first.values])
    yield Finding(
        "ranks-start",
        WARNING,
        f"{_named([one.name for one in found])} begin{'s' * (len(found) == 1)} with other values on each rank, though "
        f"the gradients are averaged: {clean(first.name)} is {values}",
        "torch.manual_seed(0)  # before the model is made; or dist.broadcast(p.data, 0) for each parameter",
        _site_of(queries[0], first.tensors[0]),
        ranks=tuple(ranks),
    )


def _collectives(ranks: Mapping[int, Query]) -> Iterator[Finding]:
    """Ranks that call another collective than the others, another shape, or one fewer: the usual reason of a hang."""
    parting = partings([*ranks.values()])
    if parting is None:
        return
    told = _listed(ranks, [_called(call) for call in parting.calls])
    rank, call = next(
        (rank, call) for rank, call in zip(ranks, parting.calls, strict=True) if call is not None
    )
    yield Finding(
        "ranks-collectives",
        WARNING,
        f"collective {parting.number} is not the same on all ranks: {told}",
        "call the same collectives, with the same shapes, on each rank",
        _site_at(ranks[rank], call.event),
        (call.event,),
        ranks=(rank,),
    )


def _steps(ranks: Mapping[int, Query]) -> Iterator[Finding]:
    """Ranks that make fewer steps than others, though the gradients are averaged: the others wait, or go on alone."""
    queries = [*ranks.values()]
    counts = [len(query.trace.table(Kind.STEPPED).events) for query in queries]
    if len(set(counts)) < 2 or not _are_averaged(queries):
        return
    told = _listed(ranks, [plural(count, "step") for count in counts])
    rank = min(zip(counts, ranks, strict=True))[1]
    yield Finding(
        "ranks-steps",
        WARNING,
        f"the ranks do not make the same number of steps: {told}",
        "give each rank the same number of batches: DistributedSampler(dataset, drop_last=True), or model.join()",
        _site_of_step(ranks[rank]),
        ranks=(rank,),
    )


def _called(call: Collective | None) -> str:
    return "none any more" if call is None else f"{call.name} of shape {call.shape}"


_RULES = (
    RankRule(
        "ranks-collectives", "ranks whose collectives are not the same, in the same order", _collectives
    ),
    RankRule("ranks-steps", "ranks that make fewer steps than others", _steps),
    RankRule("ranks-start", "replicas that differ before the first step", _starts),
    RankRule("ranks-unreduced", "gradients that no rank averages", _unreduced),
    RankRule("ranks-apart", "gradients that differ at a step, though others are averaged", _partly),
)
BETWEEN_RANKS = {rule.id: rule for rule in _RULES}


def findings_of(ranks: Mapping[int, Query], ids: Sequence[str]) -> Iterator[Finding]:
    """What the rules of ranks with these ids find."""
    for name in ids:
        yield from BETWEEN_RANKS[name].search(ranks)


# --- wording and places


def _are_averaged(queries: Sequence[Query]) -> bool:
    return all(len(all_reduced(query)) for query in queries)


def _named(names: Sequence[str]) -> str:
    shown = [clean(name) for name in names[:_SHOWN]]
    more = len(names) - len(shown)
    return listed([*shown, plural(more, "other parameter")] if more else shown)


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {listed([str(rank) for rank in ranks])}"


def _each(ranks: Mapping[int, Query], difference: Difference) -> str:
    return _listed(
        ranks, [brief(gradient) if gradient is not None else "None" for gradient in difference.gradients]
    )


def _listed(ranks: Mapping[int, Query], texts: Sequence[str]) -> str:
    """What each rank has; ranks with the same are told together."""
    by_text: dict[str, list[int]] = {}
    for rank, text in zip(ranks, texts, strict=True):
        by_text.setdefault(text, []).append(rank)
    return ", ".join(f"{text} on {_ranks(own)}" for text, own in by_text.items())


def _site_of_step(query: Query) -> Site | None:
    stepped = query.trace.table(Kind.STEPPED)
    return query.places.site(int(stepped.sites[0])) if len(stepped.events) else None


def _site_of(query: Query, tensor: int) -> Site | None:
    made = query.tensors.made(tensor)
    return query.places.site(made.site) if made is not None else None


def _site_at(query: Query, event: int) -> Site | None:
    return query.places.site(int(query.trace.events["site"][event]))
