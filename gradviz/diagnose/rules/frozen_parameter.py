"""`frozen-parameter`: requires_grad was switched off at all leaves of a root, so that backward() fails. Freezing some
of the leaves is no fault."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rootless import rootless
from gradviz.diagnose.rule import Found, Rule
from gradviz.events.kinds import Kind


def _search(case: Case) -> Iterator[Found]:
    for failed in case.of(rootless):
        if failed.frozen:
            changed = case.trace.table(Kind.REQUIRES_GRAD_CHANGED)
            leaves = [changed.object(event).tensor for event in failed.frozen]
            yield Found(
                f"requires_grad is switched off for all that {case.words.called(failed.root)} is computed from: "
                f"{case.called(leaves)}",
                f"{case.words.called(leaves[-1])}.requires_grad_(True)  # for what is to be trained",
                (failed.frozen[0],),
                tensors=tuple(leaves),
                severity=case.severity_of(failed.failure),
            )


RULE = Rule(
    "frozen-parameter",
    ERROR,
    "parameters that are frozen so that nothing is left to train",
    _search,
)
