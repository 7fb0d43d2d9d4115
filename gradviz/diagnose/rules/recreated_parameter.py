"""`recreated-parameter`: the same line makes a new parameter for each pass, in a forward for example. Each of these
parameters gets a gradient in one pass only and is then thrown away.

Why it is bad: each pass begins with the first values again, so the parameter never learns.

Example:

    torch.manual_seed(0)
    w = torch.randn(3, requires_grad=True)
    optimizer = torch.optim.Adam([w], lr=0.1)
    def scaled(x):
        scale = torch.nn.Parameter(torch.ones(3))  # <- recreated-parameter
        return x * scale
    for step in range(3):
        loss = (scaled(torch.randn(4, 3)) @ w - 1.0).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: make the parameter once, in `__init__`, and use it in `forward`.

Not reported: several networks that the same line makes, each with passes of its own; a network whose steps are
themselves differentiated, as in meta-learning.
"""

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.rule import ERROR, Case, Found, Kind, Need, Rule
from gradviz.query.missing_gradients import PARAMETER, Lack, Lacks
from gradviz.sets import contained, distinct


@Rule("recreated-parameter", ERROR, "a parameter that is made anew for each pass", needs=(Need.PASSES,))
def recreated_parameter(case: Case) -> Iterator[Found]:
    made, came = case.trace.table(Kind.TENSOR), case.trace.table(Kind.ACCUMULATED)
    fresh = case.trace.named(made["how"], (PARAMETER,)) & contained(made["tensor"], came["tensor"])
    begins = np.array([backward_pass.first for backward_pass in case.trace.passes])
    by_place: dict[tuple[str, int], list[int]] = {}
    for event in made.events[fresh].tolist():
        place = case.query.places.line(_constructing(case, event))
        by_place.setdefault(place, []).append(event)
    for events in map(np.array, by_place.values()):
        leaves = made["tensor"][contained(made.events, events)]
        passes = [distinct(came["in_pass"][came["tensor"] == leaf]) for leaf in leaves.tolist()]
        later = events[events > begins[0]]
        is_made_anew = len(distinct(np.searchsorted(begins, events))) > 1
        if not is_made_anew or any(len(numbers) > 1 for numbers in passes):
            continue
        if case.query.passes.through_passes.issuperset(int(number) for numbers in passes for number in numbers):
            continue
        if set(leaves.tolist()) & case.training.trained or len({int(p[0]) for p in passes}) < 2:
            continue
        unused = [one for one in case.query.of(Lacks).without_gradient.values() if one.lack is Lack.UNUSED]
        shapes = {case.query.tensors.shape(leaf) for leaf in leaves.tolist()}
        instead = [one.leaf for one in unused if case.query.tensors.shape(one.leaf) in shapes]
        are = "is" if len(instead) == 1 else "are"
        beside = f"; {case.called(instead)}, of the same shape, {are} never used" if instead else ""
        yield Found(
            f"{case.words.called(int(leaves[0]))} is made anew for each pass, and no step ever changes it: "
            f"what it learns is lost{beside}",
            "make it once in __init__(), and use it in forward()",
            (int(later[0]), int(events[0])),
            site=_constructing(case, int(later[0])),
            tensors=(*distinct(leaves).tolist(), *instead),
        )


def _constructing(case: Case, event: int) -> int:
    """The site of the call behind which only constructors made a parameter: that of a whole model or block."""
    callers = case.query.places.callers(case.site(event))
    outside = (one for one in callers if one.place.function.rpartition(".")[2] != "__init__")
    return next((one.number for one in outside), case.site(event))
