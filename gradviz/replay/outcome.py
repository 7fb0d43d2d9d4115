"""The results of a pass that runs again, and their comparison with the recording."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from gradviz.events.kinds import Kind, PassBegan, Produced, Received, ValueKept
from gradviz.events.values import GRADIENT, stats_of
from gradviz.query.copies import largest_change, same_bits
from gradviz.query.query import Query
from gradviz.replay.plan import Call, Plan, ReplayError, plan_of
from gradviz.tracefile import Snapshot

_NEAR = 1e-6  # relative: the order of a sum's elements depends on their memory layout


@dataclass(frozen=True)
class Edits:
    """The changes of a replay. `values` replace inputs, by tensor; `dtype` replaces the dtype of all floating-point
    numbers; calls in `without` (by event) are left out; calls in `with_grad` are made with grad mode, although they
    were made without; `numbers` has, by call, a number among its arguments and the tensor that replaces it; `results`
    have, by tensor, the elements that a call's result is given, and at which places: no gradient flows through them.
    `sample` is an index that is left out of a mean or sum over a batch, which the call `loss` makes."""

    values: dict[int, np.ndarray] = field(default_factory=dict)
    dtype: str = ""
    without: frozenset[int] = frozenset()
    with_grad: frozenset[int] = frozenset()
    numbers: dict[int, tuple[float, int]] = field(default_factory=dict)
    results: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    sample: int | None = None
    loss: Call | None = None


@dataclass(frozen=True)
class Outcome:
    """The results of a pass: the values of its roots, the gradients of its leaves (None: it received none). `checksums`
    are those of each call's results, `small` the elements of small results, by event and tensor. `first_bad` has the
    first call that returned a NaN (True), and an infinity (False), with the indices of the first dimension that have
    it. With a graph, `made` are the elements of all results of calls, and `nodes` the gradients at the nodes."""

    roots: dict[int, np.ndarray]
    gradients: dict[int, np.ndarray | None]
    checksums: dict[int, int]
    small: dict[tuple[int, int], np.ndarray]
    first_bad: dict[bool, tuple[int, tuple[int, ...]]]
    made: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)
    nodes: dict[int, "Flowed"] = field(default_factory=dict)


def indices_of(places: np.ndarray) -> tuple[int, ...]:
    """The indices of the first dimension at which a mask has a true element; empty for a scalar."""
    if not places.ndim:
        return ()
    return tuple(np.flatnonzero(places.reshape(len(places), -1).any(axis=1)).tolist())


class Flowed(NamedTuple):
    """The gradients that a node received, one for each output, and those that it produced, one for each edge."""

    received: tuple[np.ndarray | None, ...]
    produced: tuple[np.ndarray | None, ...]


class Graph(NamedTuple):
    """The nodes of a pass by number, as recorded: the name of each, and the targets of its edges (0: none). `roots`
    are the nodes at which the pass begins."""

    roots: tuple[int, ...]
    names: dict[int, str]
    edges: dict[int, tuple[int, ...]]


# What a node (by its number) sends along an edge (by its position), given the gradients of its outputs.
Vjp = Callable[[int, int, Sequence[np.ndarray | None]], np.ndarray]


class Runner(Protocol):
    """Runs a plan with a module that has PyTorch's names; its derivatives are those of PyTorch's `version`."""

    name: str
    version: str

    def run(self, plan: Plan, edits: Edits, graph: Graph | None = None) -> Outcome:
        """Run a plan; with a graph, keep all results. Raises ReplayError if that is impossible."""

    def vjp_of(self, plan: Plan, graph: Graph) -> Vjp:
        """The VJP of each node of a graph that the calls of a plan make again. Raises ReplayError, as the VJP does, if
        that is impossible."""


class Difference(NamedTuple):
    """A recorded value that a replay does not reproduce: the tensor, the event, and the largest difference of an
    element (NaN if it is not known)."""

    tensor: int
    event: int
    largest: float


class Check(NamedTuple):
    """The comparison of a replay with the recording: how many roots and gradients were compared, and how many are
    equal. Of the equal gradients, `to_the_bit` are equal in every bit, the others, which are large, in their
    statistics. `differences` are in the order of the run."""

    roots: int
    equal_roots: int
    gradients: int
    equal_gradients: int
    to_the_bit: int
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether all compared values are equal."""
        return not self.differences


def checked(query: Query, plan: Plan, outcome: Outcome) -> Check:
    """The comparison of a replay's results with the recording. Raises ReplayError if calls were rebuilt, and give
    other results."""
    differences: list[Difference] = []
    for (event, tensor), array in outcome.small.items():
        recorded = query.memory.value(tensor, event)
        if tensor not in plan.roots and recorded is not None and recorded.array is not None:
            differences += _difference(tensor, event, recorded, array)
    roots = equal_roots = 0
    for tensor, array in outcome.roots.items():
        recorded = query.memory.value(tensor, plan.began.index)
        if recorded is None or recorded.array is None:
            continue
        roots += 1
        differs = _difference(tensor, plan.began.index, recorded, array)
        equal_roots += not differs
        differences += differs
    gradients = equal_gradients = to_the_bit = 0
    for tensor, event, recorded in recorded_gradients(query, plan.began, plan.leaves):
        gradients += 1
        differs = _difference(tensor, event, recorded, outcome.gradients.get(tensor))
        equal_gradients += not differs
        to_the_bit += not differs and recorded.array is not None
        differences += differs
    if plan.remedy and (differences or roots + gradients == 0):
        raise ReplayError(f"the calls cannot be told from their recorded arguments: {plan.remedy}")
    return Check(roots, equal_roots, gradients, equal_gradients, to_the_bit, tuple(differences))


