"""`recreated-parameter`: the same line makes a parameter anew for each pass, inside of a module's forward, so that
what it learns is thrown away: it gets a gradient in one pass only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.query.lack import PARAMETER
from gradviz.sets import contained, distinct


def _search(case: Case) -> Iterator[Found]:
    made, came = case.trace.table(Kind.TENSOR), case.trace.table(Kind.ACCUMULATED)
    fresh = case.trace.named(made["how"], (PARAMETER,)) & contained(made["tensor"], came["tensor"])
    begins = np.array([run.first for run in case.trace.passes])
    for events in case.by_site(made.events[fresh]).values():
        leaves = made["tensor"][contained(made.events, events)]
        passes = [distinct(came["in_pass"][came["tensor"] == leaf]) for leaf in leaves.tolist()]
        later = events[events > begins[0]]
        is_made_anew = len(distinct(np.searchsorted(begins, events))) > 1
        if not is_made_anew or any(len(numbers) > 1 for numbers in passes):
            continue
        if set(leaves.tolist()) & case.training.trained or len({int(p[0]) for p in passes}) < 2:
            continue
        yield Found(
            f"{case.words.called(int(leaves[0]))} is made anew for each pass, and no step ever changes it: "
            "what it learns is lost",
            "make it once in __init__(), and use it in forward()",
            (int(later[0]), int(events[0])),
            tensors=tuple(distinct(leaves).tolist()),
        )


RULE = Rule(
    "recreated-parameter",
    ERROR,
    "a parameter that is made anew for each pass",
    _search,
    needs=(Need.PASSES,),
)
