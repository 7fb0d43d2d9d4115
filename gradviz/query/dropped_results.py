"""The results that a program drops: `a.masked_fill(mask, 0)` as a statement of its own computes a new tensor that
nothing uses."""

import ast
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.flow import Downstream
from gradviz.query.functions_of_source import ends_of, nodes_of
from gradviz.query.query import Query
from gradviz.query.source_trees import statement_at, trees
from gradviz.sets import contained, distinct
from gradviz.tracefile import Site

_LEAST = 2  # rounds


class Dropped(NamedTuple):
    """A statement that is only an expression, and the ops whose results are its value, outside of passes. No other op
    uses them."""

    statement: ast.Expr
    site: Site
    events: tuple[int, ...]
    has_graph: bool


def dropped(query: Query) -> list[Dropped]:
    """The results that the program drops in two rounds or more; a round is the time between two passes. Results in a
    `try` are left out: the program asks whether an exception comes. Use `query.of(dropped)`."""
    ops, begun = query.trace.table(Kind.OP), query.trace.table(Kind.PASS_BEGAN).events
    found = []
    for number, site in query.trace.sites.items():
        statement = _alone(query, site)
        call = statement.value if statement is not None else None
        called = ast.unparse(call.func).split(".")[-2:] if isinstance(call, ast.Call) else ()
        # a function that is compiled may do more than its ops show
        if statement is not None and (not called or not query.places.ops_at(number).isdisjoint(called)):
            events = ops.events[~(ops["in_pass"] > 0) & (ops.sites == number)]
            is_repeated = len(distinct(np.searchsorted(begun, events))) >= _LEAST
            if is_repeated and not are_used(query, events):
                first = query.tensors.op(int(events[0]))
                has_graph = any(query.tensors.requires_grad(one, first.index) for one in first.outputs if one)
                found.append(Dropped(statement, site, tuple(events.tolist()), has_graph))
    return found


def _alone(query: Query, site: Site) -> ast.Expr | None:
    """The statement that is only the expression at a site; None if there is none, or if it is tried."""
    statement = statement_at(query, site)
    if not isinstance(statement, ast.Expr):
        return None
    value, place = statement.value, site.place
    if ends_of(value, query.trace.source(place.file)) != (place.line, place.col, place.end_line, place.end_col):
        return None
    tree = query.of(trees)[place.file]
    tried = (one for node in nodes_of(tree) if isinstance(node, ast.Try) for one in node.body)
    return None if any(one.lineno <= place.line <= (one.end_lineno or 0) for one in tried) else statement


def are_read(query: Query, tensors: Sequence[int]) -> bool:
    """Whether one of these tensors is the root of a pass, is read as a number, or gives its values to a tensor that is
    none of them."""
    taken = [query.trace.table(Kind.NUMBER_READ)["tensor"]]
    for table in map(query.trace.table, (Kind.MUTATED, Kind.TENSOR)):
        taken.append(table["source"][~contained(table["tensor"], tensors)])
    return not query.passes.roots.isdisjoint(tensors) or bool(contained(np.concatenate(taken), tensors).any())


def are_used(query: Query, events: Iterable[int]) -> bool:
    """Whether a result of these ops is an input of one of them or the root of a pass, or is read by an op or as a
    number, or gives its values or its memory to another tensor."""
    made = [query.tensors.op(int(event)) for event in events]
    results = {output for op in made for output in op.outputs}
    given = {tensor for op in made for tensor in op.inputs}
    downstream = query.of(Downstream)
    return (
        not results.isdisjoint(given)
        or are_read(query, [*results])
        or bool(contained([*results], query.trace.states.bases).any())
        or any(downstream.readers(result) for result in results)
    )
