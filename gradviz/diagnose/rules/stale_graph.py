"""`stale-graph`: a part of the forward computation ran once, and later passes go through its nodes again, after a step
has changed the parameters that these nodes lead to.

Why it is bad: the graph belongs to the old values of the parameters, so the gradient is that of an old loss.

Example:

    torch.manual_seed(0)
    encoder, head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.05)
    x, y = torch.randn(10, 4), torch.randn(10, 1)
    features = encoder(x)  # <- stale-graph
    for step in range(4):
        loss = (head(features.tanh()) - y).pow(2).mean()
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()

Cure: compute the part again in each step, inside the loop. Of an optimizer that evaluates its loss several times for
one step, as LBFGS does: inside its closure. A closure that runs no pass at all is also reported.

Not reported: a graph that grows from pass to pass because a tensor is carried along, which is `missing-detach`.
"""

import ast
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.rule import ERROR, Case, Edit, Fix, Found, Kind, Need, Rule, Site, Spot
from gradviz.query.flow import leaves_behind
from gradviz.query.ledger import Ledger
from gradviz.query.optimizer_steps import number_of, settings_of
from gradviz.query.source_trees import names_read, statement_at, trees
from gradviz.sets import contained, distinct, distinct_pairs

_LEAST = 2  # the fewest passes through a stale part
_MODIFIED = "modified by an inplace operation"


class Stale(NamedTuple):
    """Nodes of one line that passes go through after a leaf that they lead to has changed. `chained` if the line makes
    nodes in each round, and passes also reach the nodes of earlier rounds."""

    site: int
    node: int
    made: int
    passes: tuple[int, ...]
    leaves: tuple[int, ...]
    chained: bool


def stale(case: Case) -> list[Stale]:
    """The lines whose nodes are used again after their leaves have changed. Use `case.of(stale)`."""
    table, received = case.trace.table(Kind.NODE), case.trace.table(Kind.RECEIVED)
    edges = table.lists("edges")
    to_leaf = contained(edges.elements[:, 2], sorted(case.training.trained)) & ~contained(
        edges.elements[:, 0], table["node"]
    )
    nodes, made = table["node"][edges.owners[to_leaf]], table.events[edges.owners[to_leaf]]
    leaves = edges.elements[to_leaf, 2]
    moved = _next_steps(case, leaves, made)
    old = moved > 0
    nodes, made, leaves, moved = nodes[old], made[old], leaves[old], moved[old]
    if not len(nodes):
        return []
    first = {backward_pass.number: backward_pass.first for backward_pass in case.trace.passes}
    ran: dict[int, list[int]] = {}
    inside = contained(received["node"], nodes)
    for node, number in zip(received["node"][inside].tolist(), received["in_pass"][inside].tolist(), strict=True):
        ran.setdefault(node, []).append(number)
    found: dict[int, list[tuple[int, int, int, int]]] = {}
    for node, event, leaf, step in zip(nodes.tolist(), made.tolist(), leaves.tolist(), moved.tolist(), strict=True):
        for number in ran.get(node, ()):
            if first.get(number, 0) > step:
                found.setdefault(case.site(event), []).append((node, event, number, leaf))
    return [_line(case, site, rows) for site, rows in found.items()]


def _line(case: Case, site: int, rows: list[tuple[int, int, int, int]]) -> Stale:
    nodes = sorted({(event, node) for node, event, _, _ in rows})
    firsts = [one.first for one in case.trace.passes]
    rounds = distinct(np.searchsorted(firsts, [event for event, _ in nodes]))
    passes = tuple(sorted({number for *_, number, _ in rows}))
    return Stale(site, nodes[0][1], nodes[0][0], passes, tuple(sorted({leaf for *_, leaf in rows})), len(rounds) > 1)


