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

from gradviz.diagnose.constants import carried_into
from gradviz.diagnose.fix import Edit, Fix, Spot, detached_before, detached_in_each_round, typed_for, with_keyword
from gradviz.diagnose.loops import loops_at
from gradviz.diagnose.rule import ERROR, Case, Found, Kind, Rule
from gradviz.query.failures import Failure
from gradviz.query.flow import leaves_behind, op_of
from gradviz.query.ops import COPYING
from gradviz.query.passes import each_left_out, recording
from gradviz.query.source_trees import assigned_to, backward_call, names_read, statement_at

_MESSAGE = "backward through the graph a second time"
_ANEW = "or compute it again in each iteration"
_UNNAMED = f"detach {{name}} is kept from the earlier pass, {_ANEW}"
_KEEP = "retain_graph=True"


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
            received = case.trace.table(Kind.RECEIVED)
            ran = (received["node"] == error.node) & (received["in_pass"] != error.number)
            earlier = int(received["in_pass"][ran & (received.events < error.event)][-1:].sum())  # 0: none
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
    """The cure that detaches the tensor through which this pass reaches the graph of an earlier pass: before the line
    that reads it below that pass, else between two rounds."""
    earlier_pass = case.query.passes.by_number.get(earlier)
    tensor = carried_into(case, error.node, error.number) if earlier_pass is not None and error.number else 0
    if not earlier and error.number and each_left_out(case.trace):
        return f"{recording(case.trace, f'--passes 1-{error.number}')} records the pass that freed them"
    if not tensor or earlier_pass is None or error.site is None:
        return _UNNAMED.format(name="what")
    if not case.query.names.of(tensor):
        return _where_it_is_made(case, tensor)
    end, here = case.query.passes.last(earlier_pass), error.site.place
    read = next((site for op in case.downstream.readers(tensor) if op > end and (site := case.place(op))), None)
    name, loops = case.words.called(tensor), loops_at(case, error.site)
    if loops and (read is None or (read.place.file, read.place.function) != (here.file, here.function)):
        return _UNNAMED.format(name=f"{name}, which")
    statement = statement_at(case.query, read)
    used = names_read(statement) if statement is not None else set()
    assigned = (node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Assign))
    also = (assigned_to(node) for node in assigned if ast.unparse(node.value) == name)  # `hidden = state`
    name = next((own for own in (*also, name) if own in used), name)
    line = read.place.line if read is not None and loops else 0
    passed = case.place(earlier_pass.first)
    if passed is not None and passed.place.line < line <= here.line:
        return Fix(f"{name} = {name}.detach()  # before line {line}, {_ANEW}", detached_before(name, line))
    return Fix(f"{name} = {name}.detach()  # between two rounds, {_ANEW}", detached_in_each_round(name))


def _where_it_is_made(case: Case, tensor: int) -> Fix | str:
    """The cure for a tensor without a name that is kept: to detach it where it is made; typed if it is a copy, which
    only those who keep it read."""
    op = op_of(case.query, tensor)
    expression = case.query.places.tree(op.site) if op is not None else None
    if op is None or expression is None or op.op not in COPYING:
        return _UNNAMED.format(name=f"what {case.at(op.index)} makes, where it" if op is not None else "what")
    old = ast.unparse(expression)
    return Fix(
        f"{old}.detach()  # at {case.at(op.index)}",
        typed_for(old, f"{old}.detach()", case.query.places.line(op.site)[1]),
    )
