"""`update-ratio`: in most steps the change of a weight matrix is larger than the matrix, or than twice the matrix as it
began, or smaller than a ten-millionth of it. The change is that of `gradviz report`. Where a trace does not have it,
the change is at least the change of the root mean square, and for Adam and its relatives at most ten times the
rate.

Why it is bad: a step that is larger than the weight forgets what was learned; a step close to 0 learns nothing.

Example:

    torch.manual_seed(0)
    model = torch.nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-10)
    for step in range(5):
        loss = (model(torch.randn(16, 8)) - 1.0).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- update-ratio

Cure: use a learning rate that changes the weights by about a thousandth in each step.

Not reported: vectors (biases, scales), matrices that begin at 0, a range test of rates, and steps
that run passes themselves, as those of LBFGS.
"""

import math
from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.norms import gradients_at, has_gradient, range_tests
from gradviz.diagnose.rule import WARNING, Case, Found, Need, Rule
from gradviz.events.handles import Form
from gradviz.events.values import Stat
from gradviz.query.curves import change_norms, step_writes
from gradviz.query.ledger import Ledger
from gradviz.query.optimizer_steps import number_of, settings_of
from gradviz.sets import contained, distinct
from gradviz.tracefile.columns import Table
from gradviz.words.numbers import number

_TWICE, _HUGE, _SMALL = 2.0, 10.0, 1e-7
_USUAL = 0.1  # weights that begin smaller grow by large steps
_WIDE = 100.0  # beside weights of this size, rounding swallows a healthy step
_SHARE, _LEAST = 0.5, 3  # the least share and the fewest of the steps
_ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad")
_FLOOR = 1e-3  # weights that begin smaller have room to grow
_CEILING = 0.3  # weights that stay smaller are still of a usual size
_SLACK = 10.0  # an adaptive step is at most so many times its rate


@Rule(
    "update-ratio",
    WARNING,
    "steps that change weights by more than their size, or by next to nothing",
    needs=(Need.VALUES, Need.STEPS),
    follows=(
        "huge-start",
        "lr-too-large",
        "vanished-lr",
        "exploding-gradient",
        "singular-derivative",
        "vanishing-gradient",
        "late-clip",
    ),
)
def update_ratio(case: Case) -> Iterator[Found]:
    stepped, written = case.training.stepped, case.query.of(step_writes)
    events, tensors, at = written.events, written.tensors, written.steps
    states, norms = case.trace.states, case.query.of(change_norms)
    before, after = states.rows_of(tensors, stepped.events[at]), states.rows_of(tensors, events)
    root = np.sqrt(np.maximum(states.sizes(after), 1))
    was = np.where(norms.sizes == -1, np.nan, norms.sizes / root)
    changed = np.where(norms.values == -1, np.nan, norms.values / root)
    matrices = states.of_forms(before, _is_matrix) > 0
    usable = matrices & (before >= 0) & (after >= 0)
    several = case.query.of(Ledger).steps_with_passes  # a step that searches makes many changes
    usable &= ~contained(stepped.events[at], case.of(range_tests)) & ~contained(stepped.events[at], several)
    now = states.stats[after, Stat.RMS]
    usable &= (was > 0) & (states.stats[after][:, [Stat.NAN, Stat.INF]] == 0).all(axis=1)
    at_least = np.where(np.isnan(changed), np.abs(now - was), changed)
    _, first, of = np.unique(tensors, return_index=True, return_inverse=True)
    begun = np.where(was[first] > _USUAL, _TWICE * was[first], np.inf)[of]  # a usual size, which no step exceeds twice
    large = usable & (at_least > np.minimum(was, begun))
    huge = usable & (at_least > _HUGE * was) & (was > _FLOOR) & (now > _CEILING)
    own = {*_found(case, tensors, usable, usable & (at_least > was)), *distinct(tensors[huge]).tolist()}
    high = sorted({*own, *_found(case, tensors, usable, large)})
    large |= huge
    if high:
        when = "" if own.issuperset(high) else ", now or at the start"
        step = int(events[large & contained(tensors, high)][0])
        row = int(np.flatnonzero((events == step) & large)[0])
        yield Found(
            f"the steps change {case.called(high)} by more than {'its' if len(high) == 1 else 'their'} own size{when}: "
            + _large_step(float(was[row]), float(now[row]), float(changed[row])),
            "use a smaller learning rate: a healthy change is about a thousandth of the weights",
            (int(stepped.events[at[row]]), step),
            tensors=tuple(high),
        )
    moving = usable & has_gradient(case, tensors, stepped.events[at])
    gradients = gradients_at(case, tensors, stepped.events[at])
    most = np.where(changed > 0, changed, np.nan)  # 0: rounding swallowed it, and the bounds are larger
    for row in np.flatnonzero(moving & np.isnan(most)).tolist():
        most[row] = _at_most(case, int(stepped.events[at[row]]), int(tensors[row]), float(gradients[row]))
    moving |= _adaptive_alone(case, stepped, tensors, at) & (before >= 0) & (was > 0)
    for row in np.flatnonzero(moving & np.isnan(most)).tolist():
        most[row] = _at_most(case, int(stepped.events[at[row]]), int(tensors[row]), np.nan)
    is_precise = states.of_forms(before, lambda form: form.dtype in ("float32", "float64"))
    small = moving & (most <= _SMALL * was) & (most > 0) & (was < _WIDE) & (is_precise > 0)
    low = _found(case, tensors, moving, small)
    if low and not high:
        row = int(np.flatnonzero(small & contained(tensors, low))[0])
        yield Found(
            f"the steps change {case.called(low)} by {'' if changed[row] > 0 else 'less than '}"
            f"{number(float(most[row] / was[row]), 2)} of "
            f"{'its' if len(low) == 1 else 'their'} size: training hardly moves",
            "use a larger learning rate: a healthy change is about a thousandth of the weights",
            (int(stepped.events[at[row]]), int(events[row])),
            tensors=tuple(dict.fromkeys([*low, *stepped.object(int(stepped.events[at[row]])).parameters])),
        )


