"""The ranks of one run, compared: parameters, gradients and settings that should be the same on all of them."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice, pairwise, takewhile
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gradviz.events.kinds import Kind, Stepped
from gradviz.events.values import Stats
from gradviz.query.collective_calls import all_reduced, changes_between, collective_clock, collectives, mixed_up
from gradviz.query.flow import Ways, op_of
from gradviz.query.ops import COPYING, DROPOUTS, RUNNING
from gradviz.query.optimizer_steps import settings_of
from gradviz.query.query import Query
from gradviz.query.ranks import Apart, are_apart, are_same
from gradviz.query.training import Training
from gradviz.sets import distinct
from gradviz.tracefile import PassInfo, Snapshot

_T = TypeVar("_T")


class Averaged(NamedTuple):
    """The `.grad` of a parameter on one rank, all-reduced before a step: the parameter, the gradient, the event of the
    last all_reduce (`since`), and the event of the step (`until`)."""

    query: Query
    parameter: int
    gradient: int
    since: int
    until: int


def last_average(query: Query, pairs: np.ndarray, parameter: int, until: int) -> Averaged | None:
    """The last all_reduce of the `.grad` of a parameter up to the event `until`; None if there is none since the
    `.grad` was last None. `pairs` are all-reduced gradients with their events."""
    events, gradients = query.tensors.grads.of(parameter)
    before = events <= until
    events, gradients = events[before], gradients[before]
    since = int(events[gradients == 0].max(initial=-1))
    candidates = np.isin(pairs[:, 0], gradients[events >= since]) & (pairs[:, 1] <= until) & (pairs[:, 1] >= since)
    if not candidates.any():
        return None
    gradient, event = pairs[candidates][pairs[candidates][:, 1].argmax()].tolist()
    return Averaged(query, parameter, gradient, event, until)


def changed_since(averages: Sequence[Averaged]) -> tuple[int, ...]:
    """The events, one for each rank or 0, that made the `.grad` of a parameter differ between the ranks since it was
    all-reduced. Empty if there are none, or if it differed already then."""
    if not are_same([_value(one, one.since) for one in averages]):
        return ()
    changes = [_changes(one) for one in averages]
    alone = _at_own_lines(averages, changes)
    if any(alone):
        return alone
    for together in zip(*changes, strict=False):
        if are_apart([_value(one, event) for one, event in zip(averages, together, strict=True)]):
            return together
    return ()


def _value(one: Averaged, event: int) -> Snapshot | None:
    return one.query.tensors.gradient(one.parameter, event)


def _changes(one: Averaged) -> list[int]:
    """The events that write to the `.grad` since the average, or make it another tensor."""
    events, gradients = one.query.tensors.grads.of(one.parameter)
    other = gradients != np.append(0, gradients[:-1])[: len(gradients)]
    between = (events > one.since) & (events < one.until)
    held = [one.gradient, *gradients[between].tolist()]
    assigned = events[between & other & (one.query.trace.kinds[events] == Kind.GRAD_ASSIGNED)]
    written = {
        event
        for gradient in dict.fromkeys(held)
        for event in changes_between(one.query, gradient, one.since, one.until)
        if one.query.tensors.grad(one.parameter, event) == gradient
    }
    return sorted({*written, *assigned.tolist()})


def _at_own_lines(averages: Sequence[Averaged], changes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The first change of each rank at a line that not all ranks have a change at; 0 if a rank has none."""
    sites = [
        {event: one.query.places.at(event) for event in of_rank} for one, of_rank in zip(averages, changes, strict=True)
    ]
    on_all = set(sites[0].values()).intersection(*(of_rank.values() for of_rank in sites))
    return tuple(next((event for event, site in of_rank.items() if site not in on_all), 0) for of_rank in sites)


def whole_of(parts: Sequence[Snapshot | None]) -> Stats | None:
    """The statistics of a tensor from the statistics of its parts on all ranks. None if they are not known, or if the
    parts do not have each element of one tensor exactly once."""
    pairs = [(part.part, part.stats) for part in parts if part is not None]
    known = [(part[0], stats) for part, stats in pairs if part is not None and stats is not None]
    counts = {part[1] for part, _ in pairs if part is not None}
    if len(known) < len(parts) or len(counts) != 1 or sum(here for here, _ in known) != counts.pop():
        return None
    finite = np.array([here - stats.nan - stats.inf for here, stats in known], float)
    some = finite > 0
    statistics = np.array([(stats.min, stats.max, stats.mean, stats.rms) for _, stats in known])[some]
    weights = finite[some] / finite.sum() if some.any() else finite[some]
    return Stats(
        float(statistics[:, 0].min()) if some.any() else float("nan"),
        float(statistics[:, 1].max()) if some.any() else float("nan"),
        float(weights @ statistics[:, 2]) if some.any() else float("nan"),
        float(np.sqrt(weights @ statistics[:, 3] ** 2)) if some.any() else float("nan"),
        sum(stats.nan for _, stats in known),
        sum(stats.inf for _, stats in known),
        sum(stats.zeros for _, stats in known),
    )


