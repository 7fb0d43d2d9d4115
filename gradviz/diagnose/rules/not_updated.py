"""`not-updated`: a leaf gets gradients in two passes or more, and no step ever changes it, while others are
trained. It may be meant (only the head is trained), so it is a note."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import NOTE
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.diagnose.rules.unregistered_parameter import homeless
from gradviz.events.kinds import Kind


def _search(case: Case) -> Iterator[Found]:
    leaves = case.of(homeless)
    if not leaves or not case.training.trained:
        return
    came = case.trace.table(Kind.ACCUMULATED)
    first = int(came.events[came["tensor"] == leaves[0]][0])
    made = case.query.tensors.maker(leaves[0])
    yield Found(
        f"{case.called(leaves)} get{'s' * (len(leaves) == 1)} gradients, and no step ever changes "
        f"{'it' if len(leaves) == 1 else 'them'}",
        "give it to the optimizer, or requires_grad_(False) if it is not to be trained",
        (first,) if made is None else (made, first),
        tensors=tuple(leaves),
    )


RULE = Rule(
    "not-updated",
    NOTE,
    "leaves that get gradients and are never changed",
    _search,
    needs=(Need.TRAINING, Need.PASSES),
    follows=("unregistered-parameter", "stale-optimizer", "recreated-parameter"),
)
