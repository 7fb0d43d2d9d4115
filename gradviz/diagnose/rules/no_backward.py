"""`no-backward`: no backward pass ever ran: the program names `loss.backward` without brackets, or an optimizer steps
and nothing calls backward().

Why it is bad: there are no gradients. The step changes nothing and raises nothing, and the loss stays as it is.

Example:

    torch.manual_seed(0)
    net = torch.nn.Linear(3, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(4):
        opt.zero_grad()
        loss = net(torch.randn(4, 3)).pow(2).mean()
        loss.backward
        opt.step()  # <- no-backward

Cure: call it: `loss.backward()`.

Not reported: steps on gradients that the program sets itself (`p.grad = ...`); steps of a program that builds no
graph, to look at the rates of a scheduler; a program that ended with an error.
"""

import ast
from collections.abc import Iterator

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Kind, Need, Rule, Site, Spot
from gradviz.query.functions_of_source import nodes_of
from gradviz.query.source_trees import trees

_LEAST = 2  # steps


@Rule(
    "no-backward", ERROR, "a program without any backward pass, though it names backward or steps", needs=(Need.START,)
)
def no_backward(case: Case) -> Iterator[Found]:
    stepped = case.training.stepped
    has_gradients = stepped.lists("parameters").counts.any()
    if not len(case.trace.table(Kind.NODE)):
        return
    if case.trace.passes or has_gradients or case.trace.meta.get("error"):
        return
    if len(stepped) < _LEAST:
        yield from _without_steps(case)
        return
    event = int(stepped.events[0])
    site = case.place(event)
    named = _named_only(case, site)
    yield Found(
        f"the optimizer steps {len(stepped)} times and nothing has a gradient: no backward pass ran",
        _called(named) if named is not None else "call backward() on the loss before optimizer.step()",
        (event,),
        site=site,
    )


def _without_steps(case: Case) -> Iterator[Found]:
    """The finding for a program with too few steps, if the file of its last node names `backward` and does not call
    it."""
    event = int(case.trace.table(Kind.NODE).events[-1])
    site = case.place(event)
    named = _named_only(case, site)
    if named is not None:
        text = ast.unparse(named)
        yield Found(
            f"line {named.lineno} names {text} and does not call it: no backward pass ran",
            _called(named),
            (event,),
            site=site,
        )


def _called(named: ast.Expr) -> Fix:
    """`loss.backward()` in place of `loss.backward`."""

    def edits(spot: Spot) -> list[Edit]:
        statement = spot.source.statement_at(named.lineno)
        return [spot.source.replaced(statement, f"{spot.source.code(statement)}()")] if statement else []

    text = f"{ast.unparse(named)}()  # at line {named.lineno}: without brackets nothing is called"
    return Fix(text, edits)


def _named_only(case: Case, site: Site | None) -> ast.Expr | None:
    """The first statement in the file of a site that names `.backward` and does not call it."""
    tree = case.query.of(trees).get(site.place.file) if site is not None else None
    for node in nodes_of(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Attribute) and node.value.attr == "backward":
            return node
    return None