def settings_apart(
    queries: Sequence[Query], steps: Sequence[tuple[Stepped, ...]], common: Sequence[str]
) -> list[Apart]:
    """The settings that differ between the ranks, each at the first of the `steps` at which it does. `common` are the
    names of the parameters that all ranks have."""
    differing: dict[str, Apart] = {}
    for number, together in enumerate(steps, 1):
        types = tuple(step.type for step in together)
        if len(set(types)) > 1:
            differing.setdefault("optimizer", Apart(("optimizer",), types, number=number))
        if len({(step.type, len(step.groups)) for step in together}) > 1:
            continue
        for groups in zip(*(step.groups for step in together), strict=True):
            if len({group.settings for group in groups}) > 1:
                for name, values in _apart([settings_of(group) for group in groups]).items():
                    differing.setdefault(name, Apart((name,), values, number=number))
        if not differing and number == 1:  # equal groups may hold different parameters
            differing |= _of_a_parameter(queries, together, common)
    return list(differing.values())


def _of_a_parameter(queries: Sequence[Query], together: Sequence[Stepped], common: Sequence[str]) -> dict[str, Apart]:
    """The settings of the first parameter whose settings differ between the ranks at the first step; empty if there is
    none."""
    of_ranks = [settings_by_parameter(query, step) for query, step in zip(queries, together, strict=True)]
    for parameter in (name for name in common if all(name in settings for settings in of_ranks)):
        if apart := _apart([known[parameter] for known in of_ranks]):
            return {name: Apart((f"{name} of {parameter}",), values, number=1) for name, values in apart.items()}
    return {}


def _apart(settings: Sequence[Mapping[str, Any]]) -> dict[str, tuple[Any, ...]]:
    """The settings that differ, by name, with the value of each rank."""
    values = {name: tuple(of_rank.get(name) for of_rank in settings) for name in settings[0]}
    return {name: each for name, each in values.items() if len(set(map(repr, each))) > 1}


MOST_STEPS = 1000
MOST_ROOTS = 32  # the most passes whose roots are compared, and the most dropouts


def first_roots(query: Query, count: int) -> Iterator[Snapshot | None]:
    """The value of the first root of each of the first passes; None if it is not known, was reduced, or was computed
    from tensors that ranks put together."""
    not_own = {0, *query.tensors.outputs.firsts[query.tensors.are_collectives].tolist()}
    shared = _given_to_others(query)
    for backward_pass in query.trace.passes[:count]:
        roots = query.passes.began(backward_pass.number).roots
        is_own = bool(roots) and roots[0].tensor not in not_own
        if is_own and shared:
            is_own = shared.isdisjoint(Ways(query, roots[0].tensor, backward_pass.first).reached)
        yield query.memory.value(roots[0].tensor, backward_pass.first) if is_own else None


def _given_to_others(query: Query) -> set[int]:
    """The tensors that are given to collectives, such as the results of a network that ranks gather before the loss.
    Leaves that require grad are left out."""
    in_collectives = query.trace.table(Kind.COLLECTIVE).lists("tensors").values.tolist()
    last = query.trace.count - 1
    # a function with a gradient gives a copy to the collective
    tensors = {*in_collectives, *(_copied(query, tensor) for tensor in in_collectives)}
    return {t for t in tensors if t and not query.tensors.is_leaf_that_requires_grad(t, last)}


def _copied(query: Query, tensor: int) -> int:
    """The tensor that a tensor is a copy of; 0 if it is no copy."""
    op = op_of(query, tensor) if tensor else None
    return op.inputs[0] if op is not None and op.op in COPYING and op.inputs else 0


class Calls(NamedTuple):
    """The calls of a module in order: the events, and whether it was in training mode at each of them."""

    events: np.ndarray
    training: np.ndarray

    def before(self, event: int) -> tuple[int, bool]:
        """The last call before an event, and whether it was in training mode; (-1, False) if there is none."""
        at = int(np.searchsorted(self.events, event)) - 1
        return (int(self.events[at]), bool(self.training[at])) if at >= 0 else (-1, False)


