"""`graph-leak`: a tensor that lives on from pass to pass keeps the graphs of all of them alive: each time that its line
runs, it leads to the nodes of one more pass, and no pass ever goes through it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind

_LEAST = 3  # additions at one line


def _search(case: Case) -> Iterator[Found]:
    yield from _chains(case)
    yield from _alive(case)


def _chains(case: Case) -> Iterator[Found]:
    """Nodes that no pass went through, and that hold the graphs of more passes each time that their line runs."""
    table = case.trace.table(Kind.NODE)
    held = _held(case)
    rows = np.flatnonzero(held > 0)
    longest: tuple[int, np.ndarray] | None = None
    for site in np.unique(table.sites[rows]).tolist():
        own = rows[table.sites[rows] == site]
        grows = site and len(own) >= _LEAST and np.all(np.diff(held[own]) > 0)
        if grows and (longest is None or held[own[-1]] > held[longest[1][-1]]):
            longest = site, own
    if longest is not None:
        site, own = longest
        result = case.called(case.query.nodes.outputs(int(table["node"][own[-1]])))
        yield Found(
            f"{result} keeps the graphs of {len(own)} passes alive: it has a grad_fn, and grows with each",
            "total += loss.item()  # or loss.detach()",
            (int(table.events[own[0]]), int(table.events[own[-1]])),
            site=site,
        )


def _held(case: Case) -> np.ndarray:
    """For each node that no pass went through, how many ways lead from it to nodes of passes; 0 for other nodes."""
    table = case.trace.table(Kind.NODE)
    edges = table.lists("edges")
    ran = np.isin(table["node"], case.trace.table(Kind.RECEIVED)["node"])
    row_of = {node: row for row, node in enumerate(table["node"].tolist())}
    held = np.zeros(len(table), np.float64)
    for row in np.flatnonzero(~ran).tolist():
        for node in edges.of(row)[:, 0].tolist():
            at = row_of.get(node)
            if at is not None:
                held[row] += 1 if ran[at] else held[at]
    return held


def _alive(case: Case) -> Iterator[Found]:
    """What the source itself tells of nodes that outlive their passes."""
    table = case.trace.table(Kind.ALIVE)
    own = ~np.isin(table["in_pass"], sorted(case.training.inside_steps))
    counts = table.lists("graphs").counts[own]
    if len(counts) < _LEAST or np.any(np.diff(counts[-_LEAST:]) <= 0):
        return
    number = int(table["in_pass"][own][-1])
    run = case.query.passes.by_number[number]
    yield Found(
        f"at the end of pass {number}, the graphs of {int(counts[-1])} earlier passes are still alive",
        "keep loss.item() or loss.detach(), not the loss itself",
        (int(table.events[own][-1]), run.first),
        site=run.site,
        number=number,
    )


RULE = Rule(
    "graph-leak",
    WARNING,
    "graphs that are kept alive from pass to pass",
    _search,
    needs=(Need.PASSES, Need.DETAILS),
)
