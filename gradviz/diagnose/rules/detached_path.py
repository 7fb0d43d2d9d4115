"""`detached-path`: a leaf that should learn never gets a gradient, because an event on every path from it to the root
blocks gradients: detach(), .data, no_grad, an op that is not differentiable, or plain numbers in between."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR, NOTE, WARNING
from gradviz.diagnose.reach import Lack, how_cut, lacking
from gradviz.diagnose.rootless import rootless
from gradviz.diagnose.rule import Found, Need, Rule


def _search(case: Case) -> Iterator[Found]:
    for failed in case.of(rootless):
        if failed.cut is not None:
            why, cure = how_cut(case, failed.cut.index)
            yield Found(
                f"{case.words.called(failed.root)} is cut off from all that requires grad: {why}",
                cure,
                (failed.cut.index,),
                severity=case.severity_of(failed.failure),
            )
    cuts: dict[int, list[int]] = {}
    found = [lack for lack in case.of(lacking) if lack.lack in (Lack.CUT, Lack.COPIED)]
    for lack in found:
        cuts.setdefault(case.site(lack.event), []).append(lack.leaf)
    for site, leaves in cuts.items():
        own = [lack for lack in found if lack.leaf in leaves]
        why, cure = how_cut(case, own[0].event)
        root = case.words.called(own[0].root) if own[0].root else "the root"
        yield Found(
            f"{case.called(leaves)} never get{'s' * (len(leaves) == 1)} a gradient: "
            f"the path to {root} is cut here, {why}",
            cure,
            (own[0].event,),
            site=site,
            tensors=tuple(leaves),
            severity=NOTE if all(lack.severity == NOTE for lack in own) else WARNING,
        )


RULE = Rule(
    "detached-path",
    ERROR,
    "a cut between a leaf that should learn and the root",
    _search,
    needs=(Need.DETAILS,),
)
