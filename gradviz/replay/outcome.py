"""What a pass gives that runs again, and whether that is what was recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from gradviz.events.kinds import Kind
from gradviz.events.values import GRADIENT, stats_of
from gradviz.query.query import Query
from gradviz.replay.plan import Call, Plan
from gradviz.tracefile import Snapshot

_NEAR = 1e-6  # relative: the order in which elements are summed depends on how they lie in memory


@dataclass(frozen=True)
class Edits:
    """What is to be different: other `values` of inputs, by tensor; another dtype for all floating-point numbers; calls
    to leave out, by their events; calls that were made without grad mode, to make `with_grad`; by call, a number
    among its arguments, and the tensor in place of it; of a mean or a sum over a batch, made by the call `loss`, an
    index to leave out."""

    values: dict[int, np.ndarray] = field(default_factory=dict)
    dtype: str = ""
    without: frozenset[int] = frozenset()
    with_grad: frozenset[int] = frozenset()
    numbers: dict[int, tuple[float, int]] = field(default_factory=dict)
    sample: int | None = None
    loss: Call | None = None


@dataclass(frozen=True)
class Outcome:
    """What a pass gave: the values of its roots, the gradients of its leaves (None: it received none). `checksums` are
    those of what each call made, `small` the elements of what has few, by event and tensor. With a graph, `made` are
    the elements of all that calls made, and `nodes` the gradients at its nodes."""

    roots: dict[int, np.ndarray]
    gradients: dict[int, np.ndarray | None]
    checksums: dict[int, int]
    small: dict[tuple[int, int], np.ndarray]
    made: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    nodes: dict[int, Flowed] = field(default_factory=dict)


class Flowed(NamedTuple):
    """The gradients that a node received, one for each output, and those that it produced, one for each edge."""

    received: tuple[np.ndarray | None, ...]
    produced: tuple[np.ndarray | None, ...]


class Graph(NamedTuple):
    """The nodes of a pass by number, as they were recorded: the name of each, and where its edges lead (0: nowhere).
    `roots` are the nodes that it begins at."""

    roots: tuple[int, ...]
    names: dict[int, str]
    edges: dict[int, tuple[int, ...]]


class Runner(Protocol):
    """What runs a plan: a module with PyTorch's names."""

    name: str

    def run(self, plan: Plan, edits: Edits, graph: Graph | None = None) -> Outcome:
        """Run it; with a graph keep all that is made. Raises ReplayError where that is impossible."""


@dataclass(frozen=True)
class Difference:
    """A recorded value that a replay does not give: the tensor, the event, and the largest difference of an element
    (NaN where there is none to tell)."""

    tensor: int
    event: int
    largest: float


@dataclass(frozen=True)
class Check:
    """How a replay compares with the recording: how many of its roots and gradients were compared, and how many are
    equal, `to_the_bit` of these gradients to the last bit, and large ones in their statistics; where it differs, in the
    order of the run."""

    roots: int
    equal_roots: int
    gradients: int
    equal_gradients: int
    to_the_bit: int
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all that was compared is equal."""
        return not self.differences


def checked(query: Query, plan: Plan, outcome: Outcome) -> Check:
    """Compare what a replay gave with what was recorded."""
    found: list[Difference] = []
    for (event, tensor), array in outcome.small.items():
        recorded = query.memory.value(tensor, event)
        if tensor not in plan.roots and recorded is not None and recorded.array is not None:
            found += _difference(tensor, event, recorded, array)
    roots = equal_roots = 0
    for tensor, array in outcome.roots.items():
        recorded = query.memory.value(tensor, plan.began.index)
        if recorded is None or recorded.array is None:
            continue
        roots += 1
        differs = _difference(tensor, plan.began.index, recorded, array)
        equal_roots += not differs
        found += differs
    gradients = equal_gradients = to_the_bit = 0
    for tensor, event, recorded in recorded_gradients(query, plan):
        gradient = outcome.gradients.get(tensor)
        gradients += 1
        differs = (
            [Difference(tensor, event, float("nan"))]
            if gradient is None
            else _difference(tensor, event, recorded, gradient)
        )
        equal_gradients += not differs
        to_the_bit += not differs and recorded.array is not None
        found += differs
    return Check(roots, equal_roots, gradients, equal_gradients, to_the_bit, tuple(found))


def is_exact(query: Query, plan: Plan, outcome: Outcome) -> bool:
    """Whether a replay gives what was recorded, something was recorded, and nothing changed gradients that does not
    run again."""
    check = checked(query, plan, outcome)
    return check.is_equal and check.roots + check.gradients > 0 and not has_hooks(query, plan)


def has_hooks(query: Query, plan: Plan) -> bool:
    """Whether hooks changed gradients of the pass: a replay does not run them."""
    return bool(np.any(query.trace.table(Kind.HOOKED)["in_pass"] == plan.number))


def recorded_gradients(query: Query, plan: Plan) -> list[tuple[int, int, Snapshot]]:
    """The gradients that leaves received in the pass, as far as their values were kept: the leaf, the event."""
    trace = query.trace
    accumulated = trace.table(Kind.ACCUMULATED)
    own = accumulated["in_pass"] == plan.number
    leaves = set(plan.leaves)
    by_gradient = dict(
        zip(accumulated["gradient"][own].tolist(), accumulated["tensor"][own].tolist(), strict=True)
    )
    kept = trace.table(Kind.KEPT)
    found = []
    for event in kept.events[trace.named(kept["how"], (GRADIENT,))].tolist():
        if event <= plan.began.index:
            continue
        told = trace.event(event)
        leaf = by_gradient.get(told.original, 0)  # type: ignore[attr-defined]
        value = trace.snapshot(told.copy, event) if leaf in leaves else None  # type: ignore[attr-defined]
        if value is not None and value.stats is not None:
            found.append((leaf, event, value))
    return found


def _difference(tensor: int, event: int, recorded: Snapshot, array: np.ndarray) -> list[Difference]:
    """The difference between what was recorded and what a replay gave, if there is one."""
    if recorded.shape != array.shape:
        return [Difference(tensor, event, float("nan"))]
    if recorded.array is not None:
        if same_bits(recorded.array, array):
            return []
        return [Difference(tensor, event, largest_change(recorded.array, array))]
    return [] if _same_statistics(recorded, array) else [Difference(tensor, event, float("nan"))]


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have the same elements; a NaN is equal to a NaN."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc"))


def largest_change(one: np.ndarray, other: np.ndarray) -> float:
    """The largest difference between elements of two arrays of one shape; infinite where only one of them is finite."""
    if not one.size:
        return 0.0
    wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    left, right = one.astype(wide), other.astype(wide)
    with np.errstate(all="ignore"):
        apart = np.abs(left - right)
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    apart = np.where(same, 0.0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max())


def _same_statistics(recorded: Snapshot, array: np.ndarray) -> bool:
    """Whether the statistics that were kept are those of an array."""
    told, own = recorded.stats, stats_of(array)
    if told is None:
        return False
    exact = ("min", "max", "nan", "inf", "zeros")
    equal = all(_same(getattr(told, name), getattr(own, name), 0.0) for name in exact)
    return equal and _same(told.rms, own.rms, _NEAR) and _same(told.mean, own.mean, _NEAR, own.rms)


def _same(one: float, other: float, near: float, size: float = 0.0) -> bool:
    if np.isnan(one) or np.isnan(other):
        return bool(np.isnan(one) and np.isnan(other))
    return one == other or abs(one - other) <= near * max(abs(one), abs(other), abs(size))
