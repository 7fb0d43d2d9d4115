"""`aliased-gradient`: two names refer to one gradient tensor, so that a change through one name is seen through the
other: two leaves that were given the same `.grad`, or a variable that keeps `x.grad` while later passes add to it.

Why it is bad: `b.grad = a.grad` and `first = x.grad` copy no numbers. backward() adds to `.grad` in place and
`zero_()` clears it in place, so both names have the new numbers.

Example:

    w = torch.tensor([1.0, 2.0], requires_grad=True)
    (w ** 2).sum().backward()
    first = w.grad  # <- aliased-gradient
    (w ** 3).sum().backward()
    print(w.grad - first)

Cure: keep a copy: `first = w.grad.clone()`.

Not reported: leaves that share a `.grad`, if only one of them gets gradients; a variable that is not read after the
change, or that is named as a sum (`total`, `accumulated`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.fix import Edit, Fix, Spot
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.query.kept_gradients import kept_gradients
from gradviz.query.source_trees import statement_at
from gradviz.sets import contained, distinct
from gradviz.words.escape import clean
from gradviz.words.numbers import brief

_SUM = re.compile(r"(^|_)(total|accum\w*|acc|sum|running|buf(fer)?)(_|$)", re.IGNORECASE)


def _search(case: Case) -> Iterator[Found]:
    yield from _of_two_leaves(case)
    yield from _kept(case)


def _of_two_leaves(case: Case) -> Iterator[Found]:
    """Leaves that accumulate into the same tensor in one pass."""
    came, assigned = case.trace.table(Kind.ACCUMULATED), case.trace.table(Kind.GRAD_ASSIGNED)
    reported: set[int] = set()
    accumulating = (assigned["grad"] > 0) & contained(assigned["grad"], came["grad"])
    columns = (assigned.events, assigned["tensor"], assigned["grad"])
    for event, leaf, grad in zip(*(column[accumulating].tolist() for column in columns), strict=True):
        later = (came.events > event) & (came["grad"] == grad) & (came["in_pass"] > 0)
        passes = distinct(came["in_pass"][later & (came["tensor"] == leaf)])
        others = distinct(came["tensor"][later & np.isin(came["in_pass"], passes) & (came["tensor"] != leaf)])
        site = case.place(event)
        if not len(others) or case.site(event) in reported:
            continue
        reported.add(case.site(event))
        one, other = case.called([leaf]), case.called(others.tolist())
        statement = statement_at(case.query, site)
        yield Found(
            f"{one} and {other} have one tensor as their .grad: backward() adds the gradients of both to it",
            Fix(f"{clean(ast.unparse(statement))}.clone()", _copied)
            if isinstance(statement, ast.Assign)
            else f"give {one} a clone() of the gradient",
            (event,),
            site=site,
            tensors=(leaf, *others.tolist()),
        )


def _kept(case: Case) -> Iterator[Found]:
    """Variables that keep the `.grad` of a leaf and are read after the gradient has changed in place."""
    for kept in kept_gradients(case.query):
        if _SUM.search(kept.name):
            continue
        name, leaf = clean(kept.name), case.words.called(kept.leaf)
        before = case.query.memory.value(kept.grad, kept.event - 1)
        after = case.query.memory.value(kept.grad, kept.event)
        known = before is not None and after is not None and case.has_values
        numbers = f", from {brief(before)} to {brief(after)}" if known else ""
        yield Found(
            f"{name} is {leaf}.grad itself and no copy: line {kept.changed_at} changes it in place{numbers}",
            Fix(f"{name} = {clean(ast.unparse(kept.statement.value))}.clone()", _copied),
            (kept.made, kept.event),
            site=case.query.places.of_line(kept.file, kept.statement.lineno),
            number=case.trace.table(Kind.ACCUMULATED).object(kept.made).in_pass,
            tensors=(kept.leaf,),
        )


def _copied(spot: Spot) -> list[Edit]:
    """`first = w.grad.clone()` in place of `first = w.grad`."""
    statement = spot.statement
    if not isinstance(statement, ast.Assign):
        return []
    end = spot.source.span(statement.value)[1]
    return [Edit(end, end, ".clone()")]


RULE = Rule(
    "aliased-gradient",
    WARNING,
    "a gradient under two names, changed through one and read through the other",
    _search,
    needs=(Need.PASSES, Need.START),
)
