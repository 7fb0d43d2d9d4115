"""`missing-create-graph`: a gradient that autograd.grad returned without create_graph=True is added to a loss as a
penalty: reduced to a scalar, it is a term of a root, and no gradient flows back through it."""

from __future__ import annotations

from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.rootless import rootless
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import REQUIRES_GRAD, Kind, OpRan
from gradviz.query.upstream import Downstream
from gradviz.sets import contained, distinct

_ADDING = ("add", "add_", "sub", "sub_")
_MOST = 64  # results of a gradient that are looked at


def _search(case: Case) -> Iterator[Found]:
    table = case.trace.table(Kind.PASS_BEGAN)
    wanted = [number for number, text in case.trace.strings.items() if text == "grad"]
    numbers = set(table["number"][contained(table["how"], wanted) & ~table["create_graph"]].tolist())
    runs = [run for run in case.trace.passes if run.number in numbers]
    if not runs:
        return
    below = Downstream(case.query)
    failed = {call.root for call in case.of(rootless)}
    for site in dict.fromkeys(run.site for run in runs):
        run = next(run for run in runs if run.site == site)
        for gradient in _returned(case, run.first, case.query.passes.last(run)):
            term = _term(case, below, gradient, failed)
            if term >= 0:
                yield Found(
                    f"the gradient of pass {run.number} is a term of a loss ({case.at(term)}), but it was made without "
                    "create_graph=True: no gradient flows back through it",
                    "torch.autograd.grad(..., create_graph=True)",
                    (run.first, term),
                    site=run.site,
                    number=run.number,
                )
                break


def _returned(case: Case, first: int, last: int) -> list[int]:
    """The gradients that flowed in a pass."""
    produced = case.trace.table(Kind.PRODUCED)
    flows = produced.lists("flows")
    events = produced.events[flows.owners]
    inside = (events >= first) & (events <= last)
    return distinct(flows.elements[inside, 1]).tolist()


def _term(case: Case, below: Downstream, gradient: int, failed: set[int]) -> int:
    """The op that adds a scalar computed from a gradient to what requires grad, or that makes a root that backward()
    failed on; −1 if there is none."""
    for tensor, readers in below.results(gradient, _MOST).items():
        if (
            not gradient
            or tensor == gradient
            or case.query.tensors.flags(tensor, case.trace.count) & REQUIRES_GRAD
        ):
            continue
        if tensor in failed:
            return case.query.tensors.maker(tensor) or -1
        for event in readers:
            op = case.query.tensors.op(event)
            if op.op in _ADDING and _is_scalar(case, tensor) and _makes_graph(case, op):
                return event
    return -1


def _is_scalar(case: Case, tensor: int) -> bool:
    form = case.trace.states.form(case.trace.states.first(tensor))
    return form is not None and form.shape == ()


def _makes_graph(case: Case, op: OpRan) -> bool:
    return bool(case.query.nodes.of_op(op.index))


RULE = Rule(
    "missing-create-graph",
    ERROR,
    "a gradient in a loss that was made without create_graph=True",
    _search,
    needs=(Need.DETAILS,),
)