def module_calls(query: Query) -> dict[str, Calls]:
    """The calls of each module, by name."""
    entered = query.trace.table(Kind.SCOPE_ENTERED)
    is_module = query.trace.named(entered["kind"], ("module",))
    numbers, events, training = (entered["name"][is_module], entered.events[is_module], entered["training"][is_module])
    calls = {}
    for number in distinct(numbers).tolist():
        rows = numbers == number
        if name := query.trace.text(number):
            calls[name] = Calls(events[rows], training[rows])
    return calls


class Read(NamedTuple):
    """A buffer, and the events of the ops that read it."""

    tensor: int
    events: list[int]


def running_statistics(query: Query) -> dict[str, Read]:
    """The running statistics that normalisations read while they train, by name."""
    statistics: dict[str, Read] = {}
    for event in query.trace.events_named(Kind.OP, "op", RUNNING).tolist():
        op = query.tensors.op(event)
        for tensor in (op.inputs[1:3] if "training=True" in op.args else ())[:MOST_STEPS]:
            if tensor and (name := query.names.of(tensor)):
                statistics.setdefault(name, Read(tensor, [])).events.append(event)
    return statistics


def dropped(query: Query) -> list[tuple[int, np.ndarray]]:
    """The first dropouts whose elements are known: the event of each, and a mask of the elements that it dropped."""
    dropouts = []
    for event in query.trace.events_named(Kind.OP, "op", DROPOUTS)[:MOST_ROOTS].tolist():
        op = query.tensors.op(event)
        pair = [query.memory.value(t, event) for t in (*op.inputs[:1], *op.outputs[:1]) if t]
        arrays = [value.array for value in pair if value is not None and value.array is not None]
        if len(arrays) == 2 and "training=True" in op.args and np.all(arrays[0]):
            dropouts.append((event, arrays[1] == 0))
    return dropouts


def optimizer_steps(query: Query) -> list[Stepped]:
    """The first steps of optimizers. Use `query.of(optimizer_steps)`."""
    table = query.trace.table(Kind.STEPPED)
    return [table.object(event) for event in table.events[:MOST_STEPS].tolist()]


def parameters_by_name(query: Query) -> dict[str, int]:
    """The parameters of optimizers by name; a parameter without a name by its place."""
    held = query.trace.table(Kind.HOLDS).lists("parameters").values.tolist()
    stepped = query.trace.table(Kind.STEPPED).lists("parameters").values.tolist()
    tensors = dict.fromkeys([*held, *stepped])
    return {query.names.of(tensor) or f"parameter {place}": tensor for place, tensor in enumerate(tensors, 1)}


def settings_by_parameter(query: Query, step: Stepped) -> dict[str, Mapping[str, Any]]:
    """The settings with which an optimizer steps each parameter that has a gradient, by its name."""
    parameters = iter(step.parameters)
    return {
        query.names.of(tensor) or "": settings_of(group)
        for group in step.groups
        for tensor in islice(parameters, group.size)
    }


def holds(query: Query, step: Stepped, tensor: int) -> bool:
    """Whether the optimizer of a step holds a parameter, with or without a gradient."""
    return step.optimizer in query.of(Training).holders.get(tensor, ()) or tensor in step.parameters


_FEWEST_DROPPED = 24  # elements: so many are not dropped alike by chance


class Difference(NamedTuple):
    """A parameter whose gradient differs between the ranks at an optimizer's step. `step` counts from 1. By rank:
    `gradients` are the gradients, None if a rank has none; `averaged` is whether the gradient had been all-reduced; if
    it was the same on all ranks then, `changed` are the events that have made it differ since, 0 if a rank has none."""

    name: str
    step: int
    gradients: tuple[Snapshot | None, ...]
    averaged: tuple[bool, ...]
    changed: tuple[int, ...] = ()


class Drift(NamedTuple):
    """Parameters that are the same on all ranks before step `step`, and differ before the next step (after the last
    step: at the end). By rank: `tensors` and `values` are the first of these parameters and its values then; it came
    to differ between the events `since` and `until`."""

    names: tuple[str, ...]
    step: int
    tensors: tuple[int, ...]
    values: tuple[Snapshot | None, ...]
    since: tuple[int, ...]
    until: tuple[int, ...]


