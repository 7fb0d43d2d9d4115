"""`nonfinite-gradient`: the backward of a custom Function turned finite gradients into NaN or infinities, and
they reached a leaf.

Why it is bad: with the next step the parameters are NaN, though the forward computation is sound.

Example:

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.abs()
        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x / x.abs()
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    y = Norm.apply(x)  # <- nonfinite-gradient
    (y + 1.0).log().sum().backward()

Cure: guard the division or the logarithm in backward, as at 0, or use the formula of a derivative that is
finite there.

Not reported: what other nodes do: that is `masked-nan` or `singular-derivative`.
"""

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
