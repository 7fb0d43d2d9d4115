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

import ast
import re
from collections.abc import Iterator
from itertools import islice

import numpy as np

from gradviz.diagnose.fix import typed_as
from gradviz.diagnose.rule import WARNING, Case, Fix, Found, Kind, Need, Rule
from gradviz.query.query import Query
from gradviz.query.source_trees import statement_at, trees
from gradviz.query.training import CLEARED, Training
from gradviz.sets import contained, distinct
from gradviz.words.numbers import brief

_SAME_MEMORY = ("data", "detach")


def _whose_grad(value: ast.expr) -> ast.expr | None:
    """The expression whose `.grad` a value is, or shares memory with; None if there is none."""
    while True:
        if isinstance(value, ast.Call) and not value.args and isinstance(value.func, ast.Attribute):
            if value.func.attr not in _SAME_MEMORY:
                return None
            value = value.func.value
        elif isinstance(value, ast.Attribute) and value.attr in _SAME_MEMORY:
            value = value.value
        else:
            is_grad = isinstance(value, ast.Attribute) and value.attr == "grad"
            return value.value if is_grad and isinstance(value, ast.Attribute) else None


def _last_read(tree: ast.Module, name: str, statement: ast.Assign) -> int:
    """The first line of the last statement of a program that reads a name; 0 where the name is assigned again, or is
    read in no later statement."""
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name]
    if sum(isinstance(node.ctx, ast.Store) for node in uses) != 1:
        return 0
    readers = [
        later.lineno
        for later in tree.body
        if later.lineno > statement.lineno
        and any(
            isinstance(node, ast.Name) and node in uses and not isinstance(node.ctx, ast.Store)
            for node in ast.walk(later)
        )
    ]
    return max(readers, default=0)


def _changes(query: Query, leaf: int, file: str, assigned_at: int, lines: range) -> Iterator[tuple[int, int, int]]:
    """The events that change the `.grad` of a leaf in place at one of `lines` of the main program. Each comes behind
    the event that accumulated this gradient before the line of the assignment, and with its line."""
    came, lives = query.trace.table(Kind.ACCUMULATED), query.of(Training).lives
    accumulations = came.events[came["tensor"] == leaf].tolist()
    cleared = lives.events[(lives.leaves == leaf) & (lives.whats == CLEARED)].tolist()
    for event in sorted([*accumulations, *cleared]):
        line = _line_in(query, file, event)
        before, after = query.tensors.grad(leaf, event - 1), query.tensors.grad(leaf, event)
        if line not in lines or not after or before != after:
            continue
        had = [earlier for earlier in accumulations if query.tensors.grad(leaf, earlier) == before and earlier < event]
        if had and 0 < _line_in(query, file, had[0]) < assigned_at:
            yield had[0], event, line


def _line_in(query: Query, file: str, event: int) -> int:
    """The line of a file at which an event happened; for an event in a pass, the line that called the pass. 0 if it was
    elsewhere."""
    backward_pass = query.passes.at(event)
    site = backward_pass.site if backward_pass is not None else int(query.trace.events["site"][event])
    places = [one.place for one in query.places.callers(site) if one.place.file == file]
    return places[-1].line if places else 0


_SUM = re.compile(r"(^|_)(total|accum\w*|acc|sum|running|buf(fer)?)(_|$)", re.IGNORECASE)


@Rule(
    "aliased-gradient",
    WARNING,
    "a gradient under two names, changed through one and read through the other",
    needs=(Need.PASSES, Need.START),
)
def aliased_gradient(case: Case) -> Iterator[Found]:
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
            Fix(copied := f"{ast.unparse(statement)}.clone()", typed_as(copied))
            if isinstance(statement, ast.Assign)
            else f"give {one} a clone() of the gradient",
            (event,),
            site=site,
            tensors=(leaf, *others.tolist()),
        )


def _kept(case: Case) -> Iterator[Found]:
    """Variables that keep the `.grad` of a leaf and are read after the gradient has changed in place. Only statements
    outside of loops and functions are looked at: they run once and in the order of their lines, so that the line of an
    event shows whether it came before or after them."""
    query = case.query
    for file, tree in query.of(trees).items():
        for statement in tree.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else None
            if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name) or _SUM.search(target.id):
                continue
            of = _whose_grad(statement.value)
            read_at = 0 if of is None else _last_read(tree, target.id, statement)
            leaf = query.names.tensor_called(ast.unparse(of), query.trace.count) if of is not None and read_at else 0
            lines = range((statement.end_lineno or statement.lineno) + 1, read_at)
            changes = _changes(query, leaf, file, statement.lineno, lines) if leaf else ()
            for made, event, line in islice(changes, 1):
                grad = query.tensors.grad(leaf, event)
                before, after = query.memory.value(grad, event - 1), query.memory.value(grad, event)
                known = before is not None and after is not None and case.trace.has_values
                numbers = f", from {brief(before)} to {brief(after)}" if known else ""
                copied = f"{target.id} = {ast.unparse(statement.value)}.clone()"
                yield Found(
                    f"{target.id} is {case.words.called(leaf)}.grad itself and no copy: line {line} changes it in "
                    f"place{numbers}",
                    Fix(copied, typed_as(copied)),
                    (made, event),
                    site=query.places.of_line(file, statement.lineno),
                    number=case.trace.table(Kind.ACCUMULATED).object(made).in_pass,
                    tensors=(leaf,),
                )
