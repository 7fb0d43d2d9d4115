"""`restricted-backward`: `backward(inputs=...)` or `autograd.grad` leaves out parameters behind its root. An optimizer
holds them, and no other pass gives them a gradient.

Why it is bad: the parameters that are left out get no gradient and never change, though an optimizer is meant to
train them.

Example:

    torch.manual_seed(0)
    body, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for step in range(3):
        loss = head(torch.relu(body(torch.randn(6, 4)))).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(inputs=list(head.parameters()))  # <- restricted-backward
        optimizer.step()

Cure: leave out `inputs=`, or name the other parameters too.

Not reported: parameters that get their gradient from another pass, or that no optimizer holds.
"""

from collections.abc import Iterator

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Need, Rule, Spot
from gradviz.query.missing_gradients import Lack, Lacking, Lacks


@Rule(
    "restricted-backward",
    ERROR,
    "a pass that is asked for the gradients of some of the parameters only",
    needs=(Need.STEP, Need.PASS, Need.DETAILS),
)
def restricted_backward(case: Case) -> Iterator[Found]:
    left_out: dict[int, list[Lacking]] = {}
    for leaf in case.query.of(Lacks).never_got:
        lacking = case.query.of(Lacks).of(leaf) if leaf in case.training.holders else None
        if lacking is not None and lacking.lack is Lack.NOT_ASKED:
            left_out.setdefault(case.site(lacking.event), []).append(lacking)
    for own in left_out.values():
        began, leaves = case.query.passes.began(own[0].pass_number), tuple(one.leaf for one in own)
        if set(began.inputs) & case.training.holders.keys():
            yield Found(
                f"pass {began.number} is asked for the gradients of {case.called(began.inputs)} only: "
                f"{case.called(leaves)}, which the optimizer holds, never get{'s' * (len(leaves) == 1)} one",
                Fix("loss.backward()  # without inputs=; or ask for all parameters", _without_inputs),
                (began.index,),
                number=began.number,
                tensors=leaves,
            )


def _without_inputs(spot: Spot) -> list[Edit]:
    """`loss.backward()` without `inputs=`."""
    for call in spot.calls_here("backward"):
        if [keyword.arg for keyword in call.keywords] == ["inputs"] and not call.args:
            return [spot.source.replaced(call, f"{spot.source.code(call.func)}()")]
    return []
