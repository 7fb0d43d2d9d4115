"""`nonfinite-gradient`: the backward of a custom Function turned finite gradients into NaN or infinities, which reached
a leaf. Or a gradient was finite on this rank until `all_reduce` added the gradients of the other ranks.

Why it is bad: after the next step the parameters are NaN, though the forward computation is sound.

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

Cure: guard the division or the logarithm in backward, at 0 for example, or use a formula for the derivative that is
finite there. If `all_reduce` made the gradient NaN or infinite, check the other ranks: the cause is on one of them.

Not reported: NaN or infinities from the nodes of PyTorch itself, which are `masked-nan` or `singular-derivative`.
"""

from collections.abc import Iterator

from gradviz.diagnose.nonfinite import Origin, Source, first_bad, is_of_user
from gradviz.diagnose.rule import ERROR, Case, Found, Need, Rule
from gradviz.tracefile.opening import pattern_of


@Rule(
    "nonfinite-gradient",
    ERROR,
    "a custom backward that returns NaN or an infinity, or an all_reduce that brings one from another rank",
    needs=(Need.VALUES, Need.DETAILS),
    follows=("lr-too-large",),
    at_once=True,
)
def nonfinite_gradient(case: Case) -> Iterator[Found]:
    origin = case.of(first_bad)
    if origin is not None and origin.source is Source.RANK:
        yield _from_a_rank(case, origin)
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


def _from_a_rank(case: Case, origin: Origin) -> Found:
    name = case.words.called(origin.tensor)
    bad, whose = (
        ("NaN", "another rank's is not finite")
        if origin.is_nan
        else ("infinite", "another rank's is not finite, or the sum overflows")
    )
    return Found(
        f"the gradient of {name} is finite on this rank, and {bad} after all_reduce: {whose}",
        f'check the ranks together: gradviz check "{pattern_of(case.trace.path.name)}"',
        (origin.event, origin.harm),
        number=origin.number,
        tensors=(origin.tensor,),
    )
