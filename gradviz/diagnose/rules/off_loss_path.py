"""`off-loss-path`: a leaf that should learn is used, but nothing that is computed from it reaches a root. What the last
of several equal blocks makes for a next one is only noted."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.reach import Wanting, lacking
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.twins import learns_in_other_blocks
from gradviz.query.lack import Lack, Lacks
from gradviz.tracefile import Site


def _search(case: Case) -> Iterator[Found]:
    by_place: dict[Site | None, list[Wanting]] = {}
    for lack in case.of(lacking):
        if lack.lack is Lack.OFF_PATH:
            by_place.setdefault(case.query.of(Lacks).place(lack.lacking), []).append(lack)
    for site, own in by_place.items():
        leaves = [lack.leaf for lack in own]
        noted = all(lack.severity == NOTE or learns_in_other_blocks(case, lack.leaf) for lack in own)
        result = case.called(case.query.tensors.op(own[0].event).outputs)
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: {result}, which is computed from "
            f"{'it' if len(leaves) == 1 else 'them'}, reaches no root",
            f"use {result} in the loss, or do not compute it",
            (own[0].event,),
            site=site,
            tensors=tuple(leaves),
            severity=NOTE if noted else WARNING,
        )


RULE = Rule(
    "off-loss-path",
    WARNING,
    "a result that never reaches the loss",
    _search,
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path",),
)
