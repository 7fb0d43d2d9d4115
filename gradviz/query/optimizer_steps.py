"""The steps of optimizers: their settings, the steps that follow a pass, and the terms of a step of SGD or Adam, which
are computed from recorded values and checked against the recorded result. The formulas are those of PyTorch's
documentation (torch.optim.SGD, torch.optim.Adam)."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gradviz.events.field_types import Group
from gradviz.events.kinds import Kind, Mutated, PassBegan, Stepped, ValueKept
from gradviz.query.query import Query
from gradviz.tracefile import Snapshot
from gradviz.tracefile.sound import nested

_MOST = 32  # the most elements of a parameter
_MOST_STEPS = 64  # the most writes to a parameter through which momentum and averages are followed
_MOST_PARAMETERS = 256  # the most parameters of one step
_TOLERANCE = 1e-4  # relative to the change: the steps are computed in float32

Array = np.ndarray
_Terms = list[tuple[str, Array]]


class Update(NamedTuple):
    """A step of one parameter. `formula` names the `terms`. Their values are arrays in the parameter's shape or
    numbers, in the order of the formula."""

    formula: str
    terms: tuple[tuple[str, Array], ...]
    after: Array


class _Step(NamedTuple):
    settings: Mapping[str, Any]
    before: Array
    grad: Array
    after: Array


def update_step(query: Query, event: Mutated) -> Update | None:
    """The computation of a parameter's new value by an optimizer. None if the optimizer is not known here, if elements
    or earlier steps were not recorded, or if the formula does not give the recorded value."""
    explain = _OPTIMIZERS.get(event.how)
    steps = _steps(query, event) if explain is not None else []
    if explain is None or not steps:
        return None
    last = steps[-1]
    with np.errstate(all="ignore"):
        explained = explain(steps)
    if explained is None:
        return None
    formula, terms, change = explained
    size = float(np.abs(change).max()) if change.size and np.isfinite(change).all() else 0.0
    near = np.allclose(last.before - change, last.after, rtol=1e-6, atol=_TOLERANCE * size)
    return Update(formula, tuple(terms), last.after) if near else None


def _steps(query: Query, event: Mutated) -> list[_Step]:
    """All steps of a parameter up to an event; empty if one of them cannot be read."""
    if query.tensors.version(event.tensor, event.index) > _MOST_STEPS:
        return []
    query.trace.reach_history(event.tensor, event.index)
    mutated = query.trace.table(Kind.MUTATED)
    how = mutated["how"][np.searchsorted(mutated.events, event.index)]
    writes = mutated.events[(mutated["tensor"] == event.tensor) & (mutated["how"] == how)]
    steps: list[_Step] = []
    optimizers = set()
    for at in writes[writes <= event.index].tolist():
        step = _step_around(query, at)
        read = None if step is None else _step(query, step, event.tensor, at)
        if read is None or step is None:
            return []
        optimizers.add(step.optimizer)
        steps.append(read)
    return steps if len(optimizers) == 1 else []


def _step_around(query: Query, at: int) -> Stepped | None:
    """The step of an optimizer that wrote to a parameter at an event: its writes are recorded behind it."""
    for earlier in range(at - 1, max(at - _MOST_PARAMETERS, -1), -1):
        event = query.trace.event(earlier)
        if not isinstance(event, Mutated):
            return event if isinstance(event, Stepped) else None
    return None


def _step(query: Query, step: Stepped, tensor: int, at: int) -> _Step | None:
    if tensor not in step.parameters:
        return None
    position, settings = step.parameters.index(tensor), {}
    for group in step.groups:
        if position < group.size:
            settings = dict(settings_of(group))
            break
        position -= group.size
    before, after = query.memory.value(tensor, at - 1), query.memory.value(tensor, at)
    grad = query.tensors.grad(tensor, at - 1)
    came = query.memory.value(grad, at - 1) if grad else None
    arrays = [None if one is None or one.array is None else one.array for one in (before, came, after)]
    if not settings or any(one is None or one.size > _MOST or one.dtype.kind != "f" for one in arrays):
        return None
    old, gradient, new = (np.asarray(one, np.float64) for one in arrays)
    return _Step(settings, old, gradient, new)


def _setting(step: _Step, name: str) -> float:
    value = step.settings.get(name, 0.0)
    return float(value) if isinstance(value, bool) else number_of(value)


def _with_decay(step: _Step) -> tuple[str, _Terms, Array]:
    """The gradient that a step uses: `grad`, or `grad` with the weight decay."""
    decay = _setting(step, "weight_decay")
    if not decay:
        return "grad", [("grad", step.grad)], step.grad
    terms = [("grad", step.grad), ("weight_decay", np.float64(decay)), ("w", step.before)]
    return "(grad + weight_decay · w)", terms, step.grad + decay * step.before  # type: ignore[return-value]


def _sgd(steps: list[_Step]) -> tuple[str, _Terms, Array] | None:
    last = steps[-1]
    if any(_setting(step, name) for step in steps for name in ("nesterov", "dampening", "maximize")):
        return None
    lr, momentum = _setting(last, "lr"), _setting(last, "momentum")
    formula, terms, used = _with_decay(last)
    buffer: Any = None
    for step in steps[:-1]:
        *_, before = _with_decay(step)
        buffer = before if buffer is None else _setting(step, "momentum") * buffer + before
    start: _Terms = [("w", last.before), ("lr", np.asarray(lr))]
    if not momentum or buffer is None:
        return f"w − lr · {formula}", [*start, *terms], lr * used
    parts: _Terms = [("momentum", np.asarray(momentum)), ("buffer", buffer)]
    return (f"w − lr · (momentum · buffer + {formula})", [*start, *parts, *terms], lr * (momentum * buffer + used))


def _adam(steps: list[_Step]) -> tuple[str, _Terms, Array] | None:
    last = steps[-1]
    if any(_setting(step, name) for step in steps for name in ("amsgrad", "maximize", "weight_decay")):
        return None
    betas = last.settings.get("betas")
    if not isinstance(betas, list) or len(betas) != 2:
        return None
    one, two = map(number_of, betas)
    mean, square = np.zeros_like(last.grad), np.zeros_like(last.grad)
    for step in steps:
        mean = one * mean + (1 - one) * step.grad
        square = two * square + (1 - two) * step.grad**2
    mean, square = mean / (1 - one ** len(steps)), square / (1 - two ** len(steps))
    lr, eps = _setting(last, "lr"), _setting(last, "eps")
    terms = [("w", last.before), ("lr", np.asarray(lr)), ("m̂", mean), ("v̂", square), ("eps", np.asarray(eps))]
    return "w − lr · m̂ / (√v̂ + eps)", terms, lr * mean / (np.sqrt(square) + eps)


_OPTIMIZERS: dict[str, Callable[[list[_Step]], tuple[str, _Terms, Array] | None]] = {"SGD": _sgd, "Adam": _adam}


def rates_of_groups(query: Query) -> np.ndarray:
    """The learning rate of each group of each step, in the order of their list; NaN where it is no number. Use
    `query.of(rates_of_groups)`."""
    groups = query.trace.table(Kind.STEPPED).lists("groups")
    texts, which = np.unique(groups.elements[:, 0], return_inverse=True)
    rates = [number_of(settings_of(query.trace.text(text)).get("lr")) for text in texts.tolist()]
    return np.array(rates, float)[which]


def settings_of(group: Group | str) -> Mapping[str, Any]:
    """The settings of a parameter group by name; empty if they cannot be read."""
    return _settings(group if isinstance(group, str) else group.settings)


@lru_cache(maxsize=1024)  # a training loop has the same settings at every step
def _settings(text: str) -> Mapping[str, Any]:
    try:
        settings = nested(text, is_strict=False)
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def number_of(value: object) -> float:
    """A setting as a number; NaN if it is no number."""
    try:
        return float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        return float("nan")


def rates_of(text: str) -> list[float]:
    """The learning rates that a scheduler set; empty if they cannot be read."""
    try:
        rates = nested(text, is_strict=False)
    except ValueError:
        return []
    return list(map(number_of, rates)) if isinstance(rates, list) else []


def steps_after(query: Query, began: PassBegan, leaves: Collection[int]) -> list[Stepped]:
    """The optimizer steps after a pass and before the next one that change some of these leaves."""
    trace = query.trace
    this_pass = trace.find_pass(began.number)
    end = trace.count if this_pass is None or this_pass.last is None else this_pass.last
    following = min((one.first for one in trace.passes if one.first > end), default=trace.count)
    events = trace.indices(Kind.STEPPED)
    found = [trace.event(event) for event in events[(events > end) & (events < following)].tolist()]
    return [event for event in found if isinstance(event, Stepped) and set(event.parameters) & set(leaves)]


def is_next_pass_recorded(query: Query, number: int) -> bool:
    """Whether the pass behind pass `number` is in the trace, or the run had none."""
    later = [one.number for one in query.trace.passes if one.number > number]
    return not later or min(later) == number + 1


def event_after_step(query: Query, stepped: Stepped, leaf: int) -> int | None:
    """The event that has the value of a parameter after a step: the step's own event, or the event at which the
    parameter entered a later pass, if it was not written to in between. None if there is none."""
    writes = [event for event in query.tensors.writes(leaf) if event > stepped.index]
    first = query.trace.event(writes[0]) if writes else None
    if not isinstance(first, Mutated) or first.how != stepped.type:
        return None
    until = writes[1] if len(writes) > 1 else query.trace.count
    events = query.trace.indices(Kind.KEPT)
    entered = events[(events > first.index) & (events < until)].tolist()
    for event in (first.index, *entered):
        value = value_at(query, event, leaf)
        if value is not None and value.array is not None:
            return event
    return None


def value_at(query: Query, event: int, leaf: int) -> Snapshot | None:
    """The value of a parameter that a write left, or that was kept."""
    kept = query.trace.event(event)
    if isinstance(kept, ValueKept):
        return query.trace.snapshot(kept.copy, event) if kept.original == leaf else None
    return query.memory.value(leaf, event)
