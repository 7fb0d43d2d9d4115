"""`singular-derivative`: an op ran at a point where its derivative is infinite or undefined (sqrt at 0, acos at 1,
a power below 1 at 0), so that a finite gradient becomes NaN or infinite.

Why it is bad: the value is finite and its slope is not: one element at this point makes the gradients of all
parameters behind it NaN or infinite.

Example:

    x = torch.tensor(0.0, requires_grad=True)
    y = torch.sqrt(x)  # <- singular-derivative
    y.backward()

Cure: keep away from the point: `sqrt(x + 1e-12)`, `acos(x.clamp(-1 + 1e-6, 1 - 1e-6))`.

Not reported: a singular point that no gradient reaches, or where the gradient stays finite.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.domain_cures import off_the_point
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.nonfinite import Source, first_bad, is_of_user
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.query.at_points import points_of, version_of
from gradviz.words.defined_points import called, gradients, place
from gradviz.words.numbers import listed


def _search(case: Case) -> Iterator[Found]:
    origin = case.of(first_bad)
    if origin is None or origin.source is not Source.NODE or (origin.zeros and origin.is_nan):
        return
    made = case.query.nodes.event(origin.node)
    if made is None or is_of_user(case, origin.node):
        return
    what = case.words.expression_of(made, 40)
    event, version = case.query.nodes.op(origin.node), version_of(case.trace)
    op = case.query.tensors.op(event) if event is not None else None
    cure = off_the_point(case, op) if op is not None else None
    names = (
        listed(dict.fromkeys(case.words.called(edge.tensor) for edge in made.edges if edge.tensor))
        or "its input"
    )
    bad = "NaN" if origin.is_nan else "infinite"
    points = points_of(case.query, op) if op is not None else ()
    why = f"the derivative of {what} is not finite at the value of {names}"
    for point in points:
        if not point.is_finite(version) and (given := gradients(point, version)):
            why = f"{place(point)} {called(version)} gives {given} as the gradient of {what}"
            break
    yield Found(
        f"{why}: a finite gradient becomes {bad}",
        cure or f"keep the input of {what} off the singular point",
        (origin.event, origin.harm, made.index),
        node=origin.node,
        number=origin.number,
    )


RULE = Rule(
    "singular-derivative",
    ERROR,
    "an op at a point where its derivative is not finite",
    _search,
    needs=(Need.VALUES, Need.DETAILS),
    follows=(
        "huge-start",
        "lr-too-large",
    ),
    at_once=True,
)
