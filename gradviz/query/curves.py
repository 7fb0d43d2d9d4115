"""How training went, as curves: the norm of each leaf's gradient in each pass, and how much each step of an optimizer
changes each parameter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.values import Stat
from gradviz.query.optimizer_settings import number_of, settings_of
from gradviz.query.query import Query
from gradviz.tracefile import Trace


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of a leaf over the passes or steps `at`. NaN where a value is not finite."""

    leaf: int
    at: np.ndarray
    values: np.ndarray


def gradient_norms(query: Query) -> list[Curve]:
    """The Euclidean norm of what each leaf accumulated, by pass. Gradients without values are left out."""
    table = query.trace.table(Kind.ACCUMULATED)
    norms = _norms(query.trace, table["gradient"], table.events)
    return _curves(table["tensor"], table["in_pass"], norms)


def update_ratios(query: Query) -> list[Curve]:
    """The norm of the change that each step of an optimizer makes to each parameter over the norm of the parameter
    before it, by the number of the step. It is the difference of the elements where they were kept; for SGD without
    momentum and weight decay also the rate times the norm of the gradient. Other changes are left out."""
    trace = query.trace
    stepped, mutated = trace.table(Kind.STEPPED), trace.table(Kind.MUTATED)
    if not len(stepped) or not len(mutated):
        return []
    at = np.searchsorted(stepped.events, mutated.events) - 1
    own = np.flatnonzero((at >= 0) & (stepped["type"][at] == mutated["how"]))
    rows: list[tuple[int, int, float]] = []
    for row in own.tolist():
        step, event, tensor = int(at[row]), int(mutated.events[row]), int(mutated["tensor"][row])
        ratio = _ratio(query, tensor, event, int(stepped.events[step]))
        if ratio is not None:
            rows.append((tensor, step + 1, ratio))
    if not rows:
        return []
    tensors, steps, ratios = (np.array(column) for column in zip(*rows, strict=True))
    return _curves(tensors, steps, ratios)


def _norms(trace: Trace, tensors: np.ndarray, events: np.ndarray) -> np.ndarray:
    """The norm of each tensor at the event beside it: NaN if it is not finite, −1 if it is not known."""
    states = trace.states
    rows = states.rows_of(tensors, events)
    sizes = np.zeros(max(trace.forms, default=0) + 1)
    for number, form in trace.forms.items():
        sizes[number] = np.prod(form.shape)
    stats = states.stats[rows]
    norms = stats[:, Stat.RMS] * np.sqrt(sizes[states.forms[rows]])
    known = (rows >= 0) & ~np.isnan(stats[:, Stat.NAN])
    finite = (stats[:, Stat.NAN] == 0) & (stats[:, Stat.INF] == 0)
    return np.where(known, np.where(finite, norms, np.nan), -1.0)


def _curves(leaves: np.ndarray, at: np.ndarray, values: np.ndarray) -> list[Curve]:
    known = ~(values < 0)
    leaves, at, values = leaves[known], at[known], values[known]
    found, first = np.unique(leaves, return_index=True)
    return [
        Curve(int(leaf), at[leaves == leaf], values[leaves == leaf])
        for leaf in found[np.argsort(first)].tolist()
    ]


@np.errstate(all="ignore")  # a parameter may have infinities
def _ratio(query: Query, tensor: int, event: int, step: int) -> float | None:
    before, after = query.trace.snapshot(tensor, at=step), query.trace.snapshot(tensor, at=event)
    if before is None or after is None or before.stats is None:
        return None
    size = float(before.stats.rms) * np.sqrt(np.prod(before.shape))
    if before.array is not None and after.array is not None and before.shape == after.shape:
        wide = np.result_type(after.array, before.array, np.float64)
        change = float(np.linalg.norm(after.array.astype(wide) - before.array.astype(wide)))
    else:
        told = _plain_change(query, tensor, step)
        if told is None:
            return None
        change = told
    return change / size if size else float("nan")


def _plain_change(query: Query, tensor: int, step: int) -> float | None:
    """The norm of the change that SGD makes, where it is the rate times the gradient."""
    stepped = query.trace.table(Kind.STEPPED).object(step)
    if stepped.type != "SGD" or len(stepped.groups) != 1:
        return None
    settings = settings_of(stepped.groups[0])
    rate = number_of(settings.get("lr"))
    plain = not settings.get("momentum") and not settings.get("weight_decay")
    gradient = query.tensors.grads.last(tensor, step)
    value = query.memory.value(gradient, step) if gradient else None
    if not plain or rate != rate or value is None or value.stats is None:
        return None
    return rate * float(value.stats.rms) * float(np.sqrt(np.prod(value.shape)))
