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

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import ERROR
from gradviz.diagnose.loops import loops_at
from gradviz.diagnose.rule import Found, Rule
from gradviz.events.kinds import Kind
from gradviz.query.failures import Failure
from gradviz.query.source_trees import backward_call, trees
from gradviz.query.upstream import leaves_behind
from gradviz.words.escape import clean

_MESSAGE = "backward through the graph a second time"
_REUSED = "{name} = {name}.detach()  # {where}or compute it again in each iteration"
_UNNAMED = "detach what is kept from the earlier pass, or compute it again in each iteration"
_SAME = "{call}  # at {line}, if both passes are meant"
_KEEP = "retain_graph=True"
_NAMES = (ast.Name, ast.Attribute)


def _search(case: Case) -> Iterator[Found]:
    for error in case.failures:
        if _MESSAGE in error.message:
            earlier = _earlier_pass(case, error)
            shared = case.query.nodes.event(error.node)
            made = f", made at {case.at(shared.index)}" if shared is not None else ""
            root = case.query.passes.began(error.number).roots if error.number else ()
            same = earlier and [r.node for r in case.query.passes.began(earlier).roots] == [
                r.node for r in root
            ]
            once = earlier and _was_made_before(case, error, earlier)
            what = "the same graph" if same else f"{case.words.node_name(error.node)}{made},"
            yield Found(
                f"pass {error.number} goes through {what} again; pass {earlier or '?'} freed its saved tensors",
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


def _keeping(case: Case, earlier: int) -> str:
    """The call that began the earlier pass, with `retain_graph=True`."""
    began = case.query.passes.began(earlier)
    call = backward_call(case.query, case.place(began.index))
    if call is None or any(keyword.arg == "retain_graph" for keyword in call.keywords):
        return (
            f"{_KEEP}  # in the call at {case.at(began.index) or 'the first pass'}, if both passes are meant"
        )
    kept = ast.Call(call.func, call.args, [*call.keywords, ast.keyword("retain_graph", ast.Constant(True))])
    return _SAME.format(call=clean(ast.unparse(kept)), line=case.at(began.index))


def _cure(case: Case, error: Failure, earlier: int) -> str:
    """The cure that detaches a named tensor through which this pass reaches the graph of the earlier pass."""
    earlier_pass = case.query.passes.by_number.get(earlier)
    if earlier_pass is None or not error.number:
        return _UNNAMED
    nodes = case.query.nodes
    end = case.query.passes.last(earlier_pass)
    roots = [root.node for root in case.query.passes.began(error.number).roots]
    carried: dict[str, int] = {}  # the event of an op that reads the tensor
    for node in map(nodes.event, nodes.walk(roots)):
        if node is None or node.index < end:
            continue
        for edge in node.edges:
            made = nodes.event(edge.node)
            name = case.query.names.of(edge.tensor) if edge.tensor else None
            if made is not None and made.index < end and name:
                carried.setdefault(clean(name), node.index)
    if not carried:
        return _UNNAMED
    name, reader = next(iter(carried.items()))
    return _REUSED.format(name=name, where=_where(case, error, name, reader))


def _where(case: Case, error: Failure, name: str, reader: int) -> str:
    """The place to detach a tensor in each iteration: before the first line of the innermost loop around the pass if it
    has its name there from the first iteration on, else before the line of the op that reads it. Empty if the source
    has no loop there, or if that line does not use the name."""
    if error.site is None:
        return ""
    place = error.site.place
    loops = loops_at(case, error.site)
    if not loops:
        return ""
    loop = max(loops, key=lambda loop: loop.lineno)
    uses = [node.lineno for node in ast.walk(loop) if isinstance(node, _NAMES) and ast.unparse(node) == name]
    if "." in name or _is_bound_before(case.query.of(trees)[place.file], loop, name):
        line = loop.body[0].lineno if uses else 0
    else:
        reads = case.place(reader)
        read_at = reads.place.line if reads is not None and reads.place.file == place.file else 0
        line = read_at if read_at in uses else 0
    return f"before line {line}, " if 0 < line < place.line else ""


def _is_bound_before(tree: ast.AST, loop: ast.stmt, name: str) -> bool:
    """Whether something has this name above a loop: an assignment, or an argument of a function."""
    above = (node for node in ast.walk(tree) if getattr(node, "lineno", loop.lineno) < loop.lineno)
    return any(
        node.arg == name if isinstance(node, ast.arg) else node.id == name and isinstance(node.ctx, ast.Store)
        for node in above
        if isinstance(node, ast.arg | ast.Name)
    )


def _earlier_pass(case: Case, error: Failure) -> int:
    """The last pass before the error in which its node ran; 0 if there is none."""
    received = case.trace.table(Kind.RECEIVED)
    ran = (received["node"] == error.node) & (received["in_pass"] != error.number)
    earlier = received["in_pass"][ran & (received.events < error.event)]
    return int(earlier[-1]) if len(earlier) else 0


RULE = Rule(
    "backward-twice",
    ERROR,
    "a second pass through a graph whose saved tensors are freed",
    _search,
    follows=("unregistered-parameter", "missing-create-graph"),
)
