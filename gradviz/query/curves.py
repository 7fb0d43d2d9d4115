"""The course of training, by leaf: the norm of its gradient in each pass, and the size of its change in each step of an
optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.query.optimizer_settings import number_of, settings_of
from gradviz.query.query import Query
from gradviz.sets import distinct
from gradviz.tracefile import Trace
from gradviz.tracefile.states import States


@dataclass(frozen=True, slots=True)
class Norms:
    """Euclidean norms of many leaves. `values[i]` is the norm of the gradient or the change of `leaves[i]` in the pass
    or step `at[i]`, and `sizes[i]` the norm of the leaf itself then. NaN where elements are not finite, −1 where the
    norm is not known."""

    leaves: np.ndarray
    at: np.ndarray
    values: np.ndarray
    sizes: np.ndarray


def accumulated_norms(query: Query) -> Norms:
    """The norms of the gradients that each leaf accumulated, by pass."""
    table, trace = query.trace.table(Kind.ACCUMULATED), query.trace
    gradients = trace.states.rows_of(table["gradient"], table.events)
    leaves = query.memory.rows_of(table["tensor"], table.events)
    return Norms(table["tensor"], table["in_pass"], _norms(trace, gradients), _norms(trace, leaves))


@dataclass(frozen=True, slots=True)
class StepWrites:
    """The last write of each step of an optimizer to each parameter: the event, the tensor, and the row of the step
    among the STEPPED events."""

    events: np.ndarray
    tensors: np.ndarray
    steps: np.ndarray


def step_writes(query: Query) -> StepWrites:
    """The values that steps of optimizers left, in the order of the events. A step may write several times."""
    stepped, mutated = query.trace.table(Kind.STEPPED), query.trace.table(Kind.MUTATED)
    if not len(stepped) or not len(mutated):
        return StepWrites(*np.zeros((3, 0), np.int64))
    step = np.searchsorted(stepped.events, mutated.events) - 1
    by_optimizer = np.flatnonzero((step >= 0) & (stepped["type"][step] == mutated["how"]))
    keys = step[by_optimizer].astype(np.int64) << 32 | mutated["tensor"][by_optimizer]
    _, behind = np.unique(keys[::-1], return_index=True)
    last = by_optimizer[np.sort(len(keys) - 1 - behind)]
    return StepWrites(mutated.events[last], mutated["tensor"][last], step[last])


def change_norms(query: Query) -> Norms:
    """The norms of the changes that each step of an optimizer makes to each parameter, by the number of the step, in
    the order of `step_writes`.

    Where elements were kept, it is the norm of their difference, else the norm that was kept with the statistics. Where
    neither was, for SGD without momentum and weight decay it is the rate times the norm of the gradient. Other changes
    are not known."""
    trace = query.trace
    stepped, written = trace.table(Kind.STEPPED), query.of(step_writes)
    step, tensors, events = written.steps, written.tensors, written.events
    before = query.memory.rows_of(tensors, stepped.events[step])
    after = trace.states.rows_of(tensors, events)
    sizes = _norms(trace, before)
    changes = trace.states.distances(before, after)
    changes = np.where(changes == -1, trace.states.changes(after), changes)
    plain = np.flatnonzero(changes == -1)
    changes[plain] = _plain_changes(query, tensors[plain], step[plain])
    return Norms(tensors, step + 1, np.where(sizes == -1, -1, changes), sizes)


@np.errstate(all="ignore")  # a parameter may be 0, or have infinities
def ratios(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Norms relative to sizes: −1 where either is not known, or the size is 0."""
    return np.where((values == -1) | (sizes == -1) | (sizes == 0), -1, values / sizes)


def _norms(trace: Trace, rows: np.ndarray) -> np.ndarray:
    """The norms of tensors by their rows of the states: NaN where elements are not finite, −1 where the norm is not
    known."""
    states: States = trace.states
    is_known = ~np.isnan(states.rms(rows)) | states.are_bad(rows)
    return np.where(is_known, states.finite_rms(rows) * np.sqrt(states.sizes(rows)), -1.0)


def _plain_changes(query: Query, tensors: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """The norms of the changes that plain SGD makes, the rate times the norm of the gradient; −1 for other steps."""
    stepped = query.trace.table(Kind.STEPPED)
    rates = _plain_rates(query)[steps]
    events = stepped.events[steps]
    gradients = query.tensors.grads.last_of(tensors, events)
    norms = _norms(query.trace, query.memory.rows_of(gradients, events))
    return np.where(np.isnan(rates) | (norms == -1), -1, rates * norms)


def _plain_rates(query: Query) -> np.ndarray:
    """The rate of each step of SGD that has one group, without momentum and weight decay; NaN for any other."""
    stepped = query.trace.table(Kind.STEPPED)
    groups = stepped.lists("groups")
    rate_of = {}
    for text in distinct(groups.elements[:, 0]).tolist():
        settings = settings_of(query.trace.text(text))
        is_plain = not settings.get("momentum") and not settings.get("weight_decay")
        rate_of[text] = number_of(settings.get("lr")) if is_plain else np.nan
    sgd = query.trace.named(stepped["type"], ("SGD",))
    rates = np.array([rate_of.get(text, np.nan) for text in groups.firsts.tolist()])
    return np.where(sgd & (groups.counts == 1), rates, np.nan)
