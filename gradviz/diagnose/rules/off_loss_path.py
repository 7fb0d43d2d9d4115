"""`off-loss-path`: a leaf that should learn is used, but nothing that is computed from it reaches a root. What the last
of several equal blocks makes for a next one is only noted."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE, WARNING
from gradviz.diagnose.reach import Lack, Lacking, lacking
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.twins import learns_in_other_blocks


def _search(case: Case) -> Iterator[Found]:
    by_site: dict[int, list[Lacking]] = {}
    lost = {lack.leaf: lack for lack in case.of(lacking) if lack.lack is Lack.OFF_PATH}
    for module, leaves in case.query.modules.whole(lost):
        for leaf in leaves:
            by_site.setdefault(_computed_at(case, lost[leaf].event, module), []).append(lost[leaf])
    for site, own in by_site.items():
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


def _computed_at(case: Case, event: int, module: str) -> int:
    """The site of the expression whose value is the result, though functions of the program computed it: the call of a
    module, if none of its parameters reaches the loss; else the call of a function that returns it."""
    op = case.query.tensors.op(event)
    around = case.query.scopes.around(event, op.thread)
    site = next((scope.site for scope in around if scope.name == module), case.site(event))
    return case.query.places.named_at(site)


RULE = Rule(
    "off-loss-path",
    WARNING,
    "a result that never reaches the loss",
    _search,
    needs=(Need.PASS, Need.DETAILS),
    follows=("detached-path",),
)
