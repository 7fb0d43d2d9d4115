"""`backward-twice`: a pass reached a node whose saved tensors an earlier pass had freed.

Why it is bad: a pass frees what the nodes saved, to save memory. A second pass through them has nothing to
multiply with, and PyTorch raises.

Example:

    x = torch.tensor(2.0, requires_grad=True)
    y = x ** 3
    y.backward()
    y.backward()  # <- backward-twice

Cure: compute the forward again for each pass, add the losses and call backward() once, or pass
`retain_graph=True` to all but the last call.

Not reported: a second pass that was allowed by `retain_graph=True`, and nodes that saved nothing.
"""

import ast
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.fix import Edit, Fix, Spot, detached_at, typed_for, with_keyword
from gradviz.diagnose.loops import loops_at
from gradviz.diagnose.rule import ERROR, Case, Found, Kind, Rule, Site
from gradviz.events.kinds import OpRan
from gradviz.query.failures import Failure
from gradviz.query.flow import leaves_behind
from gradviz.query.ops import COPYING
from gradviz.query.source_trees import assigned_to, backward_call, expression_at, is_bound_before
from gradviz.sets import contained

_MESSAGE = "backward through the graph a second time"
_UNNAMED = "detach {name} is kept from the earlier pass, or compute it again in each iteration"
_KEEP = "retain_graph=True"
_BEFORE, _AFTER = "before", "after"


@Rule(
    "backward-twice",
    ERROR,
    "a second pass through a graph whose saved tensors are freed",
    follows=("unregistered-parameter", "missing-create-graph"),
    at_once=True,
)
def backward_twice(case: Case) -> Iterator[Found]:
    for error in case.failures:
        if _MESSAGE in error.message:
            earlier = _earlier_pass(case, error)
            shared = case.query.nodes.event(error.node)
            made = f", made at {case.at(shared.index)}" if shared is not None else ""
            root = case.query.passes.began(error.number).roots if error.number else ()
            same = earlier and [r.node for r in case.query.passes.began(earlier).roots] == [r.node for r in root]
            once = earlier and _was_made_before(case, error, earlier)
            what = "the same graph" if same else f"{case.words.node_name(error.node)}{made},"
            yield Found(
                f"pass {error.number} goes through {what} again; pass {earlier} freed its saved tensors"
                if earlier
                else f"pass {error.number} reaches a part of the graph whose saved tensors are freed",
                _keeping(case, earlier) if same or once else _cure(case, error, earlier),
                (error.event, *((shared.index,) if shared is not None else ())),
                site=error.site,
                severity=case.severity_of(error),
                node=error.node,
                number=error.number,
                tensors=tuple(leaves_behind(case.query, [error.node])),
            )


def _was_made_before(case: Case, error: Failure, earlier: int) -> bool:
    """Whether all that the pass begins at was computed before the earlier pass ended: two results of one forward, not a
    state that is carried from one to the next."""
    run = case.query.passes.by_number.get(earlier)
    if run is None or not error.number:
        return False
    roots = [case.query.nodes.event(root.node) for root in case.query.passes.began(error.number).roots]
    end = case.query.passes.last(run)
    return all(root is not None and root.index < end for root in roots)


def _keeping(case: Case, earlier: int) -> Fix:
    """The call that began the earlier pass, with `retain_graph=True`."""
    began = case.query.passes.began(earlier)
    call = backward_call(case.query, case.place(began.index))
    if call is None or any(keyword.arg == "retain_graph" for keyword in call.keywords):
        at = case.at(began.index) or "the first pass"
        return Fix(f"{_KEEP}  # in the call at {at}, if both passes are meant", _kept_graph)
    kept = ast.Call(call.func, call.args, [*call.keywords, ast.keyword("retain_graph", ast.Constant(True))])
    text = f"{ast.unparse(kept)}  # at {case.at(began.index)}, if both passes are meant"
    return Fix(text, _kept_graph)


def _kept_graph(spot: Spot) -> list[Edit]:
    """`retain_graph=True` at the first of two calls of backward()."""
    source = spot.source
    here = spot.calls_here("backward")
    if not here:
        return []
    same = [call for call in source.calls("backward") if spot.receiver(call) == spot.receiver(here[0])]
    earlier = [call for call in same if source.span(call) < source.span(here[0])]
    if not earlier:
        earlier = [call for call in source.calls("backward") if source.span(call) < source.span(here[0])][-1:]
    return [with_keyword(source, call, _KEEP) for call in (earlier or here)[:1]]


def _cure(case: Case, error: Failure, earlier: int) -> Fix | str:
    """The cure that detaches a named tensor through which this pass reaches the graph of the earlier pass."""
    earlier_pass = case.query.passes.by_number.get(earlier)
    if earlier_pass is None or not error.number:
        return _UNNAMED.format(name="what")
    nodes = case.query.nodes
    end = case.query.passes.last(earlier_pass)
    roots = [root.node for root in case.query.passes.began(error.number).roots]
    carried: dict[str, int] = {}  # the event of an op that reads the tensor
    kept: list[int] = []  # the nodes that made such tensors
    for node in map(nodes.event, nodes.walk(roots)):
        if node is None or node.index < end:
            continue
        for edge in node.edges:
            made = nodes.event(edge.node)
            name = case.query.names.of(edge.tensor) if edge.tensor else None
            if made is not None and made.index < end:
                kept.append(made.index)
                carried |= {name: node.index} if name and name not in carried else {}
    if not carried:
        return _where_it_is_made(case, kept)
    name, reader = next(iter(carried.items()))
    wheres = {own: place for own in _also_called(case, error, name) if (place := _where(case, error, own, reader))}
    if not wheres and error.site is not None and loops_at(case, error.site):
        return _UNNAMED.format(name=f"{name}, which")
    name, (side, line) = next(iter(wheres.items()), (name, (_BEFORE, 0)))
    where = f"{side} line {line}, " if line else ""
    return Fix(
        f"{name} = {name}.detach()  # {where}or compute it again in each iteration",
        detached_at(name, line, is_before=side == _BEFORE),
    )