def _next_steps(case: Case, leaves: np.ndarray, made: np.ndarray) -> np.ndarray:
    """For each leaf, the first event after `made` that changed the leaf in place; 0 if there is none."""
    events, tensors = case.query.tensors.all_writes
    known = contained(tensors, leaves)
    events, tensors = events[known].astype(np.int64), tensors[known].astype(np.int64)
    keys = np.sort(tensors << 32 | events)
    at = np.searchsorted(keys, leaves.astype(np.int64) << 32 | made, side="right")
    inside = at < len(keys)
    following = keys[np.minimum(at, max(len(keys) - 1, 0))] if len(keys) else np.zeros(len(leaves), np.int64)
    same = inside & (following >> 32 == leaves)
    return np.where(same, following & 0xFFFFFFFF, 0)


def _in_each_round(spot: Spot) -> list[Edit]:
    """A statement before a loop moved into the loop."""
    source, statement = spot.source, spot.statement
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return []
    name = statement.targets[0].id
    for loop in source.behind(statement):
        if isinstance(loop, ast.For | ast.While) and any(
            isinstance(inner, ast.Name) and inner.id == name for inner in ast.walk(loop)
        ):
            return [source.removed(statement), source.before(loop.body[0], source.code(statement))]
    return []


_CURE = Fix(
    "compute it anew in each iteration, inside of the loop; or detach() it, if it is to stay constant", _in_each_round
)


@Rule(
    "stale-graph",
    ERROR,
    "a part of the graph that is used again after its parameters have changed",
    needs=(Need.TRAINING, Need.PASSES, Need.DETAILS),
)
def stale_graph(case: Case) -> Iterator[Found]:
    yield from _of_failures(case)
    if closures := [*_of_closures(case)]:
        yield from closures
        return
    for line in case.of(stale):
        if line.chained or len(line.passes) < _LEAST:
            continue
        yield Found(
            f"{_computed_once(case, line.node, line.leaves)} {case.at_least(len(line.passes))} passes go through it "
            "since: it belongs to weights that are gone",
            _CURE,
            (line.made, case.query.passes.by_number[line.passes[0]].first),
            site=line.site,
            node=line.node,
            number=line.passes[0],
            tensors=line.leaves,
        )
        return


def _of_closures(case: Case) -> Iterator[Found]:
    """The optimizers that evaluate their closure several times for one step, while no pass runs in any step, or
    passes in their steps go through the same node."""
    held, rows, callers = case.trace.table(Kind.HOLDS), case.query.of(Ledger).rows, case.query.places.callers
    of_passes = {one.site for one in case.trace.passes}
    for event, optimizer in zip(held.events.tolist(), held["optimizer"].tolist(), strict=True):
        often = max(number_of(settings_of(one).get("max_eval")) for one in held.object(event).groups)
        own = (rows.optimizers == optimizer) & (rows.passes > 0)
        steps, leaves = distinct(rows.steps[own]), tuple(distinct(rows.leaves[own]).tolist())
        if len(steps) < _LEAST or not often > 1:
            continue
        step, site = int(steps[0]), case.place(int(steps[0]))
        name = case.training.optimizer_class(optimizer)
        what = f"{name} evaluates its closure up to {often:.0f} times for one step"
        if node := _used_again(case):
            made = case.query.nodes.made(node) or step
            result = case.called(t for t in case.query.nodes.outputs(node) if t) or "a part of the loss"
            leaves = tuple(leaves_behind(case.query, [node]))
            functions = {one.place.function for one in callers(case.site(step))}
            yield Found(
                f"{what}, and {result} is computed once for all of them: it belongs to old values of "
                f"{case.called(leaves)}",
                "compute it inside of the closure",
                (made, step),
                site=next((one for one in callers(case.site(made)) if one.place.function in functions), None),
                node=node,
                tensors=leaves,
            )
        elif not case.training.inside_steps and case.site(step) not in of_passes:
            before = [one for one in case.trace.passes if one.first < step][-1]
            yield Found(
                f"{what}, and no pass runs there: none brings {case.called(leaves)} a gradient at their new values",
                "clear the gradients, compute the loss and call backward() inside of the closure",
                (before.first, step),
                site=_end_of_closure(case, site) or site,
                number=before.number,
                tensors=leaves,
            )


