"""The ranks of one run, compared: parameters, gradients and settings that should be the same on all of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, takewhile

import numpy as np

from gradviz.events.kinds import Kind, Stepped
from gradviz.events.values import Stats
from gradviz.query.changed_after_average import changed_since, last_average
from gradviz.query.collective_calls import (
    MixedUp,
    all_reduced,
    collective_clock,
    collectives,
    mixed_up,
)
from gradviz.query.of_one_rank import (
    MOST_ROOTS,
    MOST_STEPS,
    dropped,
    first_roots,
    holds,
    module_calls,
    optimizer_steps,
    parameters_by_name,
    running_statistics,
)
from gradviz.query.query import Query
from gradviz.query.rank_values import are_apart, are_same
from gradviz.query.settings_apart import OtherSetting, settings_apart
from gradviz.query.shards import whole_of
from gradviz.tracefile import Snapshot

_FEWEST_DROPPED = 24  # elements: so many are not dropped alike by chance


@dataclass(frozen=True, slots=True)
class Start:
    """A parameter that did not begin with the same values on all ranks. `tensors` are by rank."""

    name: str
    tensors: tuple[int, ...]
    values: tuple[Snapshot | None, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """A parameter whose gradient differs between the ranks at an optimizer's step. `step` counts from 1. By rank:
    `gradients` are the gradients, None if a rank has none; `averaged` is whether the gradient had been all-reduced; if
    it was the same on all ranks then, `changed` are the events that have made it differ since, 0 if a rank has none."""

    name: str
    step: int
    gradients: tuple[Snapshot | None, ...]
    averaged: tuple[bool, ...]
    changed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drift:
    """Parameters that are the same on all ranks before step `step`, and differ before the next step (after the last
    step: at the end). By rank: `tensors` and `values` are the first of these parameters and its values then; it came
    to differ between the events `since` and `until`."""

    names: tuple[str, ...]
    step: int
    tensors: tuple[int, ...]
    values: tuple[Snapshot | None, ...]
    since: tuple[int, ...]
    until: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OtherMode:
    """A module that is called in training mode on some ranks and in evaluation mode on others, for the pass
    `pass_number`: the event of the call, and whether it was in training mode, by rank."""

    name: str
    pass_number: int
    events: tuple[int, ...]
    modes: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class OtherBuffer:
    """Running statistics that differ between the ranks when an op reads them: the event and their values, by rank."""

    name: str
    events: tuple[int, ...]
    values: tuple[Snapshot | None, ...]


class Replicas:
    """The ranks of one run by number. Each question about them is answered once."""

    def __init__(self, ranks: Mapping[int, Query]) -> None:
        self.ranks = dict(ranks)
        self.queries = [*ranks.values()]

    # --- what they have in common

    @cached_property
    def steps(self) -> list[tuple[Stepped, ...]]:
        """The steps that all ranks make: the first of each rank, the second of each rank, and so on. They end where the
        ranks have called different numbers of collectives before a step: a rank has left out a step, or has one
        more."""
        together = zip(*(query.of(optimizer_steps) for query in self.queries), strict=False)
        clocks = [[call.event for call in query.of(collective_clock)] for query in self.queries]
        return list(takewhile(lambda steps: _are_at_one_time(steps, clocks), together))

    @cached_property
    def parameters(self) -> list[dict[str, int]]:
        """The parameters of each rank's optimizers by name; a parameter without a name by its place."""
        return [parameters_by_name(query) for query in self.queries]

    @cached_property
    def common(self) -> list[str]:
        """The names of the parameters that all ranks have."""
        first, *others = self.parameters
        return [name for name in first if all(name in known for known in others)]

    @cached_property
    def are_replicas(self) -> bool:
        """Whether all ranks train one model: parameters of the same names and shapes, with the same values before the
        first pass."""
        same_names = all(len(known) == len(self.common) for known in self.parameters)
        if not self.common or not same_names or not self._starts:
            return False
        return all(are_same(values) for values in self._starts.values())

    @cached_property
    def reduced(self) -> list[np.ndarray]:
        """The all-reduced gradients of each rank: pairs of the gradient and the event."""
        return [query.of(all_reduced) for query in self.queries]

    @cached_property
    def are_averaged(self) -> bool:
        """Whether the ranks average their gradients: all ranks all-reduce gradients; or no rank does, all call
        collectives, and the gradients of replicas are the same at the first step."""
        if all(map(len, self.reduced)):
            return True
        if any(map(len, self.reduced)) or not self.steps:
            return False
        if not all(query.of(collectives) for query in self.queries) or not self.are_replicas:
            return False
        return not self._apart_at(1, self.steps[0])

    @cached_property
    def are_averaged_parameters(self) -> bool:
        """Whether the ranks average their parameters in place of their gradients (local SGD): a parameter whose
        gradients differed at a step is the same on all ranks when a later pass begins, or at the end."""
        if not self.are_replicas or not self.gradients_apart:
            return False
        first = self.gradients_apart[0]
        step = [one.index for one in self.steps[first.step - 1]]
        passes = zip(*(query.trace.passes[:MOST_STEPS] for query in self.queries), strict=False)
        points = [[one.first for one in together] for together in passes]
        points.append([query.trace.count - 1 for query in self.queries])
        later = [at for at in points if all(event > since for event, since in zip(at, step, strict=True))]
        return any(are_same(self._values(first.name, at)) for at in later)

    # --- what is not the same

    @cached_property
    def starts_apart(self) -> list[Start]:
        """The parameters whose values differed between the ranks before the first pass, and whose gradients are
        reduced."""
        starts = self._starts.items()
        return [
            Start(name, self._tensors(name), values)
            for name, values in starts
            if are_apart(values) and name not in self._of_one_rank
        ]

    @cached_property
    def _of_one_rank(self) -> set[str]:
        """The parameters whose first values differ between the ranks and whose gradients no rank reduces: each rank has
        its own, as with experts and parts of layers."""
        gradients = [set(pairs[:, 0].tolist()) for pairs in self.reduced]
        return {
            name
            for name, values in self._starts.items()
            if are_apart(values)
            and not any(
                reduced.intersection(query.tensors.grads.of(tensor)[1].tolist())
                for query, tensor, reduced in zip(self.queries, self._tensors(name), gradients, strict=True)
            )
        }

    @cached_property
    def own_parts(self) -> list[set[int]]:
        """The parameters that each rank has for itself, as tensors of each rank: no replicas that should be the
        same."""
        return [{known[name] for name in self._of_one_rank} for known in self.parameters]

    @cached_property
    def _starts(self) -> dict[str, tuple[Snapshot | None, ...]]:
        """The values of the parameters before the first pass; empty if a rank makes no pass or no step."""
        if not self.steps or not all(query.trace.passes for query in self.queries):
            return {}
        at = [query.trace.passes[0].first for query in self.queries]
        return {name: self._values(name, at) for name in self.common}

    @cached_property
    def gradients_apart(self) -> list[Difference]:
        """The first step at which the gradient of each parameter differs between the ranks."""
        first_of: dict[str, Difference] = {}
        for number, together in enumerate(self.steps, 1):
            for difference in self._apart_at(number, together, tuple(first_of)):
                first_of[difference.name] = difference
            if len(first_of) == len(self.common):
                break
        return list(first_of.values())

    @property
    def differences(self) -> list[Difference]:
        """The same, if every rank all-reduces gradients; without parameters of which each rank has its own. Else empty:
        each rank may have its own part."""
        differences = self.gradients_apart if all(map(len, self.reduced)) else []
        return [one for one in differences if one.name not in self._of_one_rank]

    def _apart_at(
        self, number: int, together: Sequence[Stepped], found_before: Sequence[str] = ()
    ) -> list[Difference]:
        """The parameters of a step whose gradients differ, without the parameters `found_before`."""
        differences = []
        at = [step.index for step in together]
        for name in self.common:
            held = zip(self.queries, together, self._tensors(name), strict=True)
            if name in found_before or not all(holds(*one) for one in held):
                continue
            gradients = self._gradients(name, at)
            if are_apart(gradients):
                arguments = zip(self.queries, self.reduced, self._tensors(name), at, strict=True)
                averages = [last_average(*one) for one in arguments]
                averaged = tuple(one is not None for one in averages)
                known = [one for one in averages if one is not None]
                changed = changed_since(known) if all(averaged) else ()
                differences.append(Difference(name, number, gradients, averaged, changed))
        return differences

    @cached_property
    def mixed_up(self) -> MixedUp | None:
        """The first collective that ranks call for different parameters; None if there is none, or if the ranks train
        parameters of different names."""
        return mixed_up(self.queries, self.parameters)

    @cached_property
    def drift(self) -> Drift | None:
        """The step at which equal replicas part; None if they are the same before the last step and at the end."""
        if not self.are_replicas:
            return None
        points = [tuple(step.index for step in together) for together in self.steps]
        if len({len(query.of(optimizer_steps)) for query in self.queries}) == 1:
            points.append(tuple(query.trace.count - 1 for query in self.queries))
        if len(points) < 2 or not self._apart(points[-1]):
            return None
        same, apart = 0, len(points) - 1  # they are the same at the first: that is the start
        if self._apart(points[0]):
            return None
        while apart - same > 1:
            middle = (same + apart) // 2
            same, apart = (same, middle) if self._apart(points[middle]) else (middle, apart)
        names = self._apart(points[apart])
        return Drift(
            tuple(names),
            same + 1,
            self._tensors(names[0]),
            self._values(names[0], points[apart]),
            points[same],
            points[apart],
        )

    def _apart(self, at: Sequence[int]) -> list[str]:
        """The parameters that differ between the ranks just after these events."""
        return [name for name in self.common if are_apart(self._values(name, at))]

    @cached_property
    def other_settings(self) -> list[OtherSetting]:
        """The settings of optimizers that differ between the ranks, each at the first step at which it does."""
        return settings_apart(self.queries, self.steps, self.common)

    @cached_property
    def other_mode(self) -> OtherMode | None:
        """The first pass for which a module is in training mode on some ranks and in evaluation mode on others."""
        calls = [query.of(module_calls) for query in self.queries]
        names = [name for name in calls[0] if all(name in of_rank for of_rank in calls)]
        for passes in zip(*(query.trace.passes[:MOST_STEPS] for query in self.queries), strict=False):
            for name in sorted(names, key=lambda name: name.count(".")):
                last = [of_rank[name].before(one.first) for of_rank, one in zip(calls, passes, strict=True)]
                events, modes = tuple(event for event, _ in last), tuple(mode for _, mode in last)
                if all(event >= 0 for event in events) and len(set(modes)) > 1:
                    return OtherMode(name, passes[0].number, events, modes)
        return None

    @cached_property
    def same_roots(self) -> int:
        """The number of passes whose roots have the same values on all ranks, while no two passes in a row have the
        same values; 0 if the roots of a pass differ, or if a root is a result of a reduction."""
        passes = min(MOST_ROOTS, *(len(query.trace.passes) for query in self.queries))
        roots = list(zip(*(first_roots(query, passes) for query in self.queries), strict=True))
        if not all(are_same(values) for values in roots):
            return 0
        return 0 if any(are_same(pair) for pair in pairwise(values[0] for values in roots)) else len(roots)

    @cached_property
    def buffer_apart(self) -> OtherBuffer | None:
        """The first running statistics of a normalisation that differ between the ranks when they are read again."""
        read = [query.of(running_statistics) for query in self.queries]
        for name in (name for name in read[0] if all(name in of_rank for of_rank in read)):
            for events in list(zip(*(of_rank[name].events for of_rank in read), strict=False))[1:]:
                at = zip(self.queries, (of_rank[name].tensor for of_rank in read), events, strict=True)
                values = tuple(query.memory.value(tensor, event - 1) for query, tensor, event in at)
                if are_apart(values):
                    return OtherBuffer(name, events, values)
        return None

    @cached_property
    def same_dropout(self) -> int:
        """The event, on the first rank, of the first dropout, if dropouts drop the same elements on all ranks; −1 if
        they do not, or if too few elements are known."""
        compared, first = 0, -1
        for together in zip(*(query.of(dropped) for query in self.queries), strict=False):
            masks = [mask for _, mask in together]
            if any(mask.shape != masks[0].shape or np.any(mask != masks[0]) for mask in masks):
                return -1
            compared += masks[0].size if 0 < masks[0].sum() < masks[0].size else 0
            first = first if first >= 0 else together[0][0]
        return first if compared >= _FEWEST_DROPPED else -1

    @cached_property
    def names_of_parts_without_gradient(self) -> list[str]:
        """The parameters that lie on the ranks in parts, if no part has a gradient at the first step although the
        passes before it gave gradients to the whole parameters, which have the same names."""
        if not self.steps or not self.common:
            return []
        at = [step.index for step in self.steps[0]]
        for query, event in zip(self.queries, at, strict=True):
            came = query.trace.table(Kind.ACCUMULATED)
            got = {query.names.of(tensor) for tensor in came["tensor"][came.events < event].tolist()}
            if not got.issuperset(self.common):
                return []
        for name in self.common:
            parts = [value is not None and value.part is not None for value in self._values(name, at)]
            if not all(parts) or any(self._gradients(name, at)):
                return []
        return self.common

    @cached_property
    def wholes(self) -> dict[str, tuple[Stats, Stats | None]]:
        """The parameters that lie on the ranks in parts, at the end: the statistics of the whole, and the statistics of
        its gradient, None if it has none."""
        wholes = {}
        at = [query.trace.count - 1 for query in self.queries]
        for name in self.common:
            whole = whole_of(self._values(name, at))
            if whole is not None:
                wholes[name] = whole, whole_of(self._gradients(name, at))
        return wholes

    # --- of one parameter on each rank

    def _tensors(self, name: str) -> tuple[int, ...]:
        return tuple(known[name] for known in self.parameters)

    def _values(self, name: str, at: Sequence[int]) -> tuple[Snapshot | None, ...]:
        return tuple(
            query.memory.value(tensor, event)
            for query, tensor, event in zip(self.queries, self._tensors(name), at, strict=True)
        )

    def _gradients(self, name: str, at: Sequence[int]) -> tuple[Snapshot | None, ...]:
        """The `.grad` of a parameter on each rank at these events; None if there is none."""
        of_ranks = zip(self.queries, self._tensors(name), at, strict=True)
        return tuple(query.tensors.gradient(tensor, event) for query, tensor, event in of_ranks)


def _are_at_one_time(steps: Sequence[Stepped], clocks: Sequence[Sequence[int]]) -> bool:
    """Whether the ranks called equally many collectives before their steps; `clocks` are the events of the calls."""
    return len({bisect_left(events, step.index) for step, events in zip(steps, clocks, strict=True)}) == 1