class Replicas:
    """The ranks of one run by number. Each question about them is answered once."""

    def __init__(self, ranks: Mapping[int, Query]) -> None:
        self.ranks = dict(ranks)
        self.queries = [*ranks.values()]

    def place(self, rank: int) -> int:
        """The place of a rank among the ranks."""
        return [*self.ranks].index(rank)

    def by_rank(self, values: Sequence[_T]) -> dict[int, _T]:
        """Values by the ranks that they belong to."""
        return dict(zip(self.ranks, values, strict=True))

    def where(self, flags: Sequence[object]) -> tuple[int, ...]:
        """The ranks of which a flag is set."""
        return tuple(rank for rank, flag in self.by_rank(flags).items() if flag)

    def together(self, listed: Callable[[Query], Sequence[_T]]) -> Iterator[tuple[_T, ...]]:
        """The first of what is listed of each rank, the second of each, and so on, as long as all ranks have one."""
        return zip(*(query.of(listed) for query in self.queries), strict=False)

    # --- what they have in common

    @cached_property
    def steps(self) -> list[tuple[Stepped, ...]]:
        """The steps that all ranks make: the first of each rank, the second of each rank, and so on. They end where the
        ranks have called different numbers of collectives before a step: a rank has left out a step, or has one
        more."""
        clocks = [[call.event for call in query.of(collective_clock)] for query in self.queries]

        def are_at_one_time(steps: Sequence[Stepped]) -> bool:
            return len({bisect_left(events, step.index) for step, events in zip(steps, clocks, strict=True)}) == 1

        return list(takewhile(are_at_one_time, self.together(optimizer_steps)))

    @cached_property
    def passes(self) -> list[tuple[PassInfo, ...]]:
        """The first passes that all ranks make: the first of each rank, the second of each rank, and so on."""
        return list(zip(*(query.trace.passes[:MOST_STEPS] for query in self.queries), strict=False))

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
        points = [[one.first for one in together] for together in self.passes]
        points.append([query.trace.count - 1 for query in self.queries])
        later = [at for at in points if all(event > since for event, since in zip(at, step, strict=True))]
        return any(are_same(self._values(first.name, at)) for at in later)

    # --- what is not the same

    @cached_property
    def starts_apart(self) -> list[Apart]:
        """The parameters whose values differed between the ranks before the first pass, and whose gradients are
        reduced."""
        return [
            Apart((name,), values, self.tensors(name))
            for name, values in self._starts.items()
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
                for query, tensor, reduced in zip(self.queries, self.tensors(name), gradients, strict=True)
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

    def _apart_at(self, number: int, together: Sequence[Stepped], found_before: Sequence[str] = ()) -> list[Difference]:
        """The parameters of a step whose gradients differ, without the parameters `found_before`."""
        differences = []
        at = [step.index for step in together]
        for name in self.common:
            held = zip(self.queries, together, self.tensors(name), strict=True)
            if name in found_before or not all(holds(*one) for one in held):
                continue
            gradients = self._gradients(name, at)
            if are_apart(gradients):
                arguments = zip(self.queries, self.reduced, self.tensors(name), at, strict=True)
                averages = [last_average(*one) for one in arguments]
                averaged = tuple(one is not None for one in averages)
                known = [one for one in averages if one is not None]
                changed = changed_since(known) if all(averaged) else ()
                differences.append(Difference(name, number, gradients, averaged, changed))
        return differences

    @cached_property
    def mixed_up(self) -> Apart | None:
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
            self.tensors(names[0]),
            self._values(names[0], points[apart]),
            points[same],
            points[apart],
        )

    def _apart(self, at: Sequence[int]) -> list[str]:
        """The parameters that differ between the ranks just after these events."""
        return [name for name in self.common if are_apart(self._values(name, at))]

    @cached_property
    def other_settings(self) -> list[Apart]:
        """The settings of optimizers that differ between the ranks, each at the first step at which it does."""
        return settings_apart(self.queries, self.steps, self.common)

    @cached_property
    def other_mode(self) -> Apart | None:
        """The first pass for which a module is in training mode on some ranks and in evaluation mode on others, whether
        it is in training mode, and the events of its calls."""
        calls = [query.of(module_calls) for query in self.queries]
        names = [name for name in calls[0] if all(name in of_rank for of_rank in calls)]
        for passes in self.passes:
            for name in sorted(names, key=lambda name: name.count(".")):
                last = [of_rank[name].before(one.first) for of_rank, one in zip(calls, passes, strict=True)]
                events, modes = tuple(event for event, _ in last), tuple(mode for _, mode in last)
                if all(event >= 0 for event in events) and len(set(modes)) > 1:
                    return Apart((name,), modes, events=events, number=passes[0].number)
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
    def buffer_apart(self) -> Apart | None:
        """The first running statistics of a normalisation that differ between the ranks when ops read them again, and
        the events of these ops."""
        read = [query.of(running_statistics) for query in self.queries]
        for name in (name for name in read[0] if all(name in of_rank for of_rank in read)):
            for events in list(zip(*(of_rank[name].events for of_rank in read), strict=False))[1:]:
                at = zip(self.queries, (of_rank[name].tensor for of_rank in read), events, strict=True)
                values = tuple(query.memory.value(tensor, event - 1) for query, tensor, event in at)
                if are_apart(values):
                    return Apart((name,), values, events=events)
        return None

    @cached_property
    def same_dropout(self) -> int:
        """The event, on the first rank, of the first dropout, if dropouts drop the same elements on all ranks; −1 if
        they do not, or if too few elements are known."""
        compared, first = 0, -1
        for together in self.together(dropped):
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

    def tensors(self, name: str) -> tuple[int, ...]:
        """A parameter, by its name, as the tensor of each rank."""
        return tuple(known[name] for known in self.parameters)

    def _values(self, name: str, at: Sequence[int]) -> tuple[Snapshot | None, ...]:
        return tuple(
            query.memory.value(tensor, event)
            for query, tensor, event in zip(self.queries, self.tensors(name), at, strict=True)
        )

    def _gradients(self, name: str, at: Sequence[int]) -> tuple[Snapshot | None, ...]:
        """The `.grad` of a parameter on each rank at these events; None if there is none."""
        of_ranks = zip(self.queries, self.tensors(name), at, strict=True)
        return tuple(query.tensors.gradient(tensor, event) for query, tensor, event in of_ranks)


