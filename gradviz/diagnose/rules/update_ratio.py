"""`update-ratio`: in most steps the change of a weight matrix is larger than the matrix itself, or smaller than a
ten-millionth of it. The change is at least the change of the root mean square. For plain SGD it is the rate times the
gradient, and for Adam and its relatives at most ten times the rate.

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

Not reported: vectors (biases, scales), matrices that begin at 0, and a range test of rates.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradviz.diagnose.case import Case
from gradviz.diagnose.finding import WARNING
from gradviz.diagnose.norms import gradients_at, has_gradient
from gradviz.diagnose.range_test import range_tests
from gradviz.diagnose.rule import Found, Need, Rule
from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.query.optimizer_settings import number_of, settings_of
from gradviz.sets import contained, distinct
from gradviz.tracefile.columns import Table
from gradviz.words.numbers import number

_LARGE, _HUGE, _SMALL = 1.0, 10.0, 1e-7
_WIDE = 100.0  # beside weights of this size, rounding swallows a healthy step
_SHARE, _LEAST = 0.5, 3  # the least share and the fewest of the steps
_ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Adagrad")
_FLOOR = 1e-3  # weights that begin smaller have room to grow
_CEILING = 0.3  # weights that stay smaller are still of a usual size
_SLACK = 10.0  # an adaptive step is at most so many times its rate


def _search(case: Case) -> Iterator[Found]:
    mutated, stepped = case.trace.table(Kind.MUTATED), case.training.stepped
    at = np.searchsorted(stepped.events, mutated.events) - 1
    by_steps = (at >= 0) & (mutated["how"] == stepped["type"][at])
    events, tensors, at = mutated.events[by_steps], mutated["tensor"][by_steps], at[by_steps]
    states = case.trace.states
    before, after = states.rows_of(tensors, events - 1), states.rows_of(tensors, events)
    matrices = _are_matrices(case, before)
    usable = matrices & (before >= 0) & (after >= 0)
    usable &= ~contained(stepped.events[at], case.of(range_tests))
    was, now = _sizes_before(case, tensors, before, events), states.stats[after, Stat.RMS]
    usable &= (was > 0) & (states.stats[after][:, [Stat.NAN, Stat.INF]] == 0).all(axis=1)
    large = usable & (np.abs(now - was) > _LARGE * was)
    huge = usable & (np.abs(now - was) > _HUGE * was) & (was > _FLOOR) & (now > _CEILING)
    high = sorted({*_found(case, tensors, usable, large), *distinct(tensors[huge]).tolist()})
    large |= huge
    if high:
        step = int(events[large & contained(tensors, high)][0])
        row = int(np.flatnonzero((events == step) & large)[0])
        yield Found(
            f"the steps change {case.called(high)} by more than {'its' if len(high) == 1 else 'their'} own size: the "
            f"root mean square goes from {number(float(was[row]), 3)} to {number(float(now[row]), 3)} in one step",
            "use a smaller learning rate: a healthy change is about a thousandth of the weights",
            (int(stepped.events[at[row]]), step),
            tensors=tuple(high),
        )
    moving = usable & has_gradient(case, tensors, stepped.events[at])
    gradients = gradients_at(case, tensors, stepped.events[at])
    most = np.full(len(tensors), np.nan)
    for row in np.flatnonzero(moving).tolist():
        most[row] = _at_most(case, int(stepped.events[at[row]]), int(tensors[row]), float(gradients[row]))
    moving |= (
        _adaptive_alone(case, stepped, tensors, at) & (before >= 0) & (states.stats[before, Stat.RMS] > 0)
    )
    for row in np.flatnonzero(moving & np.isnan(most)).tolist():
        most[row] = _at_most(case, int(stepped.events[at[row]]), int(tensors[row]), np.nan)
    small = moving & (most <= _SMALL * was) & (most > 0) & (was < _WIDE) & _are_wide(case, before)
    low = _found(case, tensors, moving, small)
    if low and not high:
        row = int(np.flatnonzero(small & contained(tensors, low))[0])
        yield Found(
            f"the steps change {case.called(low)} by less than {number(float(most[row] / was[row]), 2)} of "
            f"{'its' if len(low) == 1 else 'their'} size: training hardly moves",
            "use a larger learning rate: a healthy change is about a thousandth of the weights",
            (int(stepped.events[at[row]]), int(events[row])),
            tensors=tuple(dict.fromkeys([*low, *stepped.object(int(stepped.events[at[row]])).parameters])),
        )


def _sizes_before(case: Case, tensors: np.ndarray, before: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The root mean square of each tensor before a step, even if the program wrote to its memory through another tensor
    since the last event of the tensor; NaN if it is not known."""
    states = case.trace.states
    sizes = states.stats[before, Stat.RMS]
    for row in np.flatnonzero(
        _is_written_by_another_name(case, tensors, states.events[before], events)
    ).tolist():
        value = case.query.memory.value(int(tensors[row]), int(events[row]) - 1)
        sizes[row] = value.stats.rms if value is not None and value.stats is not None else np.nan
    return sizes


def _is_written_by_another_name(
    case: Case, tensors: np.ndarray, known: np.ndarray, events: np.ndarray
) -> np.ndarray:
    """For each step, whether the program wrote to the memory of the tensor through another tensor, as
    `w.data.uniform_()` does, between the event `known` and the step."""
    found = np.zeros(len(tensors), bool)
    for tensor in distinct(tensors[contained(tensors, sorted(case.query.memory.shared))]).tolist():
        changes = np.array(case.query.memory.changes(tensor), np.int64)
        own = tensors == tensor
        between = np.searchsorted(changes, events[own]) - np.searchsorted(changes, known[own], side="right")
        found[own] = between > 0
    return found


def _adaptive_alone(case: Case, stepped: Table, tensors: np.ndarray, at: np.ndarray) -> np.ndarray:
    """For each change, whether an adaptive optimizer made it in a program that trains no matrix, as a Gaussian process
    does. An adaptive step is about as large as the rate, whatever the gradient is."""
    states = case.trace.states
    firsts = np.array([states.first(tensor) for tensor in distinct(tensors).tolist()], np.int64)
    if _are_matrices(case, firsts[firsts >= 0]).any():
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


def _are_matrices(case: Case, rows: np.ndarray) -> np.ndarray:
    table = np.zeros(max(case.trace.forms, default=0) + 1, bool)
    for form_number, form in case.trace.forms.items():
        table[form_number] = len(form.shape) >= 2 and np.prod(form.shape) >= 4
    return table[case.trace.states.forms[rows]]


def _are_wide(case: Case, rows: np.ndarray) -> np.ndarray:
    """For each state, whether its dtype is wide enough for healthy steps."""
    table = np.zeros(max(case.trace.forms, default=0) + 1, bool)
    for form_number, form in case.trace.forms.items():
        table[form_number] = form.dtype in ("float32", "float64")
    return table[case.trace.states.forms[rows]]


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


RULE = Rule(
    "update-ratio",
    WARNING,
    "steps that change weights by more than their size, or by next to nothing",
    _search,
    needs=(Need.VALUES, Need.STEPS),
    follows=("huge-start", "lr-too-large", "vanished-lr", "exploding-gradient", "vanishing-gradient"),
)