def _where_it_is_made(case: Case, kept: list[int]) -> Fix | str:
    """The cure for tensors without a name that are kept: to detach them where they are made, at one line; typed if it
    makes copies, which only those who keep them read."""
    sites = {case.site(event) for event in kept}
    if len({case.at(event) for event in kept}) != 1 or len(sites) != 1:
        return _UNNAMED.format(name="what")
    site, op = sites.pop(), case.trace.event(kept[0] - 1)
    expression = expression_at(case.query, site)
    if expression is None or not isinstance(op, OpRan) or op.op not in COPYING:
        return _UNNAMED.format(name=f"what {case.at(kept[0])} makes, where it")
    old = ast.unparse(expression)
    return Fix(
        f"{old}.detach()  # at {case.at(kept[0])}", typed_for(old, f"{old}.detach()", case.query.places.line(site)[1])
    )


def _also_called(case: Case, error: Failure, name: str) -> list[str]:
    """The name of a tensor, and those that the loops around a pass assign it to: `hidden` for `hidden = state`."""
    loops = loops_at(case, error.site) if error.site is not None else []
    aliases = [
        assigned_to(statement)
        for loop in loops
        for statement in ast.walk(loop)
        if isinstance(statement, ast.Assign) and ast.unparse(statement.value) == name
    ]
    return [name, *filter(None, dict.fromkeys(aliases))]


def _where(case: Case, error: Failure, name: str, reader: int) -> tuple[str, int] | None:
    """The place to detach a tensor in each iteration, before or after a line, where its name is sure to be bound:
    before the first line of the innermost loop around the pass; else after the pass, if the loop gives the tensor its
    name before each pass; else before the line of the op that reads it. None if there is no such place."""
    if error.site is None:
        return None
    file, line = error.site.place.file, error.site.place.line
    loops = loops_at(case, error.site)
    if not loops:
        return None
    loop = max(loops, key=lambda loop: loop.lineno)
    first, is_carried = loop.body[0].lineno, _is_carried(loop, line, name)
    if is_carried and first < line and is_bound_before(case.query, file, loop.lineno, name):
        return _BEFORE, first
    if is_carried and _is_assigned_before_each_pass(case, error.site, loop, name):
        return _AFTER, line
    reads = case.place(reader)
    read_at = reads.place.line if reads is not None and reads.place.file == file else 0
    return (_BEFORE, read_at) if _uses(loop, name).get(read_at) and read_at < line else None


def _uses(loop: ast.stmt, name: str) -> dict[int, bool]:
    """The lines of a loop that use a name, and whether each of them reads it."""
    uses: dict[int, bool] = {}
    for node in ast.walk(loop):
        if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) == name:
            uses[node.lineno] = uses.get(node.lineno, False) or isinstance(node.ctx, ast.Load)
    return uses


def _is_carried(loop: ast.stmt, line: int, name: str) -> bool:
    """Whether a name carries its value from a line of a loop into the next iteration: of the lines behind it that use
    the name, the first reads it. An assignment under a condition may be left out."""
    uses = _uses(loop, name)
    branches = [node for node in ast.walk(loop) if isinstance(node, ast.If)]
    maybe = {at for branch in branches for at in range(branch.lineno, (branch.end_lineno or 0) + 1)}
    behind = sorted((at for at in uses if uses[at] or at not in maybe), key=lambda at: (at <= line, at))
    return bool(behind) and uses[behind[0]]


def _is_assigned_before_each_pass(case: Case, site: Site, loop: ast.stmt, name: str) -> bool:
    """Whether a loop had assigned a tensor to a name before the first pass that began at a line of the loop."""
    places = case.query.places
    firsts = [one.first for one in case.trace.passes if places.line(one.site) == places.line(site.number)]
    assigning = [
        number
        for number in case.trace.sites
        if any(
            name in caller.names
            and caller.place.file == site.place.file
            and loop.lineno < caller.place.line < site.place.line
            for caller in places.callers(number)
        )
    ]
    assigned = np.flatnonzero(contained(case.trace.events["site"], assigning))
    return bool(firsts) and len(assigned) > 0 and assigned[0] < min(firsts)


def _earlier_pass(case: Case, error: Failure) -> int:
    """The last pass before the error in which its node ran; 0 if there is none."""
    received = case.trace.table(Kind.RECEIVED)
    ran = (received["node"] == error.node) & (received["in_pass"] != error.number)
    earlier = received["in_pass"][ran & (received.events < error.event)]
    return int(earlier[-1]) if len(earlier) else 0