def is_exact(query: Query, plan: Plan, outcome: Outcome) -> bool:
    """Whether a replay reproduces the recording, at least one value was compared, and no hook changed gradients."""
    check = checked(query, plan, outcome)
    return check.is_equal and check.roots + check.gradients > 0 and not has_hooks(query, plan.number)


def _difference(tensor: int, event: int, recorded: Snapshot, array: np.ndarray | None) -> list[Difference]:
    """The difference between a recorded value and a replay's, as a list; empty if they are equal."""
    if array is None or recorded.shape != array.shape:
        return [Difference(tensor, event, float("nan"))]
    if recorded.array is not None:
        if same_bits(recorded.array, array):
            return []
        return [Difference(tensor, event, largest_change(recorded.array, array))]
    return [] if _same_statistics(recorded, array) else [Difference(tensor, event, float("nan"))]


def _same_statistics(recorded: Snapshot, array: np.ndarray) -> bool:
    """Whether the recorded statistics are those of an array."""
    kept, new = recorded.stats, stats_of(array)
    if kept is None:
        return False
    exact = ("min", "max", "nan", "inf", "zeros")
    equal = all(_same(getattr(kept, name), getattr(new, name), 0.0) for name in exact)
    return equal and _same(kept.rms, new.rms, _NEAR) and _same(kept.mean, new.mean, _NEAR, new.rms)


def _same(one: float, other: float, near: float, size: float = 0.0) -> bool:
    if np.isnan(one) or np.isnan(other):
        return bool(np.isnan(one) and np.isnan(other))
    return one == other or abs(one - other) <= near * max(abs(one), abs(other), abs(size))


# The elements of all tensors in a pass, computed by a replay, for a trace that kept only the inputs' elements.


def fill_in(query: Query, runner: Runner, number: int | None) -> None:
    """Add the elements that a replay computes to the states of a pass (None: the last), so that views show them.
    Raises ReplayError if the pass cannot run again, or does not reproduce the recording: then nothing is added."""
    plan = plan_of(query, number)
    outcome = runner.run(plan, Edits(), graph_of(query, plan))
    if not is_exact(query, plan, outcome):
        raise ReplayError(
            f"pass {plan.number} does not give what was recorded, as far as is known: its elements are not known"
        )
    states = query.trace.states
    for step in plan.inputs:
        if step.value.array is not None:
            states.fill(step.tensor, step.event, step.value.array)
    for (event, tensor), array in outcome.made.items():
        states.fill(tensor, event, array)
    for gradient, event, array in gradients_of(query, plan, outcome):
        states.fill(gradient, event, array)


def graph_of(query: Query, plan: Plan) -> Graph:
    """The nodes that the pass went through."""
    roots = tuple(root.node for root in plan.began.roots)
    nodes = [*query.nodes.walk(list(roots))]
    return Graph(
        roots,
        {node: query.nodes.name(node) or "" for node in nodes},
        {node: tuple(edge.node for edge in query.nodes.edges(node)) for node in nodes},
    )


def gradients_of(query: Query, plan: Plan, outcome: Outcome) -> Iterator[tuple[int, int, np.ndarray]]:
    """The gradients that flowed in the pass, as the replay computes them: the number of each, its event, its
    elements."""
    trace = query.trace
    for kind in (Kind.RECEIVED, Kind.PRODUCED):
        table = trace.table(kind)
        for event in table.events[table["in_pass"] == plan.number].tolist():
            event_of_node = trace.event(event)
            assert isinstance(event_of_node, (Received, Produced))
            if isinstance(event_of_node, Received):
                numbers, arrays = event_of_node.gradients, _received(query, event_of_node.node, outcome)
            else:
                flowed = outcome.nodes.get(event_of_node.node)
                numbers = tuple(flow.gradient for flow in event_of_node.flows)
                arrays = () if flowed is None else flowed.produced
            for number, array in zip(numbers, arrays, strict=False):
                if number and array is not None:
                    yield number, event, array


def _received(query: Query, node: int, outcome: Outcome) -> tuple[np.ndarray | None, ...]:
    """The gradients that a node received in the replay; for a leaf node, the leaf's gradient."""
    if leaf := query.nodes.leaf(node):
        return (outcome.gradients.get(leaf),)
    flowed = outcome.nodes.get(node)
    return () if flowed is None else flowed.received


def recorded_gradients(query: Query, began: PassBegan, leaves: Collection[int]) -> list[tuple[int, int, Snapshot]]:
    """The gradients that leaves received in the pass, as far as their values were kept: leaf, event and value."""
    trace = query.trace
    accumulated, kept = trace.table(Kind.ACCUMULATED), trace.table(Kind.KEPT)
    in_pass = accumulated["in_pass"] == began.number
    gradients, tensors = (accumulated[name][in_pass].tolist() for name in ("gradient", "tensor"))
    by_gradient = dict(zip(gradients, tensors, strict=True))
    states = [
        (by_gradient.get(value.original, 0), event, value.copy)
        for event in kept.events[trace.named(kept["how"], (GRADIENT,))].tolist()
        if event > began.index and isinstance(value := trace.event(event), ValueKept)
    ]
    if not states:  # small gradients are kept where they arrive
        states = [*zip(tensors, accumulated.events[in_pass].tolist(), gradients, strict=True)]
    values = [(leaf, event, query.memory.value(one, event)) for leaf, event, one in states if leaf in leaves]
    return [(leaf, event, value) for leaf, event, value in values if value is not None and value.stats is not None]


def has_hooks(query: Query, number: int) -> bool:
    """Whether hooks changed gradients of a pass."""
    return bool(np.any(query.trace.table(Kind.HOOKED)["in_pass"] == number))
