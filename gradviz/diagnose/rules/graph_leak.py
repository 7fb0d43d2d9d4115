"""`graph-leak`: a tensor that lives on from pass to pass keeps the graphs of all of them alive: at the same line, the
result of an earlier pass is added to it again and again, and no pass ever begins at it or goes through it."""

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
    """Nodes that lead both to the node of the same line before them and to the root of a pass of its own."""
    table = case.trace.table(Kind.NODE)
    edges = table.lists("edges")
    began = case.trace.table(Kind.PASS_BEGAN).lists("roots")
    to_root = np.isin(edges.elements[:, 0], began.elements[:, 0])
    owners = np.unique(edges.owners[to_root])
    ran = np.isin(table["node"], case.trace.table(Kind.RECEIVED)["node"])
    chosen = owners[~ran[owners]]
    for site in dict.fromkeys(table.sites[chosen].tolist()):
        own = chosen[table.sites[chosen] == site]
        nodes = set(table["node"][own].tolist())
        linked = np.isin(edges.owners, own) & np.isin(edges.elements[:, 0], sorted(nodes))
        if int(linked.sum()) >= _LEAST - 1 and site:
            result = case.called(case.query.nodes.outputs(int(table["node"][own[-1]])))
            yield Found(
                f"{result} keeps the graphs of {len(own)} passes alive: it is a tensor with a grad_fn, and grows with each",
                "total += loss.item()  # or loss.detach()",
                (int(table.events[own[0]]), int(table.events[own[-1]])),
                site=site,
            )


def _alive(case: Case) -> Iterator[Found]:
    """What the source itself tells of nodes that outlive their passes."""
    table = case.trace.table(Kind.ALIVE)
    counts = table.lists("graphs").counts
    if len(counts) < _LEAST or np.any(np.diff(counts[-_LEAST:]) <= 0):
        return
    number = int(table["in_pass"][-1])
    run = case.query.passes.by_number[number]
    yield Found(
        f"at the end of pass {number}, the graphs of {int(counts[-1])} earlier passes are still alive",
        "keep loss.item() or loss.detach(), not the loss itself",
        (int(table.events[-1]), run.first),
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
