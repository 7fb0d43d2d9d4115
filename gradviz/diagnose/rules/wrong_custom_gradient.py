"""`wrong-custom-gradient`: the backward of a custom Function does not return the derivative of its forward.

With `--check-functions` the run itself compares each Function with finite differences, and the trace has the result. A
Function that was not compared is judged by its recorded values: see `function_curves.py`.

Why it is bad: training goes in a direction that is not that of the loss, slowly or not at all, and nothing raises.

Example:

    torch.manual_seed(0)
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x
        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * x  # <- wrong-custom-gradient
    x = torch.linspace(-2, 2, 40, requires_grad=True)
    Square.apply(x).sum().backward()

Cure: derive the formula again, and check it with `torch.autograd.gradcheck` in float64.

Not reported: any Function, unless the rule is asked for by `--check-functions` or `--select wrong-custom-gradient`:
straight-through estimators and gradient reversal deviate on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.function_curves import deviations
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import FunctionCompared, Kind
from gradviz.query.function_returns import returned_at
from gradviz.sets import distinct
from gradviz.words.escape import clean
from gradviz.words.numbers import number

_FIX = (
    "return grad_output times the derivative of forward (torch.autograd.gradcheck compares them element by element); "
    "where it is meant to differ, # gradviz: ignore[wrong-custom-gradient]"
)


def _search(case: Case) -> Iterator[Found]:
    reported = set()
    for event in _compared(case):
        if event.is_wrong and (event.function, event.argument) not in reported:
            reported.add((event.function, event.argument))
            op = case.query.nodes.op(event.node)
            yield Found(
                _said(event),
                _FIX,
                (event.index,) if op is None else (event.index, op),
                site=returned_at(case.query, event.function),
                node=event.node,
                number=event.in_pass,
            )
    table = case.trace.table(Kind.COMPARED)
    for deviation in deviations(case, without=distinct(table["function"]).tolist()):
        yield Found(
            f"near x = {number(deviation.x, 3)} the slope of {clean(deviation.op.op)} is {number(deviation.slope, 3)}, "
            f"but its backward multiplies by {number(deviation.given, 3)}",
            _FIX,
            (deviation.ran.index, deviation.op.index),
            site=returned_at(case.query, deviation.op.op),
            node=deviation.ran.node,
            number=deviation.ran.in_pass,
        )


def _said(event: FunctionCompared) -> str:
    name, argument = clean(event.function), clean(event.argument)
    if math.isnan(event.given):  # a copy of a trace that is to be shared
        return f"the backward of {name} is not the derivative of its forward for {argument}"
    if not event.given:
        return (
            f"the backward of {name} gives no gradient for {argument}, but by finite differences forward has one: "
            f"{number(event.found, 3)} along a direction"
        )
    tail = ", as that of a straight-through estimator" if not event.found else ""
    return (
        f"the backward of {name} is not the derivative of its forward for {argument}{tail}: along a direction it gives "
        f"{number(event.given, 3)}, and finite differences give {number(event.found, 3)}"
    )


def _left_out(case: Case) -> Iterator[tuple[str, str]]:
    """The Functions that could not be compared, and why."""
    yield from dict.fromkeys(
        (clean(event.function), clean(event.why_not)) for event in _compared(case) if event.why_not
    )


def _compared(case: Case) -> Iterator[FunctionCompared]:
    table = case.trace.table(Kind.COMPARED)
    return (table.object(event) for event in table.events.tolist())


RULE = Rule(
    "wrong-custom-gradient",
    ERROR,
    "a custom Function whose backward is not the derivative of its forward (with --check-functions or --select)",
    _search,
    needs=(Need.COMPARED, Need.DETAILS, Need.PASS),
    opt_in=True,
    asked_for_it=lambda case: bool(case.trace.meta.get("check_functions")),
    left_out=_left_out,
)
