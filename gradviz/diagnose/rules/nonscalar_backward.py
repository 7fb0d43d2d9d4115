"""`nonscalar-backward`: backward() was called without a gradient on a tensor of more than one element.

Why it is bad: a pass begins with the gradient of its root. For a scalar that is 1; for several elements
nobody can know it.

Example:

    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    y = x * 2
    y.backward()  # <- nonscalar-backward

Cure: reduce the tensor first (`.sum()`, `.mean()`), or pass a gradient of its shape:
`y.backward(torch.ones_like(y))`.

Not reported: a tensor of one element, whatever its shape.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rule import Found, Rule

_MESSAGE = "can be implicitly created only for scalar outputs"


def _search(case: Case) -> Iterator[Found]:
    for error in case.failures:
        if _MESSAGE in error.message:
            yield Found(
                "backward() without a gradient needs a scalar root, and this one has more elements",
                "loss = loss.mean()  # or .sum(), or loss.backward(gradient=torch.ones_like(loss))",
                (error.event,),
                site=error.site,
                severity=case.severity_of(error),
            )


RULE = Rule(
    "nonscalar-backward",
    ERROR,
    "backward() on a tensor of more than one element, without a gradient",
    _search,
)
