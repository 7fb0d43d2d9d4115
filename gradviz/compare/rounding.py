"""The effect of rounding on each tensor of a pass. It is measured: the pass runs again with inputs that are disturbed
by one unit in the last place. The idea is that of TTrace (arXiv 2506.09280)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from gradviz.compare.apart import apart
from gradviz.events.values import stats_of
from gradviz.query.query import Query
from gradviz.replay.outcome import Edits, Flowed, Outcome, Runner
from gradviz.replay.plan import Plan
from gradviz.replay.replayed_elements import graph_of
from gradviz.tracefile import Snapshot

REPLAYS = 4
_MARGIN = 5.0  # two runs may be so many times as far apart as the replays
# The machine epsilon of each dtype: the distance from 1 to the next number.
UNITS = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Rounding:
    """The bounds of rounding for each tensor of a pass: the largest distance in two runs, over the largest element."""

    def __init__(self, query: Query, plan: Plan, runner: Runner, dtype: str) -> None:
        graph = graph_of(query, plan)
        self.plan, self.dtype = plan, dtype
        self.least = _MARGIN * UNITS[dtype]
        self.base = runner.run(plan, Edits(), graph)
        random = np.random.default_rng(0)
        self.disturbed = [
            runner.run(plan, Edits(_disturbed(plan, UNITS[dtype], random)), graph) for _ in range(REPLAYS)
        ]
        self.calls: dict[int, list[int]] = {}  # by tensor, the calls that made it or wrote to it
        for event, tensor in self.base.made:
            self.calls.setdefault(tensor, []).append(event)

    def of_result(self, tensor: int, event: int, recorded: Snapshot) -> float | None:
        """The bound for a result of the op at an event; None if no replay gives it."""
        calls = self.calls.get(tensor, [])
        at = bisect_left(calls, event)
        if at == len(calls):
            return None
        return self._allowed(recorded, [run.made.get((calls[at], tensor)) for run in self._runs])

    def of_flow(self, node: int, place: int, recorded: Snapshot) -> float | None:
        """The bound for the gradient that a node gives along one of its edges; None if a replay lacks it."""
        flows = [run.nodes.get(node, Flowed((), ())).produced[place : place + 1] for run in self._runs]
        return self._allowed(recorded, [next(iter(found), None) for found in flows])

    def of_gradient(self, leaf: int, recorded: Snapshot) -> float | None:
        """The bound for the gradient of a leaf; None if a replay lacks it."""
        return self._allowed(recorded, [run.gradients.get(leaf) for run in self._runs])

    @property
    def _runs(self) -> list[Outcome]:
        return [self.base, *self.disturbed]

    def _allowed(self, recorded: Snapshot, arrays: Sequence[np.ndarray | None]) -> float | None:
        """The bound from the values of the replays, compared like the recorded value: by elements or by statistics."""
        snapshots = [_as(recorded, array) for array in arrays if array is not None]
        if len(snapshots) < len(arrays):
            return None
        by = [apart(snapshots[0], other) for other in snapshots[1:]]
        sizes = [size for size in by if size is not None and np.isfinite(size)]
        return max([self.least, *(_MARGIN * size for size in sizes)]) if len(sizes) == len(by) else None


def _as(recorded: Snapshot, array: np.ndarray) -> Snapshot:
    """The array as a Snapshot with as much detail as `recorded` has: elements or statistics."""
    if recorded.array is None:
        return replace(recorded, shape=array.shape, told=stats_of(array))
    return replace(recorded, shape=array.shape, array=array)


def _disturbed(plan: Plan, unit: float, random: np.random.Generator) -> dict[int, np.ndarray]:
    """The floating-point inputs of a pass, each element larger or smaller by one unit. An input that enters the pass
    again, after a write, is left out."""
    tensors = [step.tensor for step in plan.inputs]
    arrays = {}
    for step in plan.inputs:
        array = step.value.array
        if array is not None and array.dtype.kind == "f" and tensors.count(step.tensor) == 1:
            signs = random.choice([-1.0, 1.0], array.shape)
            arrays[step.tensor] = (array * (1 + unit * signs)).astype(array.dtype)
    return arrays


def coarsest(dtypes: Iterable[str]) -> str:
    """The floating-point dtype with the fewest digits; float32 if there is none."""
    return max((dtype for dtype in dtypes if dtype in UNITS), key=UNITS.__getitem__, default="float32")
