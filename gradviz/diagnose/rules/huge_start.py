"""`huge-start`: a weight matrix begins so large that the output of its layer is a thousand times its input, before
any step.

Why it is bad: the layers after it saturate or overflow, gradients explode or vanish, and a step that suits the other
layers does nothing here.

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

Cure: keep the default initialisation of the layer, or use a function of `torch.nn.init`. The root mean square of a
matrix should be about one divided by the root of its number of inputs.

Not reported: weights that grow later, which is `lr-too-large`; weights that are not trained; a matrix whose results
are predictions about as large as the targets that they are compared with (a price, a pressure).
"""

from collections.abc import Iterator

from gradviz.diagnose.first_products import first_products, other_start, started_at
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.events.kinds import OpRan
from gradviz.events.values import Stat
from gradviz.query.ops import ADDING, DIFFERENCES, LOSSES, RESHAPING, SHARING
from gradviz.words.numbers import number

_TIMES = 1000.0  # the smallest factor that is reported
_CURE = "begin with smaller values: those of the layer itself, or torch.nn.init.xavier_uniform_"
_FEW, _ALIKE = 4, 100.0  # ops between a product and its comparison; how far apart the two sizes may be
_OFFSETS = SHARING | RESHAPING | ADDING


@Rule(
    "huge-start",
    WARNING,
    "a weight matrix that begins a thousand times too large",
    needs=(Need.VALUES, Need.TRAINING, Need.DETAILS),
)
def huge_start(case: Case) -> Iterator[Found]:
    reported: dict[int, tuple[int, int, float]] = {}
    for product in case.of(first_products):
        op, leaf, event = product.op, product.weight, product.op.index
        statistic = case.trace.states.statistic
        came = statistic(Stat.RMS, product.data, event - 1)
        made = statistic(Stat.RMS, op.outputs[0] if op.outputs else 0, event)
        if came > 0 and made >= _TIMES * max(came, 1.0) and not _is_compared(case, op, made):
            reported[leaf] = event, started_at(case, leaf, event), made / came
    for leaf, (event, written, times) in reported.items():
        value = case.query.memory.value(leaf, event)
        size = value.stats.rms if value is not None and value.stats is not None else float("nan")
        name = case.words.called(leaf)
        behind = [other for other in case.training.trained if other != leaf]
        yield Found(
            f"{name} begins with a root mean square of {number(size, 3)}: at first {case.at(event)} makes "
            f"{number(times, 2)} times as much of what it is given",
            other_start(case, written) or _CURE,
            (written, event),
            tensors=(leaf, *sorted(behind)),
        )


def _is_compared(case: Case, product: OpRan, made: float) -> bool:
    """Whether the result of a product, with an offset, is compared with numbers of about its size."""
    tensor, statistic = product.outputs[0], case.trace.states.statistic
    for _ in range(_FEW):
        readers = case.downstream.readers(tensor)
        op = case.query.tensors.op(readers[0]) if readers else None
        if op is None or not op.outputs:
            return False
        if op.op in LOSSES or op.op in DIFFERENCES:
            others = [other for other in op.inputs if other not in (0, tensor)]
            return any(statistic(Stat.RMS, other, op.index - 1) * _ALIKE >= made for other in others)
        if op.op not in _OFFSETS:
            return False
        tensor = op.outputs[0]
    return False