def frozen_on_some(ranks: Replicas) -> Apart | None:
    """The parameters that are first frozen on some ranks alone, when a pass begins (number 0: at the end of a run
    without a pass): whether they require a gradient, the tensors of the first of them, and the last events that changed
    whether it does, 0 for none. The ranks must have one model: parameters of the same names and shapes, with the same
    values where the first pass begins. None if there are none."""
    parameters = [query.of(_named) for query in ranks.queries]
    if not _are_alike(parameters):
        parameters = [query.of(_in_order) for query in ranks.queries]
    names = list(parameters[0])
    if not names or not _are_alike(parameters):
        return None
    points = [(together[0].number, tuple(one.first for one in together)) for together in ranks.passes]
    points = points or [(0, tuple(query.trace.count - 1 for query in ranks.queries))]
    starts = points[0][1]
    for name in names:
        at = zip(ranks.queries, parameters, starts, strict=True)
        if not are_same([query.memory.value(known[name], event) for query, known, event in at]):
            return None
    for pass_number, events in points:
        requires = {
            name: tuple(
                query.tensors.requires_grad(known[name], event)
                for query, known, event in zip(ranks.queries, parameters, events, strict=True)
            )
            for name in names
        }
        if apart := [name for name in names if len(set(requires[name])) > 1]:
            first = requires[apart[0]]
            tensors = tuple(known[apart[0]] for known in parameters)
            changed = tuple(map(_last_change, ranks.queries, tensors, events))
            alike = tuple(name for name in apart if requires[name] == first)
            return Apart(alike, first, tensors, changed, pass_number)
    return None


def _are_alike(parameters: Sequence[Mapping[str, int]]) -> bool:
    return bool(parameters[0]) and all(known.keys() == parameters[0].keys() for known in parameters)


def _named(query: Query) -> dict[str, int]:
    """The parameters of modules and of optimizers by name."""
    trace = query.trace
    tensors = dict.fromkeys([*trace.parameters, *parameters_by_name(query).values()])
    return {name: tensor for tensor in tensors if tensor not in trace.buffers and (name := query.names.of(tensor))}


def _in_order(query: Query) -> dict[str, int]:
    """All parameters by their place and shape, for parameters that neither a called module nor an optimizer names."""
    made = query.trace.table(Kind.TENSOR)
    tensors = made["tensor"][query.trace.named(made["how"], ("Parameter",))].tolist()
    shapes = [query.tensors.shape(tensor) or () for tensor in tensors]
    pairs = zip(shapes, tensors, strict=True)
    return {f"parameter {place} of shape {shape}": tensor for place, (shape, tensor) in enumerate(pairs, 1)}


def _last_change(query: Query, tensor: int, until: int) -> int:
    """The last event up to `until` that changed whether a tensor requires a gradient; 0 if there is none."""
    changed = query.trace.table(Kind.REQUIRES_GRAD_CHANGED)
    events = changed.events[(changed["tensor"] == tensor) & (changed.events <= until)]
    return int(events[-1]) if len(events) else 0
