"""`constant-start`: in each of two layers that follow each other all weights begin as one number, so that all units
between the layers compute the same and learn the same.

Why it is bad: all units get the same gradient. As long as nothing else reads these weights, the layer is worth a
single unit, however long it trains.

Example:

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    for layer in (model[0], model[2]):
        torch.nn.init.constant_(layer.weight, 0.1)  # <- constant-start
        torch.nn.init.constant_(layer.bias, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(16, 4)
        loss = (model(x) - x[:, :1] * x[:, 1:2]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

Cure: begin with random values, as the layers themselves do: `torch.nn.init.xavier_uniform_(first.weight)`.

Not reported: a constant layer beside a random layer, as adapters begin; two layers with a dropout, a summand or a
factor between them that makes the units differ.
"""

from collections.abc import Iterator

from gradviz.diagnose.first_products import FirstProduct, first_products, other_start, started_at
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.events.kinds import OpRan
from gradviz.events.values import Stat
from gradviz.query.flow import transposed_of
from gradviz.query.ops import DROPOUTS
from gradviz.words.numbers import few_of, number

_FAR = 8  # ops between two layers
_CURE = "begin with random values, as the layer itself does: torch.nn.init.xavier_uniform_"


@Rule(
    "constant-start",
    WARNING,
    "two layers that begin with one number everywhere",
    needs=(Need.VALUES, Need.TRAINING, Need.DETAILS),
)
def constant_start(case: Case) -> Iterator[Found]:
    products = {product.op.index: product for product in case.of(first_products)}
    alike, trained = dict[int, FirstProduct](), case.training.trained
    for event, product in products.items():
        own = {transposed_of(case.query, tensor) for tensor in product.op.inputs if tensor} & trained
        if all(_is_constant(case, leaf, event) for leaf in own):
            alike[event] = product
    pairs = [(first, second) for first in alike.values() if (second := _next(case, first, alike)) is not None]
    if not pairs:
        return
    begun = {first.weight: started_at(case, first.weight, first.op.index) for first, _ in pairs}
    first, second = pairs[0]
    written = begun[first.weight]
    line_of = case.query.places.line
    line = line_of(case.site(written))
    together = [pair for pair in pairs if line_of(case.site(begun[pair[0].weight])) == line]
    layers = [product for pair in together for product in pair]
    leaves = tuple(dict.fromkeys(product.weight for product in layers))
    values = {case.trace.states.statistic(Stat.MIN, product.weight, product.op.index) for product in layers}
    units = " and ".join(number(value, 3) for value in sorted(values))
    names = few_of([case.words.called(leaf) for leaf in leaves])  # not their module, which may hold others
    yield Found(
        f"all elements of {names} begin as {units}: the units between these layers compute the same, and "
        "this path brings them the same gradient",
        other_start(case, written) or _CURE,
        (written, first.op.index, second.op.index),
        tensors=leaves,
    )


def _is_constant(case: Case, tensor: int, at: int) -> bool:
    return case.trace.states.statistic(Stat.MIN, tensor, at) == case.trace.states.statistic(Stat.MAX, tensor, at)


def _next(case: Case, first: FirstProduct, alike: dict[int, FirstProduct]) -> FirstProduct | None:
    """The product in `alike` that reads the result of the first product. Between the two are only elementwise
    functions, and summands or factors with one value. None if there is no such product."""
    tensor = first.op.outputs[0] if len(first.op.outputs) == 1 else 0
    for _ in range(_FAR):
        readers = case.downstream.readers(tensor) if tensor else []
        if len(readers) != 1:
            return None
        op = case.query.tensors.op(readers[0])
        if op.index in alike and alike[op.index].data == tensor:
            return alike[op.index]
        if not _keeps_units_alike(case, op, tensor):
            return None
        tensor = op.outputs[0]
    return None


def _keeps_units_alike(case: Case, op: OpRan, tensor: int) -> bool:
    """Whether an op does the same to all units: it is elementwise, and its other inputs, if any, have one value."""
    others = [other for other in op.inputs if other not in (0, tensor)]
    is_alike = op.rule.elementwise and op.op not in DROPOUTS and len(op.outputs) == 1
    return is_alike and all(_is_constant(case, other, op.index) for other in others)
