"""Writes one HTML page for the ranks of one run: the page of one rank, with what is not the same on all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from gradviz.cli.page import write_page
from gradviz.diagnose import Finding
from gradviz.diagnose.marked import faults_of
from gradviz.diagnose.rank_reports import check_ranks
from gradviz.diagnose.rule_settings import Settings
from gradviz.graph.joined import of_first_rank
from gradviz.graph.model import Graph
from gradviz.query import Query
from gradviz.replaying import MOST_EVENTS, fill_in_where_bad
from gradviz.system.paths import as_argument
from gradviz.tracefile import Trace
from gradviz.words.numbers import called_ranks

_MOST_RANKS = 8  # the most ranks whose graphs are built for each pass of the page

_Numbered = list[tuple[int, Finding]]
_Joined = Callable[[dict[int, Query], int | None, _Numbered], Graph]


def write_rank_page(
    ranks: Mapping[int, Trace], joined: _Joined, number: int | None, path: Path, settings: Settings | None
) -> str:
    """Write the page of the rank with the first finding, otherwise of the first rank. `joined` makes the graph of a
    pass over some ranks, given as queries with the rank of the page first, with the findings to mark. Without
    `settings` nothing is checked. Returns one line for the user. Raises DrawError."""
    found = _findings(ranks, settings)
    shown = next((finding.ranks[0] for _, finding in faults_of(found) if finding.ranks), min(ranks))
    own = [(place, finding) for place, finding in found if finding.ranks[:1] == (shown,)]
    queries = {rank: Query(ranks[rank]) for rank in _compared(shown, ranks, found)}

    def graph_of(pass_number: int | None) -> Graph:
        graph = of_first_rank(joined(queries, pass_number, own))
        values = f"values of rank {shown}"  # a page says it in its title, too
        graph.notes = [note for note in graph.notes if note != values] + [_about(shown, ranks, queries)]
        return graph

    listed = [(place, _on_page(finding, shown, len(ranks))) for place, finding in found]
    message = write_page(ranks[shown], graph_of, number, path, listed, queries[shown])
    return f"{message}: {_about(shown, ranks, queries)}"


def _findings(ranks: Mapping[int, Trace], settings: Settings | None) -> _Numbered:
    """The findings of the ranks and between them, with their numbers; none of a run that is too long to be checked in
    passing."""
    if settings is None or sum(trace.count for trace in ranks.values()) > MOST_EVENTS:
        return []
    for trace in ranks.values():
        fill_in_where_bad(trace)
    return list(enumerate(check_ranks(ranks, settings=settings), 1))


def _compared(shown: int, ranks: Mapping[int, Trace], found: _Numbered) -> list[int]:
    """The rank of the page, then the ranks that it is compared with: of very many those first that a finding names."""
    named = [rank for _, finding in found if len(finding.ranks) < len(ranks) for rank in finding.ranks]
    return [*dict.fromkeys([shown, *named, *ranks])][:_MOST_RANKS]


def _on_page(finding: Finding, shown: int, count: int) -> Finding:
    """A finding as the page of a rank lists it. The events and tensors of another rank lead nowhere on it."""
    where = "" if len(finding.ranks) in (0, count) else f"on {called_ranks(finding.ranks)}: "
    finding = replace(finding, message=where + finding.message)
    return finding if finding.ranks[:1] == (shown,) else replace(finding, events=(), node=0, tensors=())


def _about(shown: int, ranks: Mapping[int, Trace], queries: Mapping[int, Query]) -> str:
    """A line that says which ranks a page is about, and how to see another."""
    other = next(rank for rank in ranks if rank != shown)
    command = f"gradviz graph {as_argument(ranks[other].path.name)} -o rank{other}.html"
    compared = (
        "" if len(queries) == len(ranks) else f", compared with {called_ranks(sorted({*queries} - {shown}))}"
    )
    return f"this is rank {shown}{compared}; another rank: {command}"
