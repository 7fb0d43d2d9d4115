"""`nonfinite-gradient`: the backward of a custom Function turned finite gradients into NaN or infinities, and they
reached a leaf. Those of other nodes are `masked-nan` or `singular-derivative`."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.nonfinite import Source, first_bad, is_of_user
from gradviz.diagnose.rule import Found, Need, Rule


def _search(case: Case) -> Iterator[Found]:
    origin = case.of(first_bad)
    if origin is None or origin.source is not Source.NODE or not is_of_user(case, origin.node):
        return
    made = case.query.nodes.event(origin.node)
    bad = "NaN" if origin.is_nan else "an infinity"
    yield Found(
        f"{case.words.node_name(origin.node)} is given finite gradients and returns {bad}",
        "make its backward return finite gradients; torch.autograd.gradcheck compares them with finite differences",
        (origin.event, origin.harm, *((made.index,) if made is not None else ())),
        node=origin.node,
        number=origin.number,
    )


RULE = Rule(
    "nonfinite-gradient",
    ERROR,
    "a custom backward that returns NaN or an infinity",
    _search,
    needs=(Need.VALUES, Need.DETAILS),
    follows=("lr-too-large",),
)
