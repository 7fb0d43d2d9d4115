"""The first product of each trained matrix with data, and the event that gave the matrix its first values."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.fix import Fix
from gradviz.events.kinds import Kind, OpRan
from gradviz.query.flow import transposed_of
from gradviz.query.ops import PRODUCTS
from gradviz.query.writes import Writes, writes_by_any_name
from gradviz.sets import contained

_MOST = 1000  # the most products that are looked at
_MATRIX = 2  # the fewest dimensions of a matrix


class FirstProduct(NamedTuple):
    """The first op that multiplies the trained matrix `weight` with a tensor, `data`."""

    op: OpRan
    weight: int
    data: int


def first_products(case: Case) -> list[FirstProduct]:
    """The first product of each trained matrix, if no step has changed it before. Use `case.of(first_products)`."""
    return list(_found(case))


def _found(case: Case) -> Iterator[FirstProduct]:
    ops = case.trace.table(Kind.OP)
    products = case.trace.named(ops["op"], PRODUCTS)
    products &= contained(ops.events, case.trace.table(Kind.NODE)["op"])
    seen: set[int] = set()
    for event in ops.events[products][:_MOST].tolist():
        op = case.query.tensors.op(event)
        weight, data = _weight_and_data(case, op)
        if weight and weight not in seen:
            seen.add(weight)
            writes = np.array(case.query.tensors.writes(weight), np.int64)
            if not contained(writes[writes < event], case.query.of(Writes).of_optimizers).any():
                yield FirstProduct(op, weight, data)


def _weight_and_data(case: Case, op: OpRan) -> tuple[int, int]:
    """The trained matrix of a product, and the input that it is multiplied with; (0, 0) if they are not clear."""
    leaves = {tensor: transposed_of(case.query, tensor) for tensor in op.inputs if tensor}
    trained, shape = case.training.trained, case.query.tensors.shape
    weight = next((leaf for leaf in leaves.values() if leaf in trained and len(shape(leaf) or ()) >= _MATRIX), 0)
    others = [t for t, leaf in leaves.items() if leaf not in trained and len(shape(t) or ()) >= 1]
    return (weight, others[0]) if weight and len(others) == 1 else (0, 0)


def started_at(case: Case, leaf: int, until: int) -> int:
    """The last event before `until` that wrote to a leaf; if there is none, the event that made the leaf."""
    changes = writes_by_any_name(case.query, leaf)
    made = case.query.tensors.maker(leaf) or 0
    return max((event for event in changes if event < until), default=made)


def other_start(case: Case, written: int) -> Fix | None:
    """A call that gives other first values, in place of the initialiser called at `written`; None if none was."""
    call = case.query.places.tree(case.site(written))
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr[-1] != "_":
        return None
    receiver = ast.unparse(call.func.value)
    of_init = receiver.endswith("init") and bool(call.args)
    target = ast.unparse(call.args[0]) if of_init else receiver.removesuffix(".data")
    new = f"torch.nn.init.xavier_uniform_({target})"
    return Fix(
        f"{new}  # in place of this call",
        lambda spot: [spot.source.replaced(spot.expression, new)] if isinstance(spot.expression, ast.Call) else [],
    )
