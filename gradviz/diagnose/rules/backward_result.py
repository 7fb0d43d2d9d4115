"""`backward-result`: the program uses the result of backward(), which is None, or treats the tuple that
torch.autograd.grad() returned as a gradient.

Why it is bad: backward() returns nothing. It adds the gradients to `.grad` of the leaves, and a variable that its
result is assigned to holds None. grad() returns a tuple, with one gradient for each input.

Example:

    x = torch.tensor(2.0, requires_grad=True)
    y = x ** 2
    g = y.backward()  # <- backward-result
    print(g)

Cure: read `.grad` of the leaves after backward(), or call `torch.autograd.grad`, and take its tuple apart:
`(g,) = torch.autograd.grad(y, x)`.

Not reported: a call whose result is dropped, or assigned to a name that begins with `_`; a method `backward` of an
object that is not a tensor.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.fix import makes_edits
from gradviz.diagnose.rule import ERROR, WARNING, Case, Edit, Fix, Found, Kind, Rule, Spot
from gradviz.query.source_trees import statement_at
from gradviz.query.statements import wrong_values


@Rule("backward-result", WARNING, "the result of backward(), which is None, or the tuple of grad() as a gradient")
def backward_result(case: Case) -> Iterator[Found]:
    yield from _of_nothing(case)
    yield from _of_tuples(case)


def _of_tuples(case: Case) -> Iterator[Found]:
    """Calls of grad() whose tuple was used as a gradient in the statement that ended the program."""
    for value in case.query.of(wrong_values):
        call = value.origin
        if value.type != "tuple" or not isinstance(call, ast.Call) or value.failure.site is None:
            continue
        if not ast.unparse(call.func).endswith("grad"):
            continue
        for backward_pass in case.trace.passes:
            site = case.query.places.site(backward_pass.site)
            if (
                site is None
                or site.place.line != value.origin_line
                or case.query.passes.began(backward_pass.number).how != "grad"
            ):
                continue
            written, code = ast.unparse(value.expression), ast.unparse(call)
            is_named = isinstance(value.expression, ast.Name)
            yield Found(
                f"{written} is a tuple: torch.autograd.grad() returns one gradient for each input",
                Fix(f"({written},) = {code}", _taken_apart(written)) if is_named else f"{code}[0]",
                (backward_pass.first,),
                site=site,
                number=backward_pass.number,
                severity=ERROR,
            )
            return


@makes_edits
def _taken_apart(spot: Spot, name: str) -> list[Edit]:
    """The name of a tuple of one gradient as `(name,)`, where the tuple is assigned to it."""
    statement = spot.statement
    return [spot.source.replaced(statement.targets[0], f"({name},)")] if isinstance(statement, ast.Assign) else []


def _read_from(leaf: str, call: str, name: str) -> Fix:
    """`y.backward(); g = x.grad` in place of `g = y.backward()`."""

    def edits(spot: Spot) -> list[Edit]:
        grad = f"{name} = {leaf}.grad"
        return [spot.source.replaced(spot.statement, call), spot.source.after(spot.statement, grad)]

    return Fix(f"{call}; {name} = {leaf}.grad", edits)


def _of_nothing(case: Case) -> Iterator[Found]:
    """Passes whose None is assigned to a variable."""
    values = case.query.of(wrong_values)  # of the statement that ended the program
    used = {one.origin_line for one in values if one.type == "NoneType" and _is_backward(one.origin)}
    for backward_pass in case.trace.passes:
        site = case.query.places.site(backward_pass.site)
        statement = statement_at(case.query, site)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            continue
        name, call = statement.targets[0].id, statement.value
        if name.startswith("_") or not _is_of_root(case, call, backward_pass.number):
            continue
        came = case.trace.table(Kind.ACCUMULATED)
        leaves = sorted(came["tensor"][came["in_pass"] == backward_pass.number].tolist())
        read = next(filter(None, map(case.query.names.of, leaves)), "")
        yield Found(
            f"{name} is None: backward() returns nothing, it adds the gradients to .grad of the leaves",
            _read_from(read, ast.unparse(call), name) if read else "read .grad of the leaves",
            (backward_pass.first,),
            site=site,
            number=backward_pass.number,
            severity=ERROR if statement.lineno in used else WARNING,
        )
        return


def _is_backward(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "backward"


def _is_of_root(case: Case, call: ast.expr, number: int) -> bool:
    """Whether a call is backward() of the root of a pass, by its name in the source."""
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not _is_backward(call):
        return False
    roots = [root.tensor for root in case.query.passes.began(number).roots]
    names = [case.query.names.of(root) for root in roots]
    return ast.unparse(call.func.value) in names
