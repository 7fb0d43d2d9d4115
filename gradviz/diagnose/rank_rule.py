"""RankRule: a rule for a fault between the processes of one run, each of which may be right by itself. Also the texts
and places that these rules share."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from gradviz.diagnose.finding import Finding
from gradviz.events.kinds import Kind
from gradviz.query.query import Query
from gradviz.query.ranks import alike
from gradviz.query.replicas import Replicas
from gradviz.sets import grouped
from gradviz.tracefile import Site, Snapshot
from gradviz.words.escape import clean
from gradviz.words.numbers import called_ranks, listed, plural, told_apart

AVERAGE = "dist.all_reduce(p.grad); p.grad /= dist.get_world_size()  # for each parameter, on each rank"
_SHOWN = 3  # the most parameters that are named
_MOST_TEXTS = 4  # the most different texts that are shown
LONGEST = 80  # characters of an expression that is to be typed

ARE_AVERAGED: Callable[[Replicas], bool] = attrgetter("are_averaged")
ARE_REPLICAS: Callable[[Replicas], bool] = attrgetter("are_replicas")


class RankFound(NamedTuple):
    """A result of a rule's search, before it becomes a Finding. The events are events of the first of `ranks` (empty:
    all ranks have it). Its line is that of `site`, else that of the first event."""

    message: str
    fix: str
    ranks: tuple[int, ...] = ()
    events: tuple[int, ...] = ()
    site: Site | None = None
    pass_number: int = 0
    severity: str = ""  # empty: the severity of the rule


@dataclass(frozen=True, slots=True)
class RankRule:
    """A rule: its stable id, its severity, what it looks for in one sentence, and the search over the ranks, which is
    made only if they meet all `needs`. The page of the rule is made from the docstring of the search."""

    id: str
    severity: str
    looks_for: str
    search: Callable[[Replicas], Iterator[RankFound]] = lambda ranks: iter(())
    needs: tuple[Callable[[Replicas], bool], ...] = ()

    def __call__(self, search: Callable[[Replicas], Iterator[RankFound]]) -> "RankRule":
        """The rule with the search that it decorates."""
        return replace(self, search=search)

    @property
    def opt_in(self) -> bool:
        """False: a rank rule is checked even if it is not selected."""
        return False

    def findings(self, ranks: Replicas) -> Iterator[Finding]:
        """The findings of the rule in the ranks of a run."""
        if not all(need(ranks) for need in self.needs):
            return
        for found in self.search(ranks):
            of, site = found.ranks or tuple(ranks.ranks), found.site
            if site is None and found.events:
                site = ranks.ranks[of[0]].places.at(found.events[0])
            yield Finding(
                self.id,
                found.severity or self.severity,
                clean(found.message),
                clean(found.fix),
                site,
                found.events,
                number=found.pass_number,
                ranks=of,
            )


# --- words


def named(names: Sequence[str]) -> str:
    """Parameters by name: `w, b and 3 other parameters`."""
    shown = list(names[:_SHOWN])
    more = len(names) - len(shown)
    return listed([*shown, plural(more, "other parameter")] if more else shown)


def each_rank(ranks: Replicas, texts: Sequence[str]) -> str:
    """The texts of all ranks in one line, each text once with its ranks; of many texts only the first four."""
    by_text = grouped(zip(texts, ranks.ranks, strict=True))
    parts = [f"{text} on {called_ranks(own)}" for text, own in by_text.items()]
    if len(parts) > _MOST_TEXTS:
        others = [rank for own in [*by_text.values()][_MOST_TEXTS:] for rank in own]
        parts[_MOST_TEXTS:] = [f"something else on {called_ranks(others)}"]
    return ", ".join(parts)


def values_of_each(ranks: Replicas, values: Sequence[Snapshot | None]) -> str:
    """The values of all ranks in one line; a rank without a value has None."""
    return each_rank(ranks, told_apart(values))


def odd_ranks(ranks: Replicas, values: Sequence[Snapshot | None]) -> tuple[int, ...]:
    """The ranks whose value differs from that of the majority; all ranks if there is no majority."""
    return odd_among(ranks, alike(values))


def odd_among(ranks: Replicas, kinds: Sequence[Hashable]) -> tuple[int, ...]:
    """The ranks whose kind differs from that of the majority; all ranks if there is no majority."""
    (usual, count), *_ = Counter(kinds).most_common(1)
    if 2 * count <= len(kinds):
        return tuple(ranks.ranks)
    return tuple(rank for rank, kind in zip(ranks.ranks, kinds, strict=True) if kind != usual)


# --- places


def site_of_step(query: Query, step: int = 1) -> Site | None:
    """The site of the optimizer step with this number, from 1; None if there is none."""
    stepped = query.trace.table(Kind.STEPPED)
    return query.places.site(int(stepped.sites[step - 1])) if len(stepped.events) >= step else None


def site_of_optimizer(query: Query) -> Site | None:
    """The site where the first optimizer was made. If it was made before the recording: the site of the first step."""
    held = query.trace.table(Kind.HOLDS)
    site = query.places.site(int(held.sites[0])) if len(held) else None
    return site if site is not None else site_of_step(query)


def expression_at(query: Query, event: int) -> str:
    """The expression of the program that emitted an event; empty if it is unknown."""
    site = query.places.at(event)
    return query.places.expression(site.number) if site is not None else ""