def _used_again(case: Case) -> int:
    """The last node above a trained leaf that several passes from one line, inside of steps, go through; 0 if there is
    none."""
    received, made = case.trace.table(Kind.RECEIVED), case.trace.table(Kind.NODE)
    pairs = distinct_pairs(received["node"], received["in_pass"])
    nodes, numbers = pairs[contained(pairs[:, 1], sorted(case.training.inside_steps))].T
    sites = [case.query.passes.by_number[number].site for number in numbers.tolist()]
    keys, counts = np.unique(nodes.astype(np.int64) << 32 | np.array(sites, np.int64), return_counts=True)
    nodes = keys[counts > 1] >> 32
    shared = nodes[contained(nodes, made["node"])][::-1].tolist()
    trained = case.training.trained
    return next((node for node in shared if not trained.isdisjoint(leaves_behind(case.query, [node]))), 0)


def _end_of_closure(case: Case, site: Site | None) -> Site | None:
    """The `return` of the function that a call at a site is given by name; None if there is none."""
    statement, tree = (statement_at(case.query, site), case.query.of(trees).get(site.place.file) if site else None)
    if site is None or statement is None or tree is None:
        return None
    named = names_read(statement)
    closures = [one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef) and one.name in named]
    ends = [one.lineno for closure in closures for one in ast.walk(closure) if isinstance(one, ast.Return)]
    return case.query.places.of_line(site.place.file, ends[-1]) if ends else None


def _of_failures(case: Case) -> Iterator[Found]:
    """Findings for passes that fail because a step has changed a tensor that a node had saved. An earlier pass from the
    same line went through this node, and the line of the node has not run since. PyTorch sees the change only where
    backward needs the values."""
    by_number, received = case.query.passes.by_number, case.trace.table(Kind.RECEIVED)
    for failure in case.failures:
        if _MODIFIED not in failure.message or failure.number not in by_number:
            continue
        backward_pass = by_number[failure.number]
        ran_in = received["in_pass"][received["node"] == failure.node]
        earlier = [
            other
            for other in case.trace.passes
            if other.number < backward_pass.number and other.site == backward_pass.site and other.number in ran_in
        ]
        leaves = tuple(t for t in leaves_behind(case.query, [failure.node]) if t in case.training.trained)
        made = case.query.nodes.event(failure.node)
        if not earlier or not leaves or made is None:
            continue
        since = case.query.passes.last(earlier[-1])
        site = _own_line(case, case.site(made.index), since, backward_pass.first)
        if site is None:
            continue
        yield Found(
            f"{_computed_once(case, failure.node, leaves)} pass {backward_pass.number} goes through it again, as pass "
            f"{earlier[-1].number} did: it belongs to weights that are gone",
            _CURE,
            (made.index, backward_pass.first, failure.event),
            site=site,
            node=failure.node,
            number=backward_pass.number,
            tensors=leaves,
            severity=case.severity_of(failure),
        )


def _computed_once(case: Case, node: int, leaves: tuple[int, ...]) -> str:
    result = case.called(t for t in case.query.nodes.outputs(node) if t)
    return f"{result or 'the result'} was computed once, before {case.called(leaves)} changed, and"


def _own_line(case: Case, site: int, since: int, until: int) -> Site | None:
    """The innermost of a site and its callers whose line made no node between two events. None if all lines did: then
    the graph goes on from round to round."""
    table = case.trace.table(Kind.NODE)
    later = (table.events > since) & (table.events < until)
    lines = {
        (caller.place.file, caller.place.line)
        for number in distinct(table.sites[later]).tolist()
        for caller in case.query.places.callers(number)
    }
    callers = case.query.places.callers(site)
    return next((one for one in callers if (one.place.file, one.place.line) not in lines), None)
