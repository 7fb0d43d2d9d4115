"""`huge-start`: a weight matrix begins so large that its layer makes a thousand times as much of what it is given,
before any step.

Why it is bad: what comes behind is at the ends of its range or overflows, gradients explode or vanish, and a step
that suits the other layers does nothing here.

Example:

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        model[0].weight.mul_(1e5)  # <- huge-start
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        loss = (model(torch.randn(16, 4)) - 1.0).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: the start that layers have by themselves, or one of `torch.nn.init`: the root mean square of a matrix is
about one divided by the root of its number of inputs.

Not reported: weights that grow later, which is `lr-too-large`, and what is not trained; a matrix whose results are
predictions of the size of what they are compared with (a price, a pressure).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind, OpRan
from gradviz.events.values import Stat
from gradviz.query.changes import writes_by_any_name
from gradviz.query.cuts import transposed_of
from gradviz.query.ops import ADDING, DIFFERENCES, LOSSES, PRODUCTS, RESHAPING, SHARING
from gradviz.query.source_trees import statement_at
from gradviz.query.writes import Writes
from gradviz.sets import contained
from gradviz.words.escape import clean
from gradviz.words.numbers import number

_TIMES = 1000.0  # the least that is reported
_MOST = 1000  # products that are looked at
_MATRIX = 2  # dimensions
_FEW, _ALIKE = 4, 100.0  # ops between a product and its comparison; how far apart the two sizes may be
_OFFSETS = SHARING | RESHAPING | ADDING


def _search(case: Case) -> Iterator[Found]:
    reported: dict[int, tuple[int, int, float]] = {}
    for event in _first_products(case):
        op = case.query.tensors.op(event)
        leaf, data = _weight_and_data(case, op)
        came, made = _rms(case, data, event - 1), _rms(case, op.outputs[0] if op.outputs else 0, event)
        is_huge = leaf and came > 0 and made >= _TIMES * max(came, 1.0)
        if not is_huge or leaf in reported or _is_compared(case, op, made):
            continue
        if not _is_trained_before(case, leaf, event):
            reported[leaf] = event, _last_write(case, leaf, event), made / came
    for leaf, (event, written, times) in reported.items():
        value = case.query.memory.value(leaf, event)
        size = value.stats.rms if value is not None and value.stats is not None else float("nan")
        name = case.words.called(leaf)
        behind = [other for other in case.training.trained if other != leaf]
        yield Found(
            f"{name} begins with a root mean square of {number(size, 3)}: at first {case.at(event)} makes "
            f"{number(times, 2)} times as much of what it is given",
            _cure(case, written),
            (written, event),
            tensors=(leaf, *sorted(behind)),
        )


def _cure(case: Case, written: int) -> str:
    """Other first values in place of the call that wrote these, if there is one."""
    statement = statement_at(case.query, case.query.places.site(case.site(written)))
    call = statement.value if isinstance(statement, ast.Expr) else None
    if (
        not isinstance(call, ast.Call)
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr[-1] != "_"
    ):
        return "begin with smaller values: those of the layer itself, or torch.nn.init.xavier_uniform_"
    receiver = ast.unparse(call.func.value)
    of_init = receiver.endswith("init") and bool(call.args)
    target = ast.unparse(call.args[0]) if of_init else receiver.removesuffix(".data")
    return f"torch.nn.init.xavier_uniform_({clean(target)})  # in place of this line"


def _first_products(case: Case) -> list[int]:
    """The first product with a graph of each line, in order."""
    ops = case.trace.table(Kind.OP)
    own = case.trace.named(ops["op"], tuple(PRODUCTS))
    own &= contained(ops.events, case.trace.table(Kind.NODE)["op"])
    return case.first_of_sites(ops.events[own])[:_MOST]


def _is_compared(case: Case, product: OpRan, made: float) -> bool:
    """Whether the result of a product, with an offset, is compared with numbers of about its size."""
    tensor = product.outputs[0]
    for _ in range(_FEW):
        readers = case.downstream.readers(tensor)
        op = case.query.tensors.op(readers[0]) if readers else None
        if op is None or not op.outputs:
            return False
        if op.op in LOSSES or op.op in DIFFERENCES:
            others = [other for other in op.inputs if other not in (0, tensor)]
            return any(_rms(case, other, op.index - 1) * _ALIKE >= made for other in others)
        if op.op not in _OFFSETS:
            return False
        tensor = op.outputs[0]
    return False


def _is_trained_before(case: Case, leaf: int, event: int) -> bool:
    """Whether an optimizer has changed a leaf before an event."""
    writes = np.array(case.query.tensors.writes(leaf), np.int64)
    return bool(contained(writes[writes < event], case.query.of(Writes).of_optimizers).any())


def _weight_and_data(case: Case, op: OpRan) -> tuple[int, int]:
    """The trained matrix of a product, and the input that it is multiplied with; 0 for none."""
    leaves = {tensor: transposed_of(case.query, tensor) for tensor in op.inputs if tensor}
    trained = case.training.trained
    weight = next(
        (leaf for leaf in leaves.values() if leaf in trained and _dimensions(case, leaf) >= _MATRIX), 0
    )
    others = [t for t, leaf in leaves.items() if leaf not in trained and _dimensions(case, t) >= 1]
    return (weight, others[0]) if weight and len(others) == 1 else (0, 0)


def _dimensions(case: Case, tensor: int) -> int:
    form = case.trace.shape(tensor)
    return 0 if form is None else len(form[0])


def _rms(case: Case, tensor: int, at: int) -> float:
    states = case.trace.states
    row = states.valued(tensor, at) if tensor else -1
    return float(states.stats[row, Stat.RMS]) if row >= 0 else 0.0


def _last_write(case: Case, leaf: int, until: int) -> int:
    """The event that gave a leaf the values that an op reads: the last write, else its making."""
    changes = writes_by_any_name(case.query, leaf)
    made = case.query.tensors.maker(leaf) or 0
    return max((event for event in changes if event < until), default=made)


RULE = Rule(
    "huge-start",
    WARNING,
    "a weight matrix that begins a thousand times too large",
    _search,
    needs=(Need.VALUES, Need.TRAINING, Need.DETAILS),
)