def _large_step(was: float, now: float, changed: float) -> str:
    """What one step did to a matrix: its size before, and that of the change (NaN: not known) or after."""
    if np.isnan(changed):
        return f"the root mean square goes from {number(was, 3)} to {number(now, 3)} in one step"
    return f"the root mean square of a change is {number(changed, 3)}, of the weights before it {number(was, 3)}"


def _adaptive_alone(case: Case, stepped: Table, tensors: np.ndarray, at: np.ndarray) -> np.ndarray:
    """For each change, whether an adaptive optimizer made it in a program that trains no matrix, as a Gaussian process
    does. An adaptive step is about as large as the rate, whatever the gradient is."""
    states = case.trace.states
    firsts = np.array([states.first(tensor) for tensor in distinct(tensors).tolist()], np.int64)
    if states.of_forms(firsts, _is_matrix).any():
        return np.zeros(len(tensors), bool)
    return case.trace.named(stepped["type"], _ADAPTIVE)[at]


def _found(case: Case, tensors: np.ndarray, usable: np.ndarray, marked: np.ndarray) -> list[int]:
    """The tensors that are marked in most of their steps, the first step included."""
    found = []
    for tensor in distinct(tensors[marked]).tolist():
        of_tensor = usable & (tensors == tensor)
        count = int((marked & of_tensor).sum())
        is_first_marked = marked[np.flatnonzero(of_tensor)[0]]
        if is_first_marked and count >= max(_LEAST, _SHARE * int(of_tensor.sum())):
            found.append(tensor)
    return found


def _is_matrix(form: Form) -> bool:
    return len(form.shape) >= 2 and math.prod(form.shape) >= 4


def _at_most(case: Case, step: int, tensor: int, gradient: float) -> float:
    """The largest possible root mean square of the change of a tensor in a step, from the root mean square of its
    gradient; NaN if it is not known."""
    event = case.training.stepped.object(step)
    place = event.parameters.index(tensor) if tensor in event.parameters else -1
    for group in event.groups:
        if 0 <= place < group.size:
            settings = settings_of(group)
            rate = number_of(settings.get("lr"))
            if event.type in _ADAPTIVE:
                return _SLACK * rate
            plain = event.type == "SGD" and not settings.get("momentum") and not settings.get("weight_decay")
            return rate * gradient if plain else np.nan
        place -= group.size
    return np.nan
